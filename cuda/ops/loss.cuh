// Bodies of cross-entropy: the loss of a row, and its gradient with respect to the row's logits.
//
// Of logits x with targets t, in the terms of src/ops/loss.rs: z = cap * tanh(x / cap), or x; the weights
// w of V classes with sum W; e the label smoothing; k the coefficient of the z-loss;
// lse = log(sum(exp(z))), p = exp(z - lse):
//
//   loss     = (1 - e) w_t (lse - z_t) + e/V (W lse - sum(w z)) + k lse^2
//   dloss/dx = dz/dx (p ((1 - e) w_t + e/V W + 2 k lse) - e/V w - [j = t] (1 - e) w_t)
#pragma once

#include "log_sum_exp.cuh"

namespace rowwise {

// cap * tanh(x / cap), and its derivative.
template <class A>
struct Capped {
    A value;
    A slope;
};

// With e = exp(-2|u|), tanh|u| = (1 - e) / (1 + e), and its derivative 4e / (1 + e)^2. Near 0, where 1 - e
// loses digits, its Taylor series: the first term left out is below 2^-25 (f32) or 2^-56 of the first.
template <class A>
RW_DEVICE Capped<A> soft_capped(A x, A cap, A inverse_cap) {
    constexpr int kTerms = sizeof(A) == 4 ? 5 : 11;
    constexpr A kSeries[] = {A(1.0),
                             A(-1.0 / 3.0),
                             A(2.0 / 15.0),
                             A(-17.0 / 315.0),
                             A(62.0 / 2835.0),
                             A(-1382.0 / 155925.0),
                             A(21844.0 / 6081075.0),
                             A(-929569.0 / 638512875.0),
                             A(6404582.0 / 10854718875.0),
                             A(-443861162.0 / 1856156927625.0),
                             A(18888466084.0 / 194896477400625.0)};
    const A u = x * inverse_cap;
    const A magnitude = absolute(u);
    const A e = exp_nonpositive(A(-2) * magnitude);
    const A inverse = reciprocal(A(1) + e);
    const A square = u * u;
    A series = kSeries[kTerms - 1];
#pragma unroll
    for (int i = kTerms - 2; i >= 0; --i) {
        series = fused(series, square, kSeries[i]);
    }
    const A far = (A(1) - e) * inverse;
    const A bent = magnitude < A(0.25) ? u * series : (u < A(0) ? -far : far);
    return {cap * bent, A(4) * e * inverse * inverse};
}

// The target of a row.
template <class A>
struct Target {
    i64 index;
    bool ignored;
    bool counts;  // it is a class, and not ignored
    A weight;     // of that class
};

// What a row's gradient takes off the probabilities: smooth * w, and `hot` more at the target. A vector
// that all rows share but for one place; read like a SideInput of W elements a vector.
template <class A, int W>
class TargetDistribution {
    static constexpr int kParts = W / kVectorElements<A>;

public:
    struct Values {
        A at[W];
    };

    // Of the vectors of `tile`; -1 for no target.
    template <class TileT>
    RW_DEVICE TargetDistribution(const A* weights, A smooth, A hot, i64 target, const TileT& tile)
        : weights_(weights),
          aligned_(weights == nullptr || is_vector_aligned(weights)),
          smooth_(smooth),
          hot_(hot) {
        const i64 place = target - tile.first;
        const bool in_tile = place >= 0 && place < tile.left;
        // From what is left of the row at a vector, its place in the tile: one number for all vectors.
        left_at_target_ = in_tile ? tile.left - static_cast<int>(place) : tile.left + 1;
    }

    RW_DEVICE bool aligned() const {
        return aligned_;
    }

    template <class TileT>
    RW_DEVICE Values load(const TileT& part) const {
        Values v = constant();
        if (weights_ != nullptr) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                v.at[w] = w < part.left ? smooth_ * weights_[part.first + w] : A(0);
            }
        }
        return with_target(v, part);
    }

    template <class TileT>
    RW_DEVICE Values load_whole(const TileT& part) const {
        Values v = constant();
        if (weights_ != nullptr) {
#pragma unroll
            for (int k = 0; k < kParts; ++k) {
                Vector<A> raw;
                raw.raw = load_shared_by_rows(weights_ + part.first + k * kVectorElements<A>);
#pragma unroll
                for (int w = 0; w < kVectorElements<A>; ++w) {
                    v.at[k * kVectorElements<A> + w] = smooth_ * raw.get(w);
                }
            }
        }
        return with_target(v, part);
    }

