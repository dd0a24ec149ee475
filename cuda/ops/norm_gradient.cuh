// Bodies of the gradients of rms_norm and layer_norm: dx row by row, and over the rows of a band the sums
// that dweight and dbias are made of.
#pragma once

#include "norm.cuh"

namespace rowwise {

// Sums side by side in a thread while it folds a tile. 1, 2 and as many as a vector has elements spill alike;
// their speed has not been compared.
constexpr int kSumLanes = 2;

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
    bool is_length;  // what rms norm divides by
    double eps;
    i64 bands;

    template <class Ctx>
    using Rows = RowCache<Ctx, T, false, false, true>;
    template <class Ctx>
    using Grads = RowCache<Ctx, T, true, false, true>;
    // The sums leave no registers for a shift: with it these kernels spill 160 bytes.
    template <class Ctx>
    using Out = OutputRow<Ctx, T, true>;

    template <class Ctx>
    RW_DEVICE Rows<Ctx> rows(const Row& row, i64 axis_size, Ctx& ctx) const {
        return {row, axis_size, ctx, x, T{}};
    }
    template <class Ctx>
    RW_DEVICE Grads<Ctx> grads(const Row& row, i64 axis_size, Ctx& ctx) const {
        return {row, axis_size, ctx, grad, T{}, 1};
    }
    template <class Ctx>
    RW_DEVICE void stage(const Row& row, i64 axis_size, Ctx& ctx, int turn) const {
        const auto tile = ctx.own_tile(row, axis_size);
        rows(row, axis_size, ctx).stage(tile, turn);
        grads(row, axis_size, ctx).stage(tile, turn);
    }

    RW_DEVICE AnySide<T> weights() const {
        return AnySide<T>(weight, weight_is_wide, A(1));
    }
    template <class Ctx>
    RW_DEVICE void stage_weights(const Ctx& ctx, const typename Ctx::TileT& tile) const {
        const AnySide<T> all = weights();
        Word4* place = ctx.ahead.template side<Ctx::TileT::kVectors>();
#pragma unroll
        for (int j = 0; j < Ctx::TileT::kVectors; ++j) {
            const auto w = all.load(tile.vector(j));
#pragma unroll
            for (int i = 0; i < kSideVectors; ++i) {
                A part[kVectorElements<A>];
#pragma unroll
                for (int e = 0; e < kVectorElements<A>; ++e) {
                    part[e] = w.at[i * kVectorElements<A> + e];
                }
                Vector<A> packed;
                packed.set(part);
                place[(j * kSideVectors + i) * kWarpSize] = packed.raw;
            }
        }
    }
    // Element e of the weight's tile, which a resident thread has staged.
    template <class Ctx>
    RW_DEVICE A staged_weight(const Ctx& ctx, int e) const {
        constexpr int P = kVectorElements<A>;
        Vector<A> v;
        v.raw = ctx.ahead.template side<Ctx::TileT::kVectors>()[e / P * kWarpSize];
        return v.get(e % P);
    }

    // Calls f(w, x, g, t) for each element of a tile, w being its place in its vector and t the gradient of what
    // the weight is multiplied with.
    template <class Ctx, class F>
    RW_DEVICE void each(const typename Ctx::TileT& tile, const Ctx& ctx, Rows<Ctx>& in, Grads<Ctx>& grads,
                        F f) const {
        in.select(tile);
        grads.select(tile);
#pragma unroll
        for (int j = 0; j < Ctx::TileT::kVectors; ++j) {
            each_of_vector(tile, ctx, in, grads, j, f);
        }
    }
    // The same where rows seldom come: in a loop, lest all others pay for its registers.
    template <class Ctx, class F>
    RW_DEVICE void each_seldom(const typename Ctx::TileT& tile, const Ctx& ctx, Rows<Ctx>& in,
                               Grads<Ctx>& grads, F f) const {
        in.select(tile);
        grads.select(tile);
        if constexpr (Ctx::kResident) {
#pragma unroll 1
            for (int j = 0; j < Ctx::TileT::kVectors; ++j) {
                each_of_vector(tile, ctx, in, grads, j, f);
            }
        } else {
            each(tile, ctx, in, grads, f);
        }
    }

