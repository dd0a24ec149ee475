// Softmax and log-softmax with options, and their gradients: scale, temperature, soft cap, masks and sinks, in
// the pass that the plain ones take.
#pragma once

#include <rowwise/rowwise.cuh>

namespace rowwise {

// tanh(x), NaN for NaN.
RW_DEVICE float hyperbolic_tangent(float x) {
    return tanhf(x);
}

// In f64 without the library's, whose divisions are calls: near 0 the Taylor series to x^17 (|x| < 1/8 leaves
// less than 2^-58), beyond (1 - e) / (1 + e) with e = exp(-2|x|).
RW_DEVICE double hyperbolic_tangent(double x) {
    constexpr double kSeries[] = {6404582.0 / 10854718875.0, -929569.0 / 638512875.0, 21844.0 / 6081075.0,
                                  -1382.0 / 155925.0,        62.0 / 2835.0,           -17.0 / 315.0,
                                  2.0 / 15.0,                -1.0 / 3.0};
    const double magnitude = fabs(x);
    const double square = x * x;
    double series = kSeries[0];
#pragma unroll
    for (int i = 1; i < 8; ++i) {
        series = fma(series, square, kSeries[i]);
    }
    const double near = fma(series * square, magnitude, magnitude);
    const double e = exp_nonpositive(-2.0 * magnitude);
    const double far = (1.0 - e) * reciprocal(1.0 + e);
    return copysign(magnitude < 0.125 ? near : far, x);
}

enum class MaskKind : int { kNone, kAdditive, kAdditiveF32, kKept };

// How the logits that a softmax is taken of are made of a row.
template <class T>
struct Logits {
    using A = accum_t<T>;

    A scale;
    A soft_cap;  // 0: none
    // Of a causal mask, how many queries follow each other, of which row i is i % queries; 0: no causal mask.
    i64 queries;
    MaskKind mask_kind;
    // Rows of elements of mask_kind's type, and one value a row; without data where left out.
    InputRows<u8> mask;
    InputRows<A> temperature;
    InputRows<A> sink;

    // Whether keys may be hidden: then a row of nothing but -inf is one of hidden keys, and its weights are 0.
    RW_DEVICE bool hides() const {
        return queries != 0 || mask_kind != MaskKind::kNone;
    }
};

// The logits of one row.
template <class Ctx, class T>
class RowLogits {
    using A = accum_t<T>;
    using TileT = typename Ctx::TileT;
    using Index = typename Ctx::Index;
    static constexpr int W = TileT::kVectorWidth;
    static constexpr int V = TileT::kVectors;

public:
    RW_DEVICE RowLogits(const Row& row, i64 axis_size, const Logits<T>& rules)
        : rules_(&rules), row_(row), factor_(rules.scale), visible_(static_cast<Index>(axis_size)) {
        const i64 index = row.exists ? row.index : 0;
        if (rules.temperature.data) {
            factor_ = divide(factor_, *rules.temperature.row(index));
        }
        if (rules.queries != 0) {
            const i64 query = remainder(index, rules.queries);
            const i64 seen = query + axis_size - rules.queries + 1;
            visible_ = static_cast<Index>(max_of<i64>(0, min_of<i64>(axis_size, seen)));
        }
        inverse_cap_ = rules.soft_cap != A(0) ? reciprocal(rules.soft_cap) : A(0);
    }

    // The derivative of a logit by the element that it is made of.
    RW_DEVICE A slope(A x) const {
        if (rules_->soft_cap == A(0)) {
            return factor_;
        }
        const A t = hyperbolic_tangent(x * factor_ * inverse_cap_);
        return factor_ * fused(-t, t, A(1));
    }