private:
    RW_DEVICE Values constant() const {
        Values v;
#pragma unroll
        for (int w = 0; w < W; ++w) {
            v.at[w] = smooth_;
        }
        return v;
    }

    template <class TileT>
    RW_DEVICE Values with_target(Values v, const TileT& part) const {
        const int place = part.left - left_at_target_;
        if (place >= 0 && place < W) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                v.at[w] += w == place ? hot_ : A(0);
            }
        }
        return v;
    }

    const A* weights_;
    bool aligned_;
    A smooth_;
    A hot_;
    int left_at_target_;
};

// What both bodies know of the loss.
//
// Plain: the logits are the elements, and only the target's class is expected, which is what most models
// train with. Such rows are walked by as few instructions, in as few registers, as softmax's: tests for each
// element and a second exponential left cross-entropy with its gradient at 0.37 to 0.41 of copy speed (bf16,
// H200, 2026-11-30), and the registers of both in one kernel at 0.38 to 0.63. The other options are run-time
// values: the same for all threads, they cost a branch, and a body each would be compiled for every dtype and
// tier.
template <class T, bool Plain>
struct CrossEntropy {
    using Element = T;
    using A = accum_t<T>;
    using Exponentials = LogSumExpOf<T>;
    // With the weighted sum of the logits' distances from the target's, which only smoothing fills.
    using State = Pair<Exponentials, Sum<A>>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr bool kTakesColumns = false;
    InputRows<T> x;
    InputRows<u32> targets;  // words; two for an i64
    bool wide_targets;
    bool ignores;
    i64 ignore_index;
    i64 classes;
    const A* weights;     // of classes; null where all are 1
    const A* weight_sum;  // null where that is their number
    A keep;               // 1 - e
    A smooth;             // e / V
    A z_loss;
    A cap;  // 0: none
    A inverse_cap;

    RW_DEVICE Target<A> target(const Row& row) const {
        const u32* word = targets.row(row.exists ? row.index : 0);
        i64 index = word[0];
        if (wide_targets) {
            index = static_cast<i64>(static_cast<u64>(word[1]) << 32 | word[0]);
        }
        Target<A> t{index, ignores && index == ignore_index, false, A(0)};
        // Nothing is read at an index that is no class.
        t.counts = !t.ignored && index >= 0 && index < classes;
        if (t.counts) {
            t.weight = weights == nullptr ? A(1) : weights[index];
        }
        return t;
    }

    // The test stands between the elements: without it ptxas takes so many of them at once that it spills.
    RW_DEVICE Capped<A> capped(A value) const {
        if (inverse_cap != A(0)) {
            return soft_capped(value, cap, inverse_cap);
        }
        return {value, A(1)};
    }

    // The target's logit.
    RW_DEVICE A target_logit(const Row& row, const Target<A>& t) const {
        return t.counts ? capped(widen(x.row(row.exists ? row.index : 0)[t.index])).value : A(0);
    }

    // What distances of logits are summed from: rows of a large magnitude keep the digits in which their
    // elements differ.
    static RW_DEVICE A origin(A target_logit) {
        return absolute(target_logit) <= Limits<A>::largest() ? target_logit : A(0);
    }

