// ArgMax and ArgMin: the index of the extremum, of the first NaN if there is one; ties go to the
// lowest index, and -0 ties with +0.
#pragma once

#include "extremum.cuh"

namespace rowwise {

// The index is 32 bits wide, as in the result: the host refuses longer axes.
template <class Which, class A, int W = 1>
struct ArgExtremum : ReduceOp<ArgExtremum<Which, A, W>, W> {
    using Single = ArgExtremum<Which, A, 1>;
    template <int N>
    using Lanes = ArgExtremum<Which, A, N>;

    static constexpr u32 kNone = 0xffffffffu;

    A best[W];
    u32 index[W];

    static RW_DEVICE ArgExtremum identity() {
        ArgExtremum s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.best[i] = Which::template identity<A>();
            s.index[i] = kNone;
        }
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos& positions) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            take(i, values[i], static_cast<u32>(positions[i]));
        }
    }

    RW_DEVICE void join(const ArgExtremum& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            take(i, later.best[i], later.index[i]);
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.best[0] = best[i];
        s.index[0] = index[i];
        return s;
    }

    // The extremum first, by one instruction an element, then the first place that holds it: a third
    // of the instructions of carrying the index along. Positions grow within a tile.
    template <int N, class Pos>
    static RW_DEVICE Single of_tile(const A (&values)[N], const Pos& positions) {
        Single s;
        s.best[0] = fold_halves<N>(values, [](A a, A b) { return Which::combine(a, b); });
        s.index[0] = kNone;
        if (!is_nan(s.best[0])) {
#pragma unroll
            for (int i = N - 1; i >= 0; --i) {
                if (values[i] == s.best[0]) {
                    s.index[0] = static_cast<u32>(positions[i]);
                }
            }
        } else {
#pragma unroll
            for (int i = N - 1; i >= 0; --i) {
                if (is_nan(values[i])) {
                    s.index[0] = static_cast<u32>(positions[i]);
                }
            }
        }
        return s;
    }

private:
    // kNone loses every tie, so the identity never stands in a row that has elements.
    RW_DEVICE void take(int i, A value, u32 at) {
        const bool here_nan = is_nan(best[i]);
        const bool there_nan = is_nan(value);
        const bool tie = (here_nan && there_nan) || value == best[i];
        const bool wins = there_nan ? !here_nan : (!here_nan && Which::combine(best[i], value) != best[i]);
        if (wins || (tie && at < index[i])) {
            best[i] = value;
            index[i] = at;
        }
    }
};

template <class A, int W = 1>
using ArgMax = ArgExtremum<LargerOf, A, W>;
template <class A, int W = 1>
using ArgMin = ArgExtremum<SmallerOf, A, W>;

}  // namespace rowwise
