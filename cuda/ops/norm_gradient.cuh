// Bodies of the gradients of rms_norm and layer_norm: dx row by row, and over the rows of a band the sums
// that dweight and dbias are made of.
#pragma once

#include "norm.cuh"

namespace rowwise {

// What both are given.
template <class T>
struct NormGradientInputs {
    using A = accum_t<T>;

    InputRows<T> x;
    InputRows<T> grad;
    T* dx;
    A* sums;  // null where only dx is wanted
    const void* weight;
    bool weight_is_wide;
    double eps;
    i64 bands;

    RW_DEVICE AnySide<T> weights() const {
        return AnySide<T>(weight, weight_is_wide, A(1));
    }
};

// Calls f(e, x, g, t) for each element of a tile, t being the gradient of what the weight is multiplied with.
template <class In, class Grads, class TileT, class T, class F>
RW_DEVICE void each_with_gradient(const TileT& tile, In& in, Grads& grads, const AnySide<T>& weights, F f) {
    using A = accum_t<T>;
    constexpr int W = TileT::kVectorWidth;
    in.select(tile);
    grads.select(tile);
    const bool whole = tile.is_full() && weights.aligned();
#pragma unroll
    for (int j = 0; j < TileT::kVectors; ++j) {
        const auto part = tile.vector(j);
        const auto w = whole ? weights.load_whole(part) : weights.load(part);
        A x[W], g[W];
        in.vector(j, x);
        grads.vector(j, g);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            f(j * W + i, x[i], g[i], g[i] * w.at[i]);
        }
    }
}

// With r = 1 / sqrt(mean(x^2) + eps), h = x * r and t = weight * g:
// dx = r * (t - h * mean(h * t)), and dweight is the sum of g * h over all rows.
template <class T>
struct RmsNormGradientBody : NormGradientInputs<T> {
    using Element = T;
    using A = accum_t<T>;
    static constexpr bool kEmitsRow = true;
    // Two blocks a multiprocessor leave f64 too few registers (has_split_k of src/tuning.rs says so too).
    static constexpr int kMostSplitVectors = sizeof(T) < 8 ? 8 : 0;
    static constexpr bool kTakesColumns = false;
    static constexpr int kCachedRows = 2;
    static constexpr int kBandSums = 1;
    using State = Pair<SumOfSquares<A>, Sum<A>>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {2, 3, 3, 3, 3};

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx,
                              BandSums<Ctx, T, kBandSums>& sums) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, this->x, T{});
        RowCache<Ctx, T, true> grads(row, axis_size, ctx, this->grad, T{}, 1);
        const AnySide<T> weights = this->weights();
        const A n = static_cast<A>(axis_size);
        const auto fold_row = [&](A factor) {
            State state;
            reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
                constexpr int W = kVectorElements<T>;
                auto squares = SumOfSquares<A, W>::identity();
                auto along = Sum<A, W>::identity();
                each_with_gradient(tile, in, grads, weights, [&](int e, A v, A, A t) {
                    const A scaled = v * factor;
                    squares.acc[e % W] = fused(scaled, scaled, squares.acc[e % W]);
                    along.acc[e % W] = fused(scaled, t, along.acc[e % W]);
                });
                fold.join(State::of(squares.reduce(), along.reduce()));
            });
            pjoin(state, ctx);
            return state;
        };
        A scale = A(1);
        State state = fold_row(scale);
        if (!squares_are_safe(state.first.value())) {
            scale = safe_scale(row, axis_size, ctx, in, this->eps);
            state = fold_row(scale);
        }
        const A inverse = inverse_root(divide(state.first.value(), n), this->eps, scale);
        A mean = divide(state.second.value(), n) * inverse;
        const A along = absolute(state.second.value());
        if (!(along <= Limits<A>::largest()) || (along > A(0) && along < Limits<A>::small_square())) {
            // Products of large gradients with large values, or of small with small: of normalised values.
            // In two steps, since one factor may be no number.
            Sum<A> again;
            reduce(row, axis_size, ctx, again, [&](auto& fold, const auto& tile) {
                Sum<A> part = Sum<A>::identity();
                each_with_gradient(tile, in, grads, weights, [&](int, A v, A, A t) {
                    part.acc[0] = fused(v * scale * inverse, t, part.acc[0]);
                });
                fold.join(part);
            });
            pjoin(again, ctx);
            mean = divide(again.value(), n);
        }
        OutputRow<Ctx, T> out(row, axis_size, ctx, this->dx);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            grads.select(tile);
            sums.open(tile);
            emit(
                tile, out,
                [&](int e, A w) {
                    const A h = in.element(e) * scale * inverse;
                    const A g = grads.element(e);
                    if (row.exists) {
                        sums.add_product(0, e, g, h);
                    }
                    return fused(-h, mean, g * w) * inverse * scale;
                },
                weights);
            sums.close(tile);
        });
        sums.end_row();
    }
};

// With r = 1 / sqrt(var + eps), h = (x - mean) * r and t = weight * g:
// dx = r * (t - mean(t) - h * mean(h * t)); dweight and dbias are the sums of g * h and of g over all rows.
template <class T>
struct LayerNormGradientBody : NormGradientInputs<T> {
    using Element = T;
    using A = accum_t<T>;
    static constexpr bool kEmitsRow = true;
    // And f32.
    static constexpr int kMostSplitVectors = sizeof(T) < 4 ? 8 : 0;
    static constexpr bool kTakesColumns = false;
    static constexpr int kCachedRows = 2;
    static constexpr int kBandSums = 2;
    using Means = Pair<Sum<A>, Sum<A>>;
    static constexpr int kStateBytes = sizeof(Slot<Welford<A>>);
    static constexpr Occupancy kOccupancy = {2, 2, 2, 2, 2};

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx,
                              BandSums<Ctx, T, kBandSums>& sums) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, this->x, T{});
        RowCache<Ctx, T, true> grads(row, axis_size, ctx, this->grad, T{}, 1);
        const AnySide<T> weights = this->weights();
        const Centring<A> c = centring(row, axis_size, ctx, in, this->eps);
        const A rest_shift = -c.rest * c.inverse;
        const auto normalised = [&](A v) {
            return fused(fused(v, c.scale, -c.mean), c.inverse, rest_shift);
        };
        Means totals;
        reduce(row, axis_size, ctx, totals, [&](auto& fold, const auto& tile) {
            constexpr int W = kVectorElements<T>;
            auto total = Sum<A, W>::identity();
            auto along = Sum<A, W>::identity();
            // Past the end of the row t is 0.
            each_with_gradient(tile, in, grads, weights, [&](int e, A v, A, A t) {
                total.acc[e % W] += t;
                along.acc[e % W] = fused(normalised(v), t, along.acc[e % W]);
            });
            fold.join(Means::of(total.reduce(), along.reduce()));
        });
        pjoin(totals, ctx);
        const A n = static_cast<A>(axis_size);
        const A mean = divide(totals.first.value(), n);
        const A along = divide(totals.second.value(), n);
        OutputRow<Ctx, T> out(row, axis_size, ctx, this->dx);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            grads.select(tile);
            sums.open(tile);
            emit(
                tile, out,
                [&](int e, A w) {
                    const A h = normalised(in.element(e));
                    const A g = grads.element(e);
                    if (row.exists) {
                        sums.add_product(0, e, g, h);
                        sums.add(1, e, g);
                    }
                    return fused(-h, along, fused(g, w, -mean)) * c.inverse * c.scale;
                },
                weights);
            sums.close(tile);
        });
        sums.end_row();
    }
};

}  // namespace rowwise