    template <class Ctx>
    RW_DEVICE State fold_row(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in,
                             A origin) const {
        if constexpr (Plain) {
            return State::of(log_sum_exp(row, axis_size, ctx, in), Sum<A>::identity());
        } else {
            constexpr int N = Ctx::simd_width;
            State total;
            reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
                in.select(tile);
                // Before the exponentials and from the row itself, so that no more than one of its vectors is
                // held as numbers meanwhile.
                Sum<A> distances = Sum<A>::identity();
                if (smooth != A(0)) {
                    distances.acc[0] = weighted_distances(tile, in, origin);
                }
                A values[N];
                if (cap == A(0)) {
#pragma unroll
                    for (int i = 0; i < N; ++i) {
                        values[i] = in.element(i);
                    }
                } else {
#pragma unroll
                    for (int i = 0; i < N; ++i) {
                        if (i % kVectorElements<T> == 0) {
                            in.hold_back(i / kVectorElements<T>);
                        }
                        // The padding's exponential is 0, which that of its capped value would not be.
                        values[i] = tile.has(i) ? capped(in.element(i)).value : -Limits<A>::infinity();
                    }
                }
                fold.join(State::of(
                    Exponentials::of_tile(values, Positions<typename Ctx::TileT>{tile}), distances));
            });
            pjoin(total, ctx);
            return total;
        }
    }

    // The sum of w (z - origin) over a tile. A class without weight takes no part, not even with -inf.
    template <class Ctx>
    RW_DEVICE A weighted_distances(const typename Ctx::TileT& tile, RowCache<Ctx, T>& in,
                                   A origin) const {
        constexpr int W = kVectorElements<T>;
        const TargetDistribution<A, W> side(weights, A(1), A(0), -1, tile);
        A total = -A(0);
#pragma unroll
        for (int j = 0; j < Ctx::TileT::kVectors; ++j) {
            const auto part = tile.vector(j);
            const auto weight = part.left >= W && side.aligned() ? side.load_whole(part) : side.load(part);
            in.hold_back(j);
            A terms[W];
#pragma unroll
            for (int w = 0; w < W; ++w) {
                const A term = weight.at[w] * (capped(in.element(j * W + w)).value - origin);
                terms[w] = w < part.left && weight.at[w] != A(0) ? term : A(0);
            }
            total += fold_halves<W>(terms, [](A a, A b) { return a + b; });
        }
        return total;
    }

    RW_DEVICE A weight_total() const {
        return weight_sum == nullptr ? static_cast<A>(classes) : *weight_sum;
    }

    RW_DEVICE A loss(const Target<A>& t, A target_logit, const State& total) const {
        const A maximum = total.first.maximum[0];
        const A sum = total.first.sum[0];
        const A log_sum = natural_log(sum);
        const A hot = keep * t.weight;
        // Without weight, an infinite distance does not count; a NaN does, and a row that has no maximum.
        A value = hot == A(0) ? (sum - sum) + (maximum - maximum) : hot * ((maximum - target_logit) + log_sum);
        if (smooth != A(0)) {
            const A distance = (maximum - origin(target_logit)) + log_sum;
            value += smooth * fused(weight_total(), distance, -total.second.value());
        }
        if (z_loss != A(0)) {
            const A lse = maximum + log_sum;
            value += z_loss * lse * lse;
        }
        return value;
    }

    // What the loss of a row is that does not count: 0 of an ignored one.
    static RW_DEVICE A uncounted(const Target<A>& t) {
        return t.ignored ? A(0) : Limits<A>::nan();
    }

    // What exp(z - maximum) is multiplied with for the part of the gradient that goes with p.
    RW_DEVICE A factor(const Target<A>& t, const State& total) const {
        A all = fused(keep, t.weight, smooth * weight_total());
        if (z_loss != A(0)) {
            const A lse = total.first.maximum[0] + natural_log(total.first.sum[0]);
            all += A(2) * z_loss * lse;
        }
        return all * reciprocal(total.first.sum[0]);
    }
};

// Vectors a lane at most: plain ones keep what softmax keeps, the others have registers for no more than
// softmax with options (src/tuning.rs::chunk_shape). 0: as many as there are kernels for. The loss has the same
// bits with the gradient and without.
template <class T, bool Plain>
constexpr int loss_vectors = Plain ? 0 : (sizeof(T) == 4 ? 8 : 4);

// The loss of each row, and what its gradient can be computed from in one walk: the maximum of z, and the
// factor of exp(z - maximum). Rows that do not count are not read.
//
// Or, for rows of which only the target matters, the weight of each row's class.
template <class T, bool Plain>
struct CrossEntropyBody : CrossEntropy<T, Plain> {
    using A = accum_t<T>;
    static constexpr bool kEmitsRow = false;
    static constexpr int kMostVectors = loss_vectors<T, Plain>;
    // Of f64, tiles of 8 vectors spill where two blocks share a multiprocessor (src/tuning.rs).
    static constexpr int kMostSplitVectors = sizeof(T) == 8 ? 4 : 8;
    static constexpr Occupancy kOccupancy = Plain ? Occupancy{3, 5, 5, 3, 4} : Occupancy{2, 3, 3, 2, 2, 1};

