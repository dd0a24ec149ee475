// Sum, and the sum of squares.
#pragma once

#include "../math.cuh"
#include "../reduce_op.cuh"

namespace rowwise {

// The identity is -0, the only value that changes no sum: x + -0 == x also for x = -0. A sum of
// nothing is +0 and is written by the host.
template <class A, int W = 1>
struct Sum : ReduceOp<Sum<A, W>, W> {
    using Single = Sum<A, 1>;
    template <int N>
    using Lanes = Sum<A, N>;

    A acc[W];

    static RW_DEVICE Sum identity() {
        Sum s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.acc[i] = -A(0);
        }
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            acc[i] += values[i];
        }
    }

    RW_DEVICE void join(const Sum& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            acc[i] += later.acc[i];
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.acc[0] = acc[i];
        return s;
    }

    template <class Reducer>
    RW_DEVICE Sum join_parallel(const Reducer& reducer) const {
        Sum s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.acc[i] = reducer.sum(acc[i]);
        }
        return s;
    }

    RW_DEVICE A value() const {
        return acc[0];
    }
};

// The sum of the squares of what is accumulated.
template <class A, int W = 1>
struct SumOfSquares : Sum<A, W> {
    using Single = SumOfSquares<A, 1>;
    template <int N>
    using Lanes = SumOfSquares<A, N>;

    static RW_DEVICE SumOfSquares identity() {
        SumOfSquares s;
        static_cast<Sum<A, W>&>(s) = Sum<A, W>::identity();
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            this->acc[i] += values[i] * values[i];
        }
    }

    template <int N, class Pos>
    static RW_DEVICE Single of_tile(const A (&values)[N], const Pos& positions) {
        auto state = Lanes<N>::identity();
        state.accumulate(values, positions);
        Single s;
        static_cast<Sum<A, 1>&>(s) = static_cast<const Sum<A, N>&>(state).reduce();
        return s;
    }

    template <class Reducer>
    RW_DEVICE SumOfSquares join_parallel(const Reducer& reducer) const {
        SumOfSquares s;
        static_cast<Sum<A, W>&>(s) = Sum<A, W>::join_parallel(reducer);
        return s;
    }
};

}  // namespace rowwise
