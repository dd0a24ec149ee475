// Bodies of rms_norm and layer_norm.
#pragma once

#include "moments.cuh"

namespace rowwise {

// 1 / sqrt(mean_square + eps) of a row that was scaled by `scale`. Where eps vanishes beside the
// scale and the mean square is 0, so are all residuals: the largest number keeps their products 0.
template <class A>
RW_DEVICE A inverse_root(A mean_square, double eps, A scale) {
    const A inverse = inverse_square_root(mean_square + static_cast<A>(eps) * scale * scale);
    return eps > 0 && inverse > Limits<A>::largest() ? Limits<A>::largest() : inverse;
}

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019).
template <class T>
struct RmsNormBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kMostSplitVectors = 8;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<SumOfSquares<A>>);
    static constexpr Occupancy kOccupancy = {3, 4, 5, 3, 3};

    InputRows<T> x;
    T* y;
    const T* weight;
    double eps;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        const ScaledSquares<T> squares = safe_sum_of_squares(row, axis_size, ctx, in, eps);
        const A scale = squares.scale;
        const A mean = divide(squares.sum, static_cast<A>(axis_size));
        const A inverse = inverse_root(mean, eps, scale);
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        SideInput<T> weights(weight);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            if (scale == A(1)) {
                emit(tile, out, [&](int i, A w) { return in.element(i) * inverse * w; }, weights);
            } else {
                emit(tile, out, [&](int i, A w) { return in.element(i) * scale * inverse * w; },
                     weights);
            }
        });
    }
};

// y = (x - mean) / sqrt(var + eps) * weight + bias, with the population variance (Ba, Kiros and
// Hinton, "Layer Normalization", 2016).
template <class T>
struct LayerNormBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kMostSplitVectors = 8;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    using State = Welford<A>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {2, 4, 4, 3, 2};
    // Of half types, whose results are rounded far more coarsely, only where the row is far from 0.
    static constexpr bool kCorrected = sizeof(T) > 2;
    InputRows<T> x;
    T* y;
    const T* weight;
    const T* bias;
    double eps;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        A scale = A(1);
        State m = moments<kCorrected>(row, axis_size, ctx, in, scale);
        // Squares are better taken of a scaled row, or the row is so far from 0 for its spread that the
        // last bits of the tiles' means tell.
        const bool is_safe = squares_are_safe(m.squares[0]);
        const bool is_far = m.mean[0] * m.mean[0] * m.count[0] > A(16) * m.squares[0];
        if (!is_safe || (!kCorrected && is_far)) {
            if (!is_safe) {
                scale = safe_scale(row, axis_size, ctx, in, eps);
            }
            m = moments<true>(row, axis_size, ctx, in, scale);
        }
        // The mean as one number, and what that leaves out.
        const A mean = m.mean[0] + m.rest[0];
        const A rest = (m.mean[0] - mean) + m.rest[0];
        const A inverse = inverse_root(divide(m.squares[0], m.count[0]), eps, scale);
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        SideInput<T> weights(weight), biases(bias);
        const A shift = -mean * inverse;
        const A rest_shift = -rest * inverse;
        // A row that is not far from 0 for its spread, as most are, is normalised in one step. Only half
        // types, whose kernels the instructions bound, take it.
        const bool is_near = scale == A(1) && absolute(shift) <= A(0.5);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            if (sizeof(T) == 2 && is_near) {
                emit(
                    tile, out,
                    [&](int i, A w, A b) { return fused(fused(in.element(i), inverse, shift), w, b); },
                    weights, biases);
            } else {
                emit(
                    tile, out,
                    [&](int i, A w, A b) {
                        const A centred = fused(in.element(i), scale, -mean);
                        return fused(fused(centred, inverse, rest_shift), w, b);
                    },
                    weights, biases);
            }
        });
    }
};

}  // namespace rowwise