    // Those of a tile of `in`, which is selected; -inf past the end of the row and where a key is hidden.
    RW_DEVICE void of(const TileT& tile, const RowCache<Ctx, T>& in, A (&z)[W * V]) const {
#pragma unroll
        for (int e = 0; e < W * V; ++e) {
            z[e] = in.element(e) * factor_;
        }
        if (rules_->soft_cap != A(0)) {
#pragma unroll
            for (int e = 0; e < W * V; ++e) {
                z[e] = rules_->soft_cap * hyperbolic_tangent(z[e] * inverse_cap_);
            }
        }
        switch (rules_->mask_kind) {
            case MaskKind::kNone:
                break;
            case MaskKind::kAdditive:
                combine<T>(tile, z, [](A value, A mask) { return value + mask; });
                break;
            case MaskKind::kAdditiveF32:
                if constexpr (sizeof(T) == 2) {
                    combine<float>(tile, z, [](A value, A mask) { return value + mask; });
                }
                break;
            case MaskKind::kKept:
                combine<u8>(tile, z, [](A value, i32 kept) {
                    return kept != 0 ? value : -Limits<A>::infinity();
                });
                break;
        }
        const Index seen = visible_ - tile.first;
        const int left = seen < tile.left ? static_cast<int>(max_of<Index>(seen, 0)) : tile.left;
#pragma unroll
        for (int e = 0; e < W * V; ++e) {
            z[e] = tile.offset(e) < left ? z[e] : -Limits<A>::infinity();
        }
    }

    // Whether a key is hidden, given its logit.
    RW_DEVICE bool is_hidden(A z) const {
        return rules_->hides() && z == -Limits<A>::infinity();
    }

    RW_DEVICE bool has_sink() const {
        return rules_->sink.data != nullptr;
    }

    RW_DEVICE A sink() const {
        return *rules_->sink.row(row_.exists ? row_.index : 0);
    }

private:
    static RW_DEVICE i64 remainder(i64 index, i64 queries) {
        // In 64 bits a division is a call, around which registers spill: by steps that are exact in f64, whose
        // quotient is off by one at most.
        const i64 quotient =
            static_cast<i64>(static_cast<double>(index) * reciprocal(static_cast<double>(queries)));
        i64 rest = index - quotient * queries;
        rest = rest < 0 ? rest + queries : rest;
        return rest >= queries ? rest - queries : rest;
    }

    template <class E, class F>
    RW_DEVICE void combine(const TileT& tile, A (&z)[W * V], F f) const {
        InputRows<E> rows;
        rows.data = reinterpret_cast<const E*>(rules_->mask.data);
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            rows.sizes[i] = rules_->mask.sizes[i];
            rows.strides[i] = rules_->mask.strides[i];
        }
        rows.single_stride = rules_->mask.single_stride;
        rows.axis_stride = rules_->mask.axis_stride;
        rows.inner = 1;
        const OperandRow<E, W> mask(row_, rows);
        const bool whole = tile.goes_whole() && mask.aligned();
#pragma unroll
        for (int j = 0; j < V; ++j) {
            const auto part = tile.vector(j);
            const auto values = whole ? mask.load_whole(part) : mask.load(part);
#pragma unroll
            for (int w = 0; w < W; ++w) {
                z[j * W + w] = f(z[j * W + w], values.at[w]);
            }
        }
    }

    const Logits<T>* rules_;
    Row row_;
    A factor_;
    A inverse_cap_;
    Index visible_;  // keys before this one
};