    A* y;
    A* statistics;  // maxima of all rows, then factors; null for the weights of targets
    i64 rows;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        const Target<A> t = this->target(row);
        const bool walks = t.counts && statistics != nullptr;
        // As in the gradient, rows that do not count are read.
        const i64 size = statistics != nullptr ? axis_size : 0;
        const A target_logit = walks ? this->target_logit(row, t) : A(0);
        RowCache<Ctx, T> in(row, size, ctx, this->x, round_to<T>(-Limits<A>::infinity()));
        const auto total = this->fold_row(row, size, ctx, in, this->origin(target_logit));
        once(row, ctx, [&] {
            if (statistics == nullptr) {
                y[row.index] = t.weight;
                return;
            }
            y[row.index] = t.counts ? this->loss(t, target_logit, total) : this->uncounted(t);
            statistics[row.index] = total.first.maximum[0];
            statistics[rows + row.index] = this->factor(t, total);
        });
    }
};

// The gradient with respect to the logits, times a number for each row: with the loss, in one pass over the
// row, or from what CrossEntropyBody has left, in one walk without a join. The probabilities are never in
// memory.
//
// The gradient of a row that is ignored is 0 whatever it is multiplied with; that of a row whose target is
// no class is NaN.
template <class T, bool Plain>
struct CrossEntropyGradientBody : CrossEntropy<T, Plain> {
    using Loss = CrossEntropy<T, Plain>;
    using A = accum_t<T>;
    static constexpr bool kEmitsRow = true;
    static constexpr int kMostVectors = loss_vectors<T, Plain>;
    // Of f32, and of half types where plain, tiles of 8 vectors spill where two blocks share a multiprocessor
    // (src/tuning.rs).
    static constexpr int kMostSplitVectors = 4;
    // With one block more, a word or two spill.
    static constexpr Occupancy kOccupancy = !Plain           ? Occupancy{2, 2, 2, 2, 2, 1}
                                            : sizeof(T) == 2 ? Occupancy{3, 4, 5, 2, 3, 1}
                                                             : Occupancy{3, 3, 3, 2, 2, 1};
    static constexpr int kF64Blocks = 1;

    T* y;
    A* losses;
    InputRows<A> scales;   // 1 where null
    InputRows<A> maxima;   // null where the row is to be folded
    InputRows<A> factors;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        const Target<A> t = this->target(row);
        // Whether or not it counts: waiting for the target to know would cost every other row more.
        RowCache<Ctx, T> in(row, axis_size, ctx, this->x, round_to<T>(-Limits<A>::infinity()));
        if constexpr (Plain) {
            plain(row, axis_size, ctx, t, in);
        } else {
            general(row, axis_size, ctx, t, in);
        }
    }

