// Any, All and Count, of values that are true where they are not 0. A NaN is not 0.
#pragma once

#include "../math.cuh"
#include "../reduce_op.cuh"

namespace rowwise {

// Words are joined with `Combine`, which says what one value makes of them and what nothing does.
template <class Combine, int W = 1>
struct Truths : ReduceOp<Truths<Combine, W>, W> {
    using Single = Truths<Combine, 1>;
    template <int N>
    using Lanes = Truths<Combine, N>;
    using Word = typename Combine::Word;

    Word acc[W];

    static RW_DEVICE Truths identity() {
        Truths s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.acc[i] = Combine::kIdentity;
        }
        return s;
    }

    template <class A, class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            acc[i] = Combine::combine(acc[i], values[i] != A(0));
        }
    }

    RW_DEVICE void join(const Truths& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            acc[i] = Combine::combine(acc[i], later.acc[i]);
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.acc[0] = acc[i];
        return s;
    }

    RW_DEVICE Word value() const {
        return acc[0];
    }
};

struct Either {
    using Word = u8;
    static constexpr Word kIdentity = 0;
    static RW_DEVICE Word combine(Word a, Word b) { return a | b; }
};
struct Both {
    using Word = u8;
    static constexpr Word kIdentity = 1;
    static RW_DEVICE Word combine(Word a, Word b) { return a & b; }
};
struct HowMany {
    using Word = i64;
    static constexpr Word kIdentity = 0;
    static RW_DEVICE Word combine(Word a, Word b) { return a + b; }
};

// 1 if any value is true, else 0.
template <class, int W = 1>
using Any = Truths<Either, W>;
// 1 if no value is false, else 0.
template <class, int W = 1>
using All = Truths<Both, W>;
// How many values are true.
template <class, int W = 1>
using Count = Truths<HowMany, W>;

}  // namespace rowwise
