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
    return (sum_of_squares <= Limits<A>::largest() && sum_of_squares >= Limits<A>::small_square()) ||
           is_nan(sum_of_squares);
}

// A power of two that brings the row's largest magnitude near 1; 1 where no power does (a row of
// zeros, or with an infinity or a NaN).
template <class Ctx, class T>
RW_DEVICE accum_t<T> safe_scale(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in) {
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
    return scalable ? inverse_magnitude(magnitude) : A(1);
}

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019).
template <class T>
struct RmsNormBody {
    using Element = T;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(SumOfSquares<A>);

    InputRows<T> x;
    T* y;
    const T* weight;
    double eps;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        constexpr int N = Ctx::simd_width;
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        A scale = A(1);
        A squares = sum_of_squares(row, axis_size, ctx, in, scale);
        if (!squares_are_safe(squares)) {
            scale = safe_scale(row, axis_size, ctx, in);
            if (scale != A(1)) {
                squares = sum_of_squares(row, axis_size, ctx, in, scale);
            }
        }
        const A mean = divide(squares, static_cast<A>(axis_size));
        const A root = square_root(mean + static_cast<A>(eps) * scale * scale);
        const A inverse = divide(A(1), root);
        OutputRow<T> out(row, axis_size, y);
        SideInput<T> weights(weight);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            A values[N];
            in.load(tile, values);
            emit(tile, out, [&](int i, A w) { return values[i] * scale * inverse * w; }, weights);
        });
    }

private:
    template <class Ctx>
    static RW_DEVICE A sum_of_squares(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in,
                                      A scale) {
        SumOfSquares<A> state;
        reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
            A values[Ctx::simd_width];
            in.load(tile, values);
#pragma unroll
            for (int i = 0; i < Ctx::simd_width; ++i) {
                values[i] = values[i] * scale;
            }
            fold.accumulate(values, tile);
        });
        pjoin(state, ctx);
        return state.value();
    }
};

// y = (x - mean) / sqrt(var + eps) * weight + bias, with the population variance (Ba, Kiros and
// Hinton, "Layer Normalization", 2016).
//
// Two passes over the cached row. The mean is a rounded number, so the residuals x - mean have a
// mean of their own, of the size of that rounding; it is taken off the variance and off every
// residual (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983, the
// corrected two-pass form). Without it a row far from 0 is off by its mean's last bit.
template <class T>
struct LayerNormBody {
    using Element = T;
    using A = accum_t<T>;
    using Residuals = Pair<Sum<A>, SumOfSquares<A>>;
    static constexpr int kStateBytes = sizeof(Residuals);

    InputRows<T> x;
    T* y;
    const T* weight;
    const T* bias;
    double eps;

    struct Moments {
        A mean;        // of the scaled row, rounded
        A correction;  // mean of the residuals
        A squares;     // sum of squares of the residuals
    };

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        constexpr int N = Ctx::simd_width;
        const A width = static_cast<A>(axis_size);
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        A scale = A(1);
        Moments m = moments(row, axis_size, ctx, in, scale);
        if (!squares_are_safe(m.squares)) {
            scale = safe_scale(row, axis_size, ctx, in);
            if (scale != A(1)) {
                m = moments(row, axis_size, ctx, in, scale);
            }
        }
        // The corrected sum of squares cannot be negative, but its rounding can.
        const A spread = fused(-m.correction * m.correction, width, m.squares);
        const A variance = divide(spread > A(0) || is_nan(spread) ? spread : A(0), width);
        const A root = square_root(variance + static_cast<A>(eps) * scale * scale);
        const A inverse = divide(A(1), root);
        OutputRow<T> out(row, axis_size, y);
        SideInput<T> weights(weight), biases(bias);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            A values[N];
            in.load(tile, values);
            emit(
                tile, out,
                [&](int i, A w, A b) {
                    const A centred = (values[i] * scale - m.mean) - m.correction;
                    return fused(centred * inverse, w, b);
                },
                weights, biases);
        });
    }

private:
    template <class Ctx>
    static RW_DEVICE Moments moments(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in,
                                     A scale) {
        constexpr int N = Ctx::simd_width;
        const A width = static_cast<A>(axis_size);
        Sum<A> total;
        reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
            A values[N];
            in.load(tile, values);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                values[i] = values[i] * scale;
            }
            fold.accumulate(values, tile);
        });
        pjoin(total, ctx);
        const A mean = divide(total.value(), width);
        Residuals residuals;
        reduce(row, axis_size, ctx, residuals, [&](auto& fold, const auto& tile) {
            A values[N];
            in.load(tile, values);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                values[i] = tile.has(i) ? values[i] * scale - mean : A(0);
            }
            fold.accumulate(values, tile);
        });
        pjoin(residuals, ctx);
        return {mean, divide(residuals.first.value(), width), residuals.second.value()};
    }
};

}  // namespace rowwise
