// Prod: the product.
#pragma once

#include "../math.cuh"
#include "../reduce_op.cuh"

namespace rowwise {

template <class A, int W = 1>
struct Prod : ReduceOp<Prod<A, W>, W> {
    using Single = Prod<A, 1>;
    template <int N>
    using Lanes = Prod<A, N>;

    A acc[W];

    static RW_DEVICE Prod identity() {
        Prod s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.acc[i] = A(1);
        }
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            acc[i] = acc[i] * values[i];
        }
    }

    RW_DEVICE void join(const Prod& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            acc[i] = acc[i] * later.acc[i];
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.acc[0] = acc[i];
        return s;
    }

    RW_DEVICE A value() const {
        return acc[0];
    }
};

}  // namespace rowwise