private:
    // The maximum of a row, and what the exponentials relative to it are multiplied with.
    struct Statistics {
        A maximum;
        A factor;
    };

    RW_DEVICE A scale(const Row& row) const {
        return scales.data == nullptr ? A(1) : *scales.row(row.exists ? row.index : 0);
    }

    // Those that CrossEntropyBody has left.
    RW_DEVICE Statistics saved(const Row& row) const {
        const i64 index = row.exists ? row.index : 0;
        return {*maxima.row(index), *factors.row(index)};
    }

    template <int N>
    struct Kept {
        A terms[N];
        typename Loss::Exponentials state;
    };

    // Of half types the elements are kept and their exponentials taken twice, of others the exponentials kept.
    template <class Ctx>
    RW_DEVICE void plain(const Row& row, i64 axis_size, Ctx& ctx, const Target<A>& t,
                         RowCache<Ctx, T>& in) const {
        using Exponentials = typename Loss::Exponentials;
        constexpr int N = Ctx::simd_width;
        if constexpr (sizeof(T) == 2) {
            plain_row(
                row, axis_size, ctx, t, [&] { return log_sum_exp(row, axis_size, ctx, in); },
                [&](const auto& tile, A shift, A factor, auto write) {
                    in.select(tile);
                    // Neither the power of two nor its inverse takes the product out of the normal numbers.
                    const bool is_small = absolute(factor) < A(0x1p-8);
                    const A scale = is_small ? A(0) : A(64);
                    write([&](int i) { return exp_scaled(in.element(i) - shift, scale); },
                          is_small ? factor : factor * A(0x1p-64));
                });
        } else {
            auto kept = cache_tiles(row, axis_size, ctx, [&](const typename Ctx::TileT& tile) {
                Kept<N> k;
                A values[N];
                in.load(tile, values);
                k.state = Exponentials::exponentials(values, k.terms);
                return k;
            });
            plain_row(
                row, axis_size, ctx, t,
                [&] {
                    Exponentials total;
                    reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
                        fold.join(kept(tile).state);
                    });
                    pjoin(total, ctx);
                    return total;
                },
                [&](const auto& tile, A shift, A factor, auto write) {
                    const Kept<N>& k = kept(tile);
                    write([&](int i) { return k.terms[i]; }, exp_nonpositive(k.state.maximum[0] - shift) * factor);
                });
        }
    }

    // `fold()` gives the row's state; `with_terms(tile, shift, factor, write)` calls write(term, its factor) such that
    // their product is exp(element - shift) * factor.
    template <class Ctx, class F, class G>
    RW_DEVICE void plain_row(const Row& row, i64 axis_size, Ctx& ctx, const Target<A>& t, F fold, G with_terms) const {
        // Written after the row, which need not wait for it.
        const bool folds = maxima.data == nullptr;
        const A target_logit = this->target_logit(row, t);
        auto total = Loss::Exponentials::identity();
        Statistics s;
        if (folds) {
            total = fold();
            s = {total.maximum[0], this->factor(t, Loss::State::of(total, Sum<A>::identity()))};
        } else {
            s = saved(row);
        }
        const A shift = finite_shift(s.maximum);
        const A above = scale(row);
        const A factor = s.factor * above;
        const A of_target = fused(exp_nonpositive(target_logit - shift), factor, -(this->keep * t.weight * above));
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            if (!t.counts) {
                const A nothing = this->uncounted(t);
                emit(tile, out, [&](int) { return nothing; });
                return;
            }
            const auto place = static_cast<typename Ctx::Index>(t.index) - tile.first;
            const bool has_target = place >= 0 && place < tile.left &&
                                    (place & (tile.stride - 1)) < kVectorElements<T> &&
                                    place <= tile.offset(Ctx::simd_width - 1);
            with_terms(tile, shift, factor, [&](auto term, A of_term) {
                emit_replacing(
                    tile, out, [&](int i) { return term(i) * of_term; }, has_target ? static_cast<int>(place) : -1,
                    of_target);
            });
        });
        if (folds) {
            once(row, ctx, [&] {
                const auto state = Loss::State::of(total, Sum<A>::identity());
                losses[row.index] = t.counts ? this->loss(t, target_logit, state) : this->uncounted(t);
            });
        }
    }

    template <class Ctx>
    RW_DEVICE void general(const Row& row, i64 axis_size, Ctx& ctx, const Target<A>& t,
                           RowCache<Ctx, T>& in) const {
        constexpr int W = kVectorElements<T>;
        Statistics s;
        if (maxima.data == nullptr) {
            const A target_logit = this->target_logit(row, t);
            const auto total = this->fold_row(row, axis_size, ctx, in, this->origin(target_logit));
            once(row, ctx, [&] {
                losses[row.index] = t.counts ? this->loss(t, target_logit, total) : this->uncounted(t);
            });
            s = {total.first.maximum[0], this->factor(t, total)};
        } else {
            s = saved(row);
        }
        const A shift = finite_shift(s.maximum);
        const A above = scale(row);
        const A factor = s.factor * above;
        const bool smooths = this->smooth != A(0);
        const A smooth = this->smooth * above;
        const A hot = this->keep * t.weight * above;
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            if (!t.counts) {
                const A nothing = this->uncounted(t);
                emit(tile, out, [&](int) { return nothing; });
                return;
            }
            in.select(tile);
            const auto logit = [&](int i) {
                if (i % W == 0) {
                    in.hold_back(i / W);
                }
                return in.element(i);
            };
            const TargetDistribution<A, W> expected(smooths ? this->weights : nullptr, smooth, hot,
                                                    t.index, tile);
            emit(
                tile, out,
                [&](int i, A q) {
                    const Capped<A> z = this->capped(logit(i));
                    return z.slope * fused(exp_nonpositive(z.value - shift), factor, -q);
                },
                expected);
        });
    }
};

}  // namespace rowwise
