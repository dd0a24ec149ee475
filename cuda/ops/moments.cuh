// Count, mean and squared residuals of a row.
#pragma once

#include "squares.cuh"

namespace rowwise {

template <class A, int W = 1>
using SumAndSquares = Pair<Sum<A>, SumOfSquares<A>, W>;

// The moments of a tile of a row that is multiplied by `scale`.
//
// The mean of a tile is a rounded number, which the mean of the residuals corrects.
template <class TileT, class Ctx, class T, bool... Kind>
RW_DEVICE Welford<accum_t<T>> tile_moments(const TileT& tile, RowCache<Ctx, T, Kind...>& in,
                                           accum_t<T> scale) {
    using A = accum_t<T>;
    Welford<A> part;
    part.count[0] = static_cast<A>(tile.count());
    const A total = fold_vectors<Sum>(tile, in, [&](int, A v) { return v * scale; }).value();
    // By division where the count is no power of two: a constant row has its constant for
    // mean, exactly.
    const bool full = tile.goes_whole();
    const auto per_element = [&](A sum) {
        return full ? sum * (A(1) / A(Ctx::simd_width)) : divide(sum, max_of(part.count[0], A(1)));
    };
    const A mean = per_element(total);
    const auto residual = [&](int, A v) { return fused(v, scale, -mean); };
    // The padding has no residual.
    const auto residual_or_0 = [&](int i, A v) { return tile.has(i) ? residual(i, v) : A(0); };
    part.mean[0] = mean;
    const auto residuals = full ? fold_vectors<SumAndSquares>(tile, in, residual)
                                : fold_vectors<SumAndSquares>(tile, in, residual_or_0);
    const A rest = per_element(residuals.first.value());
    part.rest[0] = rest;
    // The corrected sum cannot be negative, but its rounding can.
    const A squares = fused(-rest * rest, part.count[0], residuals.second.value());
    part.squares[0] = squares < A(0) ? A(0) : squares;
    return part;
}

// The moments of a row that is multiplied by `scale`: two-pass within a thread's tile, and the tiles'
// moments are joined (Welford): one join across threads, where two passes over the whole row would
// take two.
template <class Ctx, class T, bool... Kind>
RW_DEVICE Welford<accum_t<T>> moments(const Row& row, i64 axis_size, Ctx& ctx,
                                      RowCache<Ctx, T, Kind...>& in, accum_t<T> scale) {
    Welford<accum_t<T>> state;
    reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
        fold.join(tile_moments(tile, in, scale));
    });
    pjoin(state, ctx);
    return state;
}

// The moments of a row by its sum and that of its squares, both taken about `centre`.
template <class A>
RW_DEVICE Welford<A> moments_of_sums(const SumAndSquares<A>& sums, i64 axis_size, A centre = A(0)) {
    const A total = sums.first.value();
    Welford<A> m;
    m.count[0] = static_cast<A>(axis_size);
    const A mean = divide(total, m.count[0]);
    m.squares[0] = fused(-total, mean, sums.second.value());
    m.mean[0] = centre == A(0) ? mean : centre;
    m.rest[0] = centre == A(0) ? A(0) : mean;
    return m;
}

// The moments of a row that is multiplied by `scale`, by its sums. They take half the instructions of tile_moments,
// and are joined at a fraction of the cost.
template <class Ctx, class T, bool... Kind>
RW_DEVICE Welford<accum_t<T>> near_moments(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T, Kind...>& in,
                                           accum_t<T> scale) {
    using A = accum_t<T>;
    SumAndSquares<A> sums;
    reduce(row, axis_size, ctx, sums, [&](auto& fold, const auto& tile) {
        fold.join(fold_vectors<SumAndSquares>(tile, in, [&](int, A v) { return v * scale; }));
    });
    pjoin(sums, ctx);
    return moments_of_sums(sums, axis_size);
}

// Whether they do, of half types, whose results are rounded far more coarsely: where the row is not far from 0 for its
// spread, no more than 4 bits are lost, and its squares are better not taken of a scaled row.
template <class A>
RW_DEVICE bool sums_suffice(const Welford<A>& m) {
    return squares_are_safe(m.squares[0]) && m.mean[0] * m.mean[0] * m.count[0] <= A(16) * m.squares[0];
}

// The same where they do not: by sums about the mean as an element of T, which a constant row is made of. What the elements
// of a row differ by is no smaller than what that is off, so that no more than a bit is lost.
template <class Ctx, class T, bool... Kind>
RW_DEVICE Welford<accum_t<T>> far_moments(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T, Kind...>& in,
                                          accum_t<T> scale, accum_t<T> mean) {
    using A = accum_t<T>;
    const A centre = widen(round_to<T>(mean));
    SumAndSquares<A> sums;
    reduce(row, axis_size, ctx, sums, [&](auto& fold, const auto& tile) {
        fold.join(fold_vectors<SumAndSquares>(
            tile, in, [&](int i, A v) { return tile.has(i) ? fused(v, scale, -centre) : A(0); }));
    });
    pjoin(sums, ctx);
    Welford<A> m = moments_of_sums(sums, axis_size, centre);
    // It cannot be negative, but its rounding can.
    m.squares[0] = m.squares[0] < A(0) ? A(0) : m.squares[0];
    return m;
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
    if constexpr (sizeof(T) == 2) {
        ScaledMoments<T> m{near_moments(row, axis_size, ctx, in, A(1)), A(1)};
        const bool suffice = sums_suffice(m.state);
        if (walks_again(row, !suffice, ctx)) {
            const bool safe = squares_are_safe(m.state.squares[0]);
            A mean = m.state.mean[0];
            if (walks_again(row, !safe, ctx)) {
                const A scale = safe_scale(row, axis_size, ctx, in, eps);
                m.scale = safe ? A(1) : scale;
                mean = near_moments(row, axis_size, ctx, in, m.scale).mean[0];
            }
            const Welford<A> far = far_moments(row, axis_size, ctx, in, m.scale, mean);
            m.state = suffice ? m.state : far;
        }
        return m;
    } else {
        ScaledMoments<T> m{moments(row, axis_size, ctx, in, A(1)), A(1)};
        const bool safe = squares_are_safe(m.state.squares[0]);
        if (walks_again(row, !safe, ctx)) {
            const A scale = safe_scale(row, axis_size, ctx, in, eps);
            m.scale = safe ? A(1) : scale;
            if (walks_again(row, m.scale != A(1), ctx)) {
                m.state = moments(row, axis_size, ctx, in, m.scale);
            }
        }
        return m;
    }
}

}  // namespace rowwise
