// Bodies of rms_norm and layer_norm.
//
// Both take squares of the row. Where their sum overflows or has lost terms to underflow, the row is
// walked again, scaled by a power of two near the inverse of its largest magnitude. The choice is
// made from joined states, so every thread of the row makes the same one.
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
template <class Ctx, class T>
RW_DEVICE accum_t<T> safe_scale(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in,
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

// 1 / sqrt(mean_square + eps) of a row that was scaled by `scale`. Where eps vanishes beside the
// scale and the mean square is 0, so are all residuals: the largest number keeps their products 0.
template <class A>
RW_DEVICE A inverse_root(A mean_square, double eps, A scale) {
    const A inverse = inverse_square_root(mean_square + static_cast<A>(eps) * scale * scale);
    return eps > 0 && inverse > Limits<A>::largest() ? Limits<A>::largest() : inverse;
}

template <class A, int W = 1>
using SumAndSquares = Pair<Sum<A>, SumOfSquares<A>, W>;

// Folds a tile vector by vector, each lane of the vector in a sum of its own: no more than one
// vector of `value(e, element e of the row)` is held at a time.
template <template <class, int> class Op, class Ctx, class T, class TileT, class F>
RW_DEVICE typename Op<accum_t<T>, 1>::Single fold_vectors(const TileT& tile, RowCache<Ctx, T>& in,
                                                          F value) {
    constexpr int W = TileT::kVectorWidth;
    in.select(tile);
    auto lanes = Op<accum_t<T>, W>::identity();
#pragma unroll
    for (int j = 0; j < TileT::kVectors; ++j) {
        accum_t<T> values[W];
        in.vector(j, values);
#pragma unroll
        for (int w = 0; w < W; ++w) {
            values[w] = value(j * W + w, values[w]);
        }
        lanes.accumulate(values, Positions<TileT>{tile});
    }
    return lanes.reduce();
}

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019).
template <class T>
struct RmsNormBody {
    using Element = T;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(SumOfSquares<A>);
    static constexpr Occupancy kOccupancy = {3, 4, 5, 3, 3};

    InputRows<T> x;
    T* y;
    const T* weight;
    double eps;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        A scale = A(1);
        A squares = sum_of_squares(row, axis_size, ctx, in, scale);
        if (!squares_are_safe(squares)) {
            scale = safe_scale(row, axis_size, ctx, in, eps);
            if (scale != A(1)) {
                squares = sum_of_squares(row, axis_size, ctx, in, scale);
            }
        }
        const A mean = divide(squares, static_cast<A>(axis_size));
        const A inverse = inverse_root(mean, eps, scale);
        OutputRow<T> out(row, axis_size, y);
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

private:
    template <class Ctx>
    static RW_DEVICE A sum_of_squares(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in,
                                      A scale) {
        SumOfSquares<A> state;
        reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
            fold.join(fold_vectors<SumOfSquares>(tile, in, [&](int, A v) { return v * scale; }));
        });
        pjoin(state, ctx);
        return state.value();
    }
};

// y = (x - mean) / sqrt(var + eps) * weight + bias, with the population variance (Ba, Kiros and
// Hinton, "Layer Normalization", 2016).
//
// The variance is two-pass within a thread's tile, and the tiles' moments are joined (Welford): one
// join across threads, where two passes over the whole row would take two.
template <class T>
struct LayerNormBody {
    using Element = T;
    using A = accum_t<T>;
    using State = Welford<A>;
    static constexpr int kStateBytes = sizeof(State);
    static constexpr Occupancy kOccupancy = {2, 4, 4, 3, 2};
    // The mean of a tile is a rounded number. For wide types it is corrected by the mean of the
    // residuals; for half types, whose results are rounded far more coarsely, only where the row is
    // far from 0.
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
        OutputRow<T> out(row, axis_size, y);
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

private:
    template <bool Corrected, class Ctx>
    static RW_DEVICE State moments(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in,
                                   A scale) {
        State state;
        reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
            State part;
            part.count[0] = static_cast<A>(tile.count());
            const A total =
                fold_vectors<Sum>(tile, in, [&](int, A v) { return v * scale; }).value();
            // By division where the count is no power of two: a constant row has its constant for
            // mean, exactly.
            const bool full = tile.is_full();
            const auto per_element = [&](A sum) {
                return full ? sum * (A(1) / A(Ctx::simd_width))
                            : divide(sum, max_of(part.count[0], A(1)));
            };
            const A mean = per_element(total);
            const auto residual = [&](int, A v) { return fused(v, scale, -mean); };
            // The padding has no residual.
            const auto residual_or_0 = [&](int i, A v) {
                return tile.has(i) ? residual(i, v) : A(0);
            };
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
            fold.join(part);
        });
        pjoin(state, ctx);
        return state;
    }
};

}  // namespace rowwise
