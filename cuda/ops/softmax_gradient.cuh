// The gradients of softmax and log-softmax.
#pragma once

#include <rowwise/rowwise.cuh>

namespace rowwise {

// dx = y * (g - sum(g * y)), or of the logarithm g - y * sum(g), with y made of x again: what a half type's
// y has lost, the sum would miss.
//
// One exponential an element, kept relative to the maximum of the thread's own tile, as in the softmax.
// A row whose softmax is NaN has a gradient of NaN.
template <class T, bool kLog>
struct SoftmaxGradientBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kCachedRows = 2;
    static constexpr int kMostVectors = sizeof(T) == 4 ? 8 : 4;
    static constexpr int kMostSplitVectors = kMostVectors;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    using Exps = LogSumExpOf<T>;
    using State = WeightedLogSumExp<A, !kLog>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {2, 3, 3, 2, 2, 1};

    InputRows<T> x;
    InputRows<T> gradient;
    T* y;

    template <int N>
    struct Exponentials {
        A terms[N];
        Exps state;
    };

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        constexpr int N = Ctx::simd_width;
        RowCache<Ctx, T> in(row, axis_size, ctx, x, round_to<T>(-Limits<A>::infinity()));
        RowCache<Ctx, T, true> g(row, axis_size, ctx, gradient, T{}, 1);
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
            emit(tile, out, [&](int i) {
                const A p = e.terms[i] * scale;
                return kLog ? fused(-p, weight, g.element(i)) : p * (g.element(i) - weight);
            });
        });
    }
};

}  // namespace rowwise
