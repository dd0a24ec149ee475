// Count, mean and squared residuals of a row.
#pragma once

#include "squares.cuh"

namespace rowwise {

template <class A, int W = 1>
using SumAndSquares = Pair<Sum<A>, SumOfSquares<A>, W>;

// The moments of a tile of a row that is multiplied by `scale`.
//
// The mean of a tile is a rounded number. With `Corrected`, the mean of the residuals corrects it.
template <bool Corrected, class TileT, class Ctx, class T, bool... Kind>
RW_DEVICE Welford<accum_t<T>> tile_moments(const TileT& tile, RowCache<Ctx, T, Kind...>& in,
                                           accum_t<T> scale) {
    using A = accum_t<T>;
    Welford<A> part;
    part.count[0] = static_cast<A>(tile.count());
    const A total = fold_vectors<Sum>(tile, in, [&](int, A v) { return v * scale; }).value();
    // By division where the count is no power of two: a constant row has its constant for
    // mean, exactly.
    const bool full = tile.is_full();
    const auto per_element = [&](A sum) {
        return full ? sum * (A(1) / A(Ctx::simd_width)) : divide(sum, max_of(part.count[0], A(1)));
    };
    const A mean = per_element(total);
    const auto residual = [&](int, A v) { return fused(v, scale, -mean); };
    // The padding has no residual.
    const auto residual_or_0 = [&](int i, A v) { return tile.has(i) ? residual(i, v) : A(0); };
    part.mean[0] = mean;
    if constexpr (Corrected) {
        const auto residuals = full ? fold_vectors<SumAndSquares>(tile, in, residual)
                                    : fold_vectors<SumAndSquares>(tile, in, residual_or_0);
        const A rest = per_element(residuals.first.value());
        part.rest[0] = rest;
        // The corrected sum cannot be negative, but its rounding can.
        const A squares = fused(-rest * rest, part.count[0], residuals.second.value());
        part.squares[0] = squares < A(0) ? A(0) : squares;
    } else {
        const auto residuals = full ? fold_vectors<SumOfSquares>(tile, in, residual)
                                    : fold_vectors<SumOfSquares>(tile, in, residual_or_0);
        part.rest[0] = A(0);
        part.squares[0] = residuals.value();
    }
    return part;
}

// The moments of a row that is multiplied by `scale`: two-pass within a thread's tile, and the tiles'
// moments are joined (Welford): one join across threads, where two passes over the whole row would
// take two.
template <bool Corrected, class Ctx, class T, bool... Kind>
RW_DEVICE Welford<accum_t<T>> moments(const Row& row, i64 axis_size, Ctx& ctx,
                                      RowCache<Ctx, T, Kind...>& in, accum_t<T> scale) {
    Welford<accum_t<T>> state;
    reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
        fold.join(tile_moments<Corrected>(tile, in, scale));
    });
    pjoin(state, ctx);
    return state;
}

// The moments of a row, corrected, and what the row was multiplied by so that its squares are safe.
template <class T>
struct ScaledMoments {
    Welford<accum_t<T>> state;
    accum_t<T> scale;
};

template <class Ctx, class T, bool... Kind>
RW_DEVICE ScaledMoments<T> safe_moments(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T, Kind...>& in,
                                        double eps) {
    using A = accum_t<T>;
    ScaledMoments<T> m{moments<true>(row, axis_size, ctx, in, A(1)), A(1)};
    const bool safe = squares_are_safe(m.state.squares[0]);
    if (walks_again(row, !safe, ctx)) {
        const A scale = safe_scale(row, axis_size, ctx, in, eps);
        m.scale = safe ? A(1) : scale;
        if (walks_again(row, m.scale != A(1), ctx)) {
            m.state = moments<true>(row, axis_size, ctx, in, m.scale);
        }
    }
    return m;
}

}  // namespace rowwise