    // Emits f(e, w) for each element of a tile, w being its weight.
    template <class Ctx, class F>
    RW_DEVICE void emit_weighted(const typename Ctx::TileT& tile, const Ctx& ctx, const Out<Ctx>& out,
                                 F f) const {
        if constexpr (Ctx::kResident) {
            emit(tile, out, [&](int e) { return f(e, staged_weight(ctx, e)); });
        } else {
            emit(tile, out, f, weights());
        }
    }

    // The sum over a row of t * h, with the normalised value h of each element.
    template <class Ctx, class F>
    RW_DEVICE A sum_along(const Row& row, i64 axis_size, Ctx& ctx, Rows<Ctx>& in, Grads<Ctx>& grads,
                          F normalised) const {
        Sum<A> total;
        reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
            Sum<A> part = Sum<A>::identity();
            each_seldom(tile, ctx, in, grads, [&](int, A v, A, A t) {
                part.acc[0] = fused(normalised(v), t, part.acc[0]);
            });
            fold.join(part);
        });
        pjoin(total, ctx);
        return total.value();
    }

private:
    template <class Ctx, class F>
    RW_DEVICE void each_of_vector(const typename Ctx::TileT& tile, const Ctx& ctx, Rows<Ctx>& in,
                                  Grads<Ctx>& grads, int j, F f) const {
        constexpr int W = kVectorElements<T>;
        A x[W], g[W], w[W];
        in.hold_back(j);
        in.vector(j, x);
        grads.vector(j, g);
        if constexpr (Ctx::kResident) {
#pragma unroll
            for (int i = 0; i < W; ++i) {
                w[i] = staged_weight(ctx, j * W + i);
            }
        } else {
            const AnySide<T> all = weights();
            const auto part = tile.vector(j);
            const auto loaded = tile.is_full() && all.aligned() ? all.load_whole(part) : all.load(part);
#pragma unroll
            for (int i = 0; i < W; ++i) {
                w[i] = loaded.at[i];
            }
        }
#pragma unroll
        for (int i = 0; i < W; ++i) {
            f(i, x[i], g[i], g[i] * w[i]);
        }
    }

    // Vectors of what is computed in, for one of T.
    static constexpr int kSideVectors = sizeof(A) / sizeof(T);
};

// Whether a sum of products with values as they are is one of normalised values times a number: not where
// large gradients met large values, or small ones small ones.
template <class A>
RW_DEVICE bool products_are_safe(A sum) {
    const A magnitude = absolute(sum);
    return magnitude <= Limits<A>::largest() && (magnitude == A(0) || magnitude >= Limits<A>::small_square());
}

