// Sums of the squares of a row, whatever its magnitude.
//
// Where the sum overflows or has lost terms to underflow, the row is walked again, scaled by a power
// of two near the inverse of its largest magnitude. The choice is made from joined states, so every
// thread of the row makes the same one.
#pragma once

#include <rowwise/rowwise.cuh>

namespace rowwise {

template <class A>
RW_DEVICE bool squares_are_safe(A sum_of_squares) {
    return sum_of_squares <= Limits<A>::largest() && sum_of_squares >= Limits<A>::small_square();
}

// A power of two that brings the row's largest magnitude near 1, or short of it where eps, which is
// scaled by its square, would overflow; 1 where no power does (a row of zeros, or with an infinity or
// a NaN).
template <class Ctx, class T, bool... Kind>
RW_DEVICE accum_t<T> safe_scale(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T, Kind...>& in,
                                double eps) {
    using A = accum_t<T>;
    Max<A> largest;
    reduce(row, axis_size, ctx, largest, [&](auto& fold, const auto& tile) {
        A values[Ctx::simd_width];
        in.load(tile, values);
#pragma unroll
        for (int i = 0; i < Ctx::simd_width; ++i) {
            values[i] = absolute(values[i]);
        }
        fold.accumulate(values, tile);
    });
    pjoin(largest, ctx);
    const A magnitude = largest.value();
    const bool scalable = magnitude > A(0) && magnitude <= Limits<A>::largest();
    if (!scalable) {
        return A(1);
    }
    // With eps at 2^80 beside it, what is left of the squares is lost in it in any case.
    const A eps_magnitude = square_root(static_cast<A>(eps)) * A(1.0 / (1ll << 40));
    return inverse_magnitude(max_of(magnitude, eps_magnitude));
}

// The sum of the squares of a row that is multiplied by `scale`.
template <class T>
struct ScaledSquares {
    accum_t<T> sum;
    accum_t<T> scale;
};

template <class Ctx, class T, bool... Kind>
RW_DEVICE accum_t<T> sum_of_squares(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T, Kind...>& in,
                                    accum_t<T> scale) {
    using A = accum_t<T>;
    SumOfSquares<A> state;
    reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
        fold.join(fold_vectors<SumOfSquares>(tile, in, [&](int, A v) { return v * scale; }));
    });
    pjoin(state, ctx);
    return state.value();
}

// The sum of the row as it is where that is safe, else of the row scaled so that it is.
template <class Ctx, class T, bool... Kind>
RW_DEVICE ScaledSquares<T> safe_sum_of_squares(const Row& row, i64 axis_size, Ctx& ctx,
                                               RowCache<Ctx, T, Kind...>& in, double eps) {
    using A = accum_t<T>;
    ScaledSquares<T> squares{sum_of_squares(row, axis_size, ctx, in, A(1)), A(1)};
    const bool safe = squares_are_safe(squares.sum);
    if (walks_again(row, !safe, ctx)) {
        const A scale = safe_scale(row, axis_size, ctx, in, eps);
        squares.scale = safe ? A(1) : scale;
        if (walks_again(row, squares.scale != A(1), ctx)) {
            squares.sum = sum_of_squares(row, axis_size, ctx, in, squares.scale);
        }
    }
    return squares;
}

}  // namespace rowwise
