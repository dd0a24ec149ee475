// The gradients of softmax and log-softmax.
#pragma once

#include "log_sum_exp.cuh"

namespace rowwise {

// dx = y * (g - sum(g * y)), or of the logarithm g - y * sum(g), with y made of x again: what a half type's
// y has lost, the sum would miss.
//
// One exponential an element, kept relative to the maximum of the thread's own tile, or of half types two, as in the
// softmax.
// A row whose softmax is NaN has a gradient of NaN.
template <class T, bool kLog>
struct SoftmaxGradientBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kCachedRows = 2;
    // Of f64, two rows of tiles of 8 vectors spill (src/tuning.rs).
    static constexpr int kMostVectors = sizeof(T) == 8 ? 4 : 0;
    static constexpr int kMostSplitVectors = sizeof(T) == 8 ? 4 : 8;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    using Exps = LogSumExpOf<T>;
    using State = WeightedLogSumExp<A, !kLog>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy =
        sizeof(T) == 2 ? Occupancy{3, 4, 4, 2, 2, 1} : Occupancy{2, 3, 3, 2, 2, 1};

    InputRows<T> x;
    InputRows<T> gradient;
    T* y;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, round_to<T>(-Limits<A>::infinity()));
        RowCache<Ctx, T, true> g(row, axis_size, ctx, gradient, T{}, 1);
        if constexpr (sizeof(T) == 2) {
            keeping_elements(row, axis_size, ctx, in, g);
        } else {
            keeping_exponentials(row, axis_size, ctx, in, g);
        }
    }

private:
    template <class Ctx>
    using Rows = RowCache<Ctx, T>;
    template <class Ctx>
    using Gradients = RowCache<Ctx, T, true>;

    template <int N>
    struct Exponentials {
        A terms[N];
        Exps state;
    };

    // What a tile of the gradient is made of, with the softmax of each element.
    static RW_DEVICE A along(A p, A g, A weight) {
        return kLog ? fused(-p, weight, g) : p * (g - weight);
    }

    template <class Ctx>
    RW_DEVICE void keeping_elements(const Row& row, i64 axis_size, Ctx& ctx, Rows<Ctx>& in,
                                    Gradients<Ctx>& g) const {
        constexpr int W = kVectorElements<T>;
        constexpr int kSums = W / 2;
        State total;
        reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
            using TileT = typename Ctx::TileT;
            in.select(tile);
            g.select(tile);
            Exps e;
            e.maximum[0] = in.maximum();
            const A shift = finite_shift(e.maximum[0]);
            auto sums = Sum<A, kSums>::identity();
            auto weights = Sum<A, kSums>::identity();
#pragma unroll
            for (int j = 0; j < TileT::kVectors; ++j) {
                A values[W], gradients[W];
                in.vector(j, values);
                g.vector(j, gradients);
#pragma unroll
                for (int w = 0; w < W; ++w) {
                    const A term = exp_short(values[w] - shift);
                    sums.acc[w % kSums] += term;
                    weights.acc[w % kSums] =
                        kLog ? weights.acc[w % kSums] + gradients[w] : fused(term, gradients[w], weights.acc[w % kSums]);
                }
            }
            e.sum[0] = sums.reduce().value();
            fold.join(State::of(e, weights.reduce().value()));
        });
        pjoin(total, ctx);
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        const A shift = finite_shift(total.maximum);
        const A inverse = reciprocal(total.sum);
        const A weight = kLog ? total.weight : total.weight * inverse;
        const A scaled = inverse * A(0x1p-64);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            g.select(tile);
            emit(tile, out, [&](int i) {
                return along(exp_scaled(in.element(i) - shift, A(64)) * scaled, g.element(i), weight);
            });
        });
    }

    template <class Ctx>
    RW_DEVICE void keeping_exponentials(const Row& row, i64 axis_size, Ctx& ctx, Rows<Ctx>& in,
                                        Gradients<Ctx>& g) const {
        constexpr int N = Ctx::simd_width;
        auto exponentials = cache_tiles(row, axis_size, ctx, [&](const typename Ctx::TileT& tile) {
            Exponentials<N> e;
            A values[N];
            in.load(tile, values);
            e.state = Exps::exponentials(values, e.terms);
            return e;
        });
        State total;
        reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
            const Exponentials<N>& e = exponentials(tile);
            A weights[N];
            g.load(tile, weights);
            if constexpr (!kLog) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    weights[i] = weights[i] * e.terms[i];
                }
            }
            fold.join(State::of(e.state, fold_halves<N>(weights, [](A a, A b) { return a + b; })));
        });
        pjoin(total, ctx);
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        const A shift = finite_shift(total.maximum);
        const A inverse = reciprocal(total.sum);
        const A weight = kLog ? total.weight : total.weight * inverse;
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            const Exponentials<N>& e = exponentials(tile);
            g.select(tile);
            const A scale = exp_nonpositive(e.state.maximum[0] - shift) * inverse;
            emit(tile, out, [&](int i) { return along(e.terms[i] * scale, g.element(i), weight); });
        });
    }
};

}  // namespace rowwise
