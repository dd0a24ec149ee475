// Max, Min, MinMax and AbsMax: NaN wins, the identities are true infinities (of integers, the ends
// of their range).
#pragma once

#include "../math.cuh"
#include "../reduce_op.cuh"
#include "pair.cuh"

namespace rowwise {

struct LargerOf {
    template <class A>
    static RW_DEVICE A identity() {
        return Limits<A>::lowest();
    }
    template <class A>
    static RW_DEVICE A combine(A a, A b) {
        return max_nan(a, b);
    }
    template <class A, class Reducer>
    static RW_DEVICE A across(const Reducer& reducer, A a) {
        return reducer.max(a);
    }
};

struct SmallerOf {
    template <class A>
    static RW_DEVICE A identity() {
        return mirrored(Limits<A>::lowest());
    }
    template <class A>
    static RW_DEVICE A combine(A a, A b) {
        return mirrored(max_nan(mirrored(a), mirrored(b)));
    }
    template <class A, class Reducer>
    static RW_DEVICE A across(const Reducer& reducer, A a) {
        return reducer.min(a);
    }
};

template <class Which, class A, int W = 1>
struct Extremum : ReduceOp<Extremum<Which, A, W>, W> {
    using Single = Extremum<Which, A, 1>;
    template <int N>
    using Lanes = Extremum<Which, A, N>;

    A best[W];

    static RW_DEVICE Extremum identity() {
        Extremum s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.best[i] = Which::template identity<A>();
        }
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            best[i] = Which::combine(best[i], values[i]);
        }
    }

    RW_DEVICE void join(const Extremum& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            best[i] = Which::combine(best[i], later.best[i]);
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.best[0] = best[i];
        return s;
    }

    template <class Reducer>
    RW_DEVICE Extremum join_parallel(const Reducer& reducer) const {
        Extremum s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.best[i] = Which::across(reducer, best[i]);
        }
        return s;
    }

    RW_DEVICE A value() const {
        return best[0];
    }
};

template <class A, int W = 1>
using Max = Extremum<LargerOf, A, W>;
template <class A, int W = 1>
using Min = Extremum<SmallerOf, A, W>;

// Both in one walk: `first` is the smallest, `second` the largest.
template <class A, int W = 1>
using MinMax = Pair<Min<A>, Max<A>, W>;

// The largest magnitude. The identity is 0: no magnitude is below.
template <class A, int W = 1>
struct AbsMax : ReduceOp<AbsMax<A, W>, W> {
    using Single = AbsMax<A, 1>;
    template <int N>
    using Lanes = AbsMax<A, N>;

    A best[W];

    static RW_DEVICE AbsMax identity() {
        AbsMax s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.best[i] = A(0);
        }
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            best[i] = max_nan(best[i], absolute(values[i]));
        }
    }

    RW_DEVICE void join(const AbsMax& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            best[i] = max_nan(best[i], later.best[i]);
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.best[0] = best[i];
        return s;
    }

    template <class Reducer>
    RW_DEVICE AbsMax join_parallel(const Reducer& reducer) const {
        AbsMax s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.best[i] = reducer.max(best[i]);
        }
        return s;
    }

    RW_DEVICE A value() const {
        return best[0];
    }
};

}  // namespace rowwise
