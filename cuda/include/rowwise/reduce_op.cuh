// ReduceOp: what a reduction is, apart from how it is run.
//
// A ReduceOp is a monoid with a state per lane. `Sum<float, 8>` holds eight independent partial
// sums, `Sum<float, 1>`, its Single, holds one. To write a new one, derive from ReduceOp and give
//
//   using Single                     the one-lane form
//   template <int N> using Lanes     the N-lane form
//   static identity()                the state that changes nothing: join(identity, s) == s, to
//                                    the bit
//   accumulate(values, positions)    folds one value into each lane
//   join(later)                      folds another state into this one, lane by lane; associative
//   lane(i)                          one lane as a Single
//
// The state must be trivially copyable and may be of any size. The engine may call join in any
// grouping, but always with the part that comes first in the row on the left.
//
// These have defaults, which an op may replace by something faster:
//
//   reduce()                         joins the lanes into a Single, by halves
//   of_tile(values, positions)       the Single of one tile: accumulate into the identity, reduce
//   join_parallel(reducer)           joins across the threads of a warp: reducer.generic(*this)
#pragma once

#include "rows.cuh"

namespace rowwise {

// The positions along the axis of the N values of a tile: value-only monoids ignore them.
template <class TileT>
struct Positions {
    const TileT& tile;
    RW_DEVICE i64 operator[](int e) const {
        return tile.position(e);
    }
};

// Halves an array by recursion: one level per instantiation, since a loop whose bound is halved is
// not unrolled by the compiler past 8 values, and the array would then leave the registers.
template <int N, class T, class F>
RW_DEVICE void fold_in_place(T* part, F combine) {
    if constexpr (N > 1) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) {
            part[i] = combine(part[i], part[i + N / 2]);
        }
        fold_in_place<N / 2>(part, combine);
    }
}

// Joins an array of numbers by halves with `combine`, so that the depth is log2(N); N is a power of
// two.
template <int N, class A, class F>
RW_DEVICE A fold_halves(const A (&values)[N], F combine) {
    static_assert((N & (N - 1)) == 0, "a tile has a power of two of elements");
    A part[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        part[i] = values[i];
    }
    fold_in_place<N>(part, combine);
    return part[0];
}

// The default of reduce().
template <int N, class State>
RW_DEVICE typename State::Single join_lanes(const State& state) {
    typename State::Single part[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        part[i] = state.lane(i);
    }
    fold_in_place<N>(part, [](typename State::Single low, const typename State::Single& high) {
        low.join(high);
        return low;
    });
    return part[0];
}

template <class Self, int W>
struct ReduceOp {
    RW_DEVICE auto reduce() const {
        return join_lanes<W>(static_cast<const Self&>(*this));
    }

    template <int N, class A, class Pos>
    static RW_DEVICE auto of_tile(const A (&values)[N], const Pos& positions) {
        auto state = Self::template Lanes<N>::identity();
        state.accumulate(values, positions);
        return state.reduce();
    }

    template <class Reducer>
    RW_DEVICE Self join_parallel(const Reducer& reducer) const {
        return reducer.generic(static_cast<const Self&>(*this));
    }
};

}  // namespace rowwise