// Softmax of the logits, or its logarithm. One exponential an element, kept as in the plain one; of the
// logarithm the logits are kept in their stead.
template <class T>
struct SoftmaxWithBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kMostVectors = sizeof(T) == 4 ? 8 : 4;
    static constexpr int kMostSplitVectors = kMostVectors;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    using State = LogSumExpOf<T>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {2, 3, 3, 2, 2, 1};

    InputRows<T> x;
    T* y;
    Logits<T> logits;
    bool log;

    template <int N>
    struct Kept {
        A terms[N];
        State state;
    };

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        constexpr int N = Ctx::simd_width;
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        const RowLogits<Ctx, T> made(row, axis_size, logits);
        auto kept = cache_tiles(row, axis_size, ctx, [&](const typename Ctx::TileT& tile) {
            Kept<N> k;
            A z[N];
            in.select(tile);
            made.of(tile, in, z);
            k.state = State::exponentials(z, k.terms);
            if (log) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    k.terms[i] = z[i];
                }
            }
            return k;
        });
        State total;
        reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
            fold.join(kept(tile).state);
        });
        pjoin(total, ctx);
        if (made.has_sink()) {
            State sink;
            sink.maximum[0] = made.sink();
            sink.sum[0] = A(1);
            total.join(sink);
        }
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        // Of a row without visible keys (or sink): weights of 0, logarithms of -inf.
        const bool hidden = made.is_hidden(total.maximum[0]);
        const A maximum = total.maximum[0];
        const A shift = finite_shift(maximum);
        const A inverse = hidden ? A(0) : reciprocal(total.sum[0]);
        const A log_sum = hidden ? A(0) : natural_log(total.sum[0]);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            const Kept<N>& k = kept(tile);
            if (log) {
                const A base = hidden ? A(0) : maximum;
                emit(tile, out, [&](int i) { return (k.terms[i] - base) - log_sum; });
            } else {
                const A scale = exp_nonpositive(k.state.maximum[0] - shift) * inverse;
                emit(tile, out, [&](int i) { return k.terms[i] * scale; });
            }
        });
    }
};

// dx of either, and what the sink's gradient is made of: -p_sink * sum(g * y), or of the logarithm
// -p_sink * sum(g). Logits are made again for the second walk: what would be kept of them, beside two rows,
// has no room in registers.
template <class T, bool kLog>
struct SoftmaxWithGradientBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kCachedRows = 2;
    static constexpr int kMostVectors = sizeof(T) == 4 ? 4 : 2;
    static constexpr int kMostSplitVectors = kMostVectors;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    using Exps = LogSumExpOf<T>;
    using State = WeightedLogSumExp<A, !kLog>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    // Of f32, the logarithm's kernel of the warp tier spills 4 bytes with 128 registers.
    static constexpr Occupancy kOccupancy = {kLog && sizeof(T) == 4 ? 1 : 2, 3, 3, 2, 2, 1};

    InputRows<T> x;
    InputRows<T> gradient;
    T* y;
    A* sink_gradient;
    Logits<T> logits;
    bool of_logits;  // the gradient of the logits instead: an additive mask's

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        constexpr int N = Ctx::simd_width;
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        RowCache<Ctx, T, true> g(row, axis_size, ctx, gradient, T{}, 1);
        const RowLogits<Ctx, T> made(row, axis_size, logits);
        State total;
        reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
            in.select(tile);
            g.select(tile);
            A z[N], terms[N];
            made.of(tile, in, z);
            const Exps exponentials = Exps::exponentials(z, terms);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const A weight = kLog ? g.element(i) : g.element(i) * terms[i];
                terms[i] = made.is_hidden(z[i]) ? A(0) : weight;
            }
            fold.join(State::of(exponentials, fold_halves<N>(terms, [](A a, A b) { return a + b; })));
        });
        pjoin(total, ctx);
        if (made.has_sink()) {
            State sink = State::identity();
            sink.maximum = made.sink();
            sink.sum = A(1);
            total.join(sink);
        }
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        const A shift = finite_shift(total.maximum);
        const A inverse = made.is_hidden(total.maximum) ? A(0) : reciprocal(total.sum);
        const A weight = kLog ? total.weight : total.weight * inverse;
        once(row, ctx, [&] {
            const A p = made.has_sink() ? exp_nonpositive(made.sink() - shift) * inverse : A(0);
            sink_gradient[row.index] = -p * weight;
        });
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            g.select(tile);
            A z[N];
            made.of(tile, in, z);
            emit(tile, out, [&](int i) {
                const A p = exp_nonpositive(z[i] - shift) * inverse;
                const A above = g.element(i);
                const A dz = kLog ? fused(-p, weight, above) : p * (above - weight);
                const A dx = of_logits ? dz : dz * made.slope(in.element(i));
                return made.is_hidden(z[i]) ? A(0) : dx;
            });
        });
    }
};

}  // namespace rowwise