// With r = 1 / sqrt(mean(x^2) + eps), h = x * r and t = weight * g:
// dx = r * (t - h * mean(h * t)), and dweight is the sum of g * h over all rows. Or, of rows divided by their
// length, with a sum in place of the mean; and of those divided by eps r * t.
template <class T>
struct RmsNormGradientBody : NormGradientInputs<T> {
    using Element = T;
    using A = accum_t<T>;
    static constexpr bool kEmitsRow = true;
    // Blocks that share a multiprocessor leave too few registers (has_split_k of src/tuning.rs says so too).
    static constexpr int kMostSplitVectors = 0;
    static constexpr bool kTakesColumns = false;
    static constexpr int kCachedRows = 2;
    static constexpr int kBandSums = 1;
    using State = Pair<SumOfSquares<A>, Sum<A>>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {2, 2, 2, 2, 2, 1};
    static constexpr int kF64Blocks = 1;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx,
                              BandSums<Ctx, T, kBandSums>& sums) const {
        auto in = this->rows(row, axis_size, ctx);
        auto grads = this->grads(row, axis_size, ctx);
        const auto fold_row = [&](A factor, auto each) {
            State state;
            reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
                constexpr int W = kSumLanes;
                auto squares = SumOfSquares<A, W>::identity();
                auto along = Sum<A, W>::identity();
                each(tile, [&](int e, A v, A, A t) {
                    const A scaled = v * factor;
                    squares.acc[e % W] = fused(scaled, scaled, squares.acc[e % W]);
                    along.acc[e % W] = fused(scaled, t, along.acc[e % W]);
                });
                fold.join(State::of(squares.reduce(), along.reduce()));
            });
            pjoin(state, ctx);
            return state;
        };
        const Divisor<A> divisor{this->is_length, this->eps};
        A scale = A(1);
        State state =
            fold_row(A(1), [&](const auto& tile, auto f) { this->each(tile, ctx, in, grads, f); });
        if (!squares_are_safe(state.first.value())) {
            scale = safe_scale(row, axis_size, ctx, in, divisor.squared_eps());
            state = fold_row(
                scale, [&](const auto& tile, auto f) { this->each_seldom(tile, ctx, in, grads, f); });
        }
        const A n = divisor.count(axis_size);
        const A square = divide(state.first.value(), n);
        const A inverse = divisor.inverse(square, scale);
        // In two steps, since one factor may be no number.
        const auto normalised = [&](A v) { return v * scale * inverse; };
        A along = state.second.value() * inverse;
        if (!products_are_safe(state.second.value())) {
            along = this->sum_along(row, axis_size, ctx, in, grads, normalised);
        }
        const A mean = divisor.is_short(square, scale) ? A(0) : divide(along, n);
        typename NormGradientInputs<T>::template Out<Ctx> out(row, axis_size, ctx, this->dx);
        const auto emit_row = [&](auto hat, A after) {
            reduce(row, axis_size, ctx, [&](const auto& tile) {
                in.select(tile);
                grads.select(tile);
                sums.open(tile);
                this->emit_weighted(tile, ctx, out, [&](int e, A w) {
                    if (e % kVectorElements<T> == 0) {
                        in.hold_back(e / kVectorElements<T>);
                    }
                    const A h = hat(in.element(e));
                    const A g = grads.element(e);
                    if (row.exists) {
                        sums.add_product(0, e, g, h);
                    }
                    return fused(-h, mean, g * w) * inverse * after;
                });
                sums.close(tile);
            });
        };
        // Few rows are scaled: the others are not to pay for it.
        if (scale == A(1)) {
            emit_row([&](A v) { return v * inverse; }, A(1));
        } else {
            emit_row(normalised, scale);
        }
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
    static constexpr int kMostSplitVectors = 0;
    static constexpr bool kTakesColumns = false;
    static constexpr int kCachedRows = 2;
    static constexpr int kBandSums = 2;
    using State = CrossMoments<A>;
    using RawState = Pair<SumAndSquares<A>, Pair<Sum<A>, Sum<A>>>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {2, 2, 2, 2, 2, 1};
    static constexpr int kF64Blocks = 1;

    // Sums of x, x^2, t and t * x, where near_moments would do.
    template <class Ctx, class In, class Grads>
    RW_DEVICE State fold_near(const Row& row, i64 axis_size, Ctx& ctx, In& in, Grads& grads) const {
        RawState sums;
        reduce(row, axis_size, ctx, sums, [&](auto& fold, const auto& tile) {
            constexpr int W = kSumLanes;
            auto values = Sum<A, W>::identity();
            auto squares = SumOfSquares<A, W>::identity();
            auto total = Sum<A, W>::identity();
            auto along = Sum<A, W>::identity();
            this->each(tile, ctx, in, grads, [&](int e, A v, A, A t) {
                values.acc[e % W] += v;
                squares.acc[e % W] = fused(v, v, squares.acc[e % W]);
                total.acc[e % W] += t;
                along.acc[e % W] = fused(v, t, along.acc[e % W]);
            });
            fold.join(RawState::of(SumAndSquares<A>::of(values.reduce(), squares.reduce()),
                                   Pair<Sum<A>, Sum<A>>::of(total.reduce(), along.reduce())));
        });
        pjoin(sums, ctx);
        const Welford<A> m = moments_of_sums(sums.first, axis_size);
        const A t = sums.second.first.value();
        return State::of(m, t, fused(-t, m.mean[0], sums.second.second.value()));
    }

    // One walk and one join, where the sums of h * t would have to wait for the mean.
    template <class Ctx, class In, class Grads>
    RW_DEVICE State fold_row(const Row& row, i64 axis_size, Ctx& ctx, In& in, Grads& grads, A scale) const {
        State state;
        reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
            constexpr int W = kSumLanes;
            const Welford<A> moments = tile_moments(tile, in, scale);
            auto total = Sum<A, W>::identity();
            auto along = Sum<A, W>::identity();
            // Past the end of the row t is 0.
            const auto take = [&](int e, A v, A, A t) {
                total.acc[e % W] += t;
                along.acc[e % W] = fused(fused(v, scale, -moments.mean[0]), t, along.acc[e % W]);
            };
            if constexpr (sizeof(T) == 2) {
                this->each_seldom(tile, ctx, in, grads, take);
            } else {
                this->each(tile, ctx, in, grads, take);
            }
            const A t = total.reduce().value();
            fold.join(State::of(moments, t, fused(-t, moments.rest[0], along.reduce().value())));
        });
        pjoin(state, ctx);
        return state;
    }

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx,
                              BandSums<Ctx, T, kBandSums>& sums) const {
        constexpr bool kCorrected = sizeof(T) > 2;
        auto in = this->rows(row, axis_size, ctx);
        auto grads = this->grads(row, axis_size, ctx);
        A scale = A(1);
        State state;
        if constexpr (kCorrected) {
            state = fold_row(row, axis_size, ctx, in, grads, scale);
        } else {
            state = fold_near(row, axis_size, ctx, in, grads);
        }
        if (kCorrected ? !squares_are_safe(state.moments.squares[0]) : !sums_suffice(state.moments)) {
            if (!squares_are_safe(state.moments.squares[0])) {
                scale = safe_scale(row, axis_size, ctx, in, this->eps);
            }
            state = fold_row(row, axis_size, ctx, in, grads, scale);
        }
        const Centring<A> c = centring_of(state.moments, scale, this->eps);
        const A rest_shift = -c.rest * c.inverse;
        const auto normalised = [&](A v) {
            return fused(fused(v, c.scale, -c.mean), c.inverse, rest_shift);
        };
        A along = state.along * c.inverse;
        if (!products_are_safe(state.along)) {
            along = this->sum_along(row, axis_size, ctx, in, grads, normalised);
        }
        const A n = static_cast<A>(axis_size);
        const A mean = divide(state.total, n);
        const A mean_along = divide(along, n);
        typename NormGradientInputs<T>::template Out<Ctx> out(row, axis_size, ctx, this->dx);
        const auto emit_row = [&](auto hat, A inverse, A after) {
            reduce(row, axis_size, ctx, [&](const auto& tile) {
                in.select(tile);
                grads.select(tile);
                sums.open(tile);
                this->emit_weighted(tile, ctx, out, [&](int e, A w) {
                    if (e % kVectorElements<T> == 0) {
                        in.hold_back(e / kVectorElements<T>);
                    }
                    const A h = hat(in.element(e));
                    const A g = grads.element(e);
                    if (row.exists) {
                        sums.add_product(0, e, g, h);
                        sums.add(1, e, g);
                    }
                    return fused(-h, mean_along, fused(g, w, -mean)) * inverse * after;
                });
                sums.close(tile);
            });
        };
        // Few rows are scaled: the others are not to pay for it. Nor are half types that are not far from 0 for
        // their spread, and whose results the instructions bound, for a mean in two parts.
        const A shift = -(c.mean + c.rest) * c.inverse;
        if (sizeof(T) == 2 && c.scale == A(1) && absolute(shift) <= A(0.5)) {
            emit_row([&](A v) { return fused(v, c.inverse, shift); }, c.inverse, A(1));
        } else {
            // Of a constant row eps may vanish beside the scale, and inverse is the largest number then.
            const bool is_flat = this->eps > 0 && c.inverse >= Limits<A>::largest();
            emit_row(normalised, is_flat ? inverse_square_root(static_cast<A>(this->eps)) : c.inverse,
                     is_flat ? A(1) : c.scale);
        }
        sums.end_row();
    }
};

}  // namespace rowwise
