// Sum, and the sum of squares.
#pragma once

#include "../math.cuh"
#include "../reduce_op.cuh"

namespace rowwise {

// a + b, for what takes a way to combine two values as a type. Integers wrap.
struct SumOf {
    template <class A>
    static RW_DEVICE A combine(A a, A b) {
        return a + b;
    }
    static RW_DEVICE i32 combine(i32 a, i32 b) {
        return static_cast<i32>(static_cast<u32>(a) + static_cast<u32>(b));
    }
};

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
            this->acc[i] = fused(values[i], values[i], this->acc[i]);
        }
    }

    // Two squares a step at the leaves of the tree: one fused multiply-add instead of a product and
    // a sum.
    template <int N, class Pos>
    static RW_DEVICE Single of_tile(const A (&values)[N], const Pos&) {
        Single s;
        if constexpr (N == 1) {
            s.acc[0] = values[0] * values[0];
        } else {
            A part[N / 2];
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                part[i] = fused(values[i], values[i], values[i + N / 2] * values[i + N / 2]);
            }
            s.acc[0] = fold_halves<N / 2>(part, [](A a, A b) { return a + b; });
        }
        return s;
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.acc[0] = this->acc[i];
        return s;
    }

    RW_DEVICE Single reduce() const {
        return join_lanes<W>(*this);
    }

    template <class Reducer>
    RW_DEVICE SumOfSquares join_parallel(const Reducer& reducer) const {
        SumOfSquares s;
        static_cast<Sum<A, W>&>(s) = Sum<A, W>::join_parallel(reducer);
        return s;
    }
};

}  // namespace rowwise
