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

// What a row that was scaled by `scale` is divided by: the root of its mean square plus eps, or of its sum of
// squares, its length, but eps where it is shorter.
template <class A>
struct Divisor {
    bool is_length;
    double eps;

    // What the sum of squares is divided by.
    RW_DEVICE A count(i64 axis_size) const {
        return is_length ? A(1) : static_cast<A>(axis_size);
    }
    // As it adds to what the root is taken of.
    RW_DEVICE double squared_eps() const {
        return is_length ? eps * eps : eps;
    }
    RW_DEVICE bool is_short(A square, A scale) const {
        const A least = static_cast<A>(eps) * scale;
        return is_length && square_root(square) < least;
    }
    RW_DEVICE A inverse(A square, A scale) const {
        if (!is_length) {
            return inverse_root(square, eps, scale);
        }
        return is_short(square, scale) ? reciprocal(static_cast<A>(eps) * scale) : inverse_square_root(square);
    }
};

// A vector that all rows share: of T, or of f32 beside a half type, or left out, which is one value for all
// positions. What it is costs a test a vector, where a SideInput costs none. With ByVectors, the vectors of a tile that
// the row ends in are read whole where they are.
template <class T, bool ByVectors = true>
class AnySide {
    using A = accum_t<T>;
    static constexpr int W = kVectorElements<T>;

public:
    struct Values {
        A at[W];
    };

    RW_DEVICE AnySide(const void* data, bool is_wide, A absent)
        : data_(data), is_wide_(sizeof(T) == 2 && is_wide), aligned_(is_vector_aligned(data)), absent_(absent) {}

    RW_DEVICE bool aligned() const {
        return aligned_;
    }

    template <class TileT>
    RW_DEVICE Values load(const TileT& part) const {
        if constexpr (ByVectors) {
            if (part.left >= W && aligned_) {
                return load_whole(part);
            }
        }
        return select([&](auto of) {
            using E = decltype(of);
            const E* row = static_cast<const E*>(data_);
            Values v;
#pragma unroll
            for (int w = 0; w < W; ++w) {
                v.at[w] = w < part.left ? static_cast<A>(widen(row[part.first + w])) : A(0);
            }
            return v;
        });
    }

    template <class TileT>
    RW_DEVICE Values load_whole(const TileT& part) const {
        return select([&](auto of) {
            using E = decltype(of);
            constexpr int P = kVectorElements<E>;
            Values v;
#pragma unroll
            for (int w = 0; w < W; w += P) {
                Vector<E> raw;
                raw.raw = load_shared_by_rows(static_cast<const E*>(data_) + part.first + w);
#pragma unroll
                for (int p = 0; p < P; ++p) {
                    v.at[w + p] = raw.get(p);
                }
            }
            return v;
        });
    }

private:
    // Calls `load_as` with an element of the type that is there.
    template <class F>
    RW_DEVICE Values select(F load_as) const {
        if (data_ == nullptr) {
            Values v;
#pragma unroll
            for (int w = 0; w < W; ++w) {
                v.at[w] = absent_;
            }
            return v;
        }
        if constexpr (sizeof(T) == 2) {
            if (is_wide_) {
                return load_as(float{});
            }
        }
        return load_as(T{});
    }

    const void* data_;
    bool is_wide_;
    bool aligned_;
    A absent_;
};

// What both norms are given. The body that is not General has a weight of T, and layer norm a bias of T: its
// kernels, which most models call, are not to pay in registers for what the others can do.
template <class T, bool General>
struct NormInputs;

template <class T>
struct NormInputs<T, false> {
    InputRows<T> x;
    T* y;
    const T* weight;
    const T* bias;
    double eps;

    template <class Ctx>
    RW_DEVICE RowCache<Ctx, T> rows(const Row& row, i64 axis_size, Ctx& ctx) const {
        return {row, axis_size, ctx, x, T{}};
    }
    template <class Ctx>
    RW_DEVICE SideInput<T> weights(const Ctx&) const {
        return SideInput<T>(weight);
    }
    template <class Ctx>
    RW_DEVICE SideInput<T> biases(const Ctx&, accum_t<T>) const {
        return SideInput<T>(bias);
    }
    template <class A>
    RW_DEVICE Divisor<A> divisor() const {
        return {false, eps};
    }
    template <class Ctx, class TileT, class In>
    RW_DEVICE void emit_sum(const Row&, i64, const Ctx&, const TileT&, const In&) const {}
};

template <class T>
struct NormInputs<T, true> {
    InputRows<T> x;
    InputRows<T> residual;  // added to x; data is null where there is none
    T* y;
    T* sum;  // x + residual
    const void* weight;
    const void* bias;
    bool weight_is_wide;  // f32 beside a half type
    bool bias_is_wide;
    bool is_length;  // what rms norm divides by
    double eps;

    template <class Ctx>
    RW_DEVICE RowCache<Ctx, T, false, true> rows(const Row& row, i64 axis_size, Ctx& ctx) const {
        return {row, axis_size, ctx, x, T{}, 0, &residual};
    }
    // Where a row is walked, both ways to read a side spill as split-K (24 bytes).
    template <class Ctx>
    using Side = AnySide<T, Ctx::kResident>;

    template <class Ctx>
    RW_DEVICE Side<Ctx> weights(const Ctx&) const {
        return Side<Ctx>(weight, weight_is_wide, accum_t<T>(1));
    }
    template <class Ctx>
    RW_DEVICE Side<Ctx> biases(const Ctx&, accum_t<T> absent) const {
        return Side<Ctx>(bias, bias_is_wide, absent);
    }
    template <class A>
    RW_DEVICE Divisor<A> divisor() const {
        return {is_length, eps};
    }
    // What was normalised, for whoever goes on from there.
    template <class Ctx, class TileT, class In>
    RW_DEVICE void emit_sum(const Row& row, i64 axis_size, const Ctx& ctx, const TileT& tile,
                            const In& in) const {
        if (sum != nullptr) {
            OutputRow<Ctx, T, !Ctx::kResident> out(row, axis_size, ctx, sum);
            emit(tile, out, [&](int i) { return in.element(i); });
        }
    }
};

// General bodies write alone where they walk a row: with a shift, they spill as split-K (12 to 180 bytes).
template <class Ctx, class T, bool General>
using NormOutput = OutputRow<Ctx, T, General && !Ctx::kResident>;

// y = x / sqrt(mean(x^2) + eps) * weight + bias (Zhang and Sennrich, "Root Mean Square Layer
// Normalization", 2019); or x / max(sqrt(sum(x^2)), eps).
template <class T, bool General>
struct RmsNormBody : NormInputs<T, General> {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kMostSplitVectors = 8;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<SumOfSquares<A>>);
    static constexpr Occupancy kOccupancy =
        General ? Occupancy{2, 3, 3, 2, 2, 1} : Occupancy{3, 4, 5, 3, 3};
    static constexpr int kF64Blocks = General ? 1 : 2;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        auto in = this->rows(row, axis_size, ctx);
        const Divisor<A> divisor = this->template divisor<A>();
        const ScaledSquares<T> squares =
            safe_sum_of_squares(row, axis_size, ctx, in, divisor.squared_eps());
        const A scale = squares.scale;
        const A inverse = divisor.inverse(divide(squares.sum, divisor.count(axis_size)), scale);
        NormOutput<Ctx, T, General> out(row, axis_size, ctx, this->y);
        const auto weights = this->weights(ctx);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            if constexpr (General) {
                // Without a bias -0, which changes no bits.
                emit(
                    tile, out,
                    [&](int i, A w, A b) { return fused(in.element(i) * scale * inverse, w, b); },
                    weights, this->biases(ctx, -A(0)));
            } else if (scale == A(1)) {
                emit(tile, out, [&](int i, A w) { return in.element(i) * inverse * w; }, weights);
            } else {
                emit(tile, out, [&](int i, A w) { return in.element(i) * scale * inverse * w; },
                     weights);
            }
            this->emit_sum(row, axis_size, ctx, tile, in);
        });
    }
};

// How a row is brought to mean 0 and variance 1: x becomes (x * scale - mean - rest) * inverse.
template <class A>
struct Centring {
    A scale;
    A mean;
    A rest;  // what the mean as one number leaves out
    A inverse;
};

template <class A>
RW_DEVICE Centring<A> centring_of(const Welford<A>& m, A scale, double eps) {
    const A mean = m.mean[0] + m.rest[0];
    const A rest = (m.mean[0] - mean) + m.rest[0];
    return {scale, mean, rest, inverse_root(divide(m.squares[0], m.count[0]), eps, scale)};
}

template <class Ctx, class T, bool... Kind>
RW_DEVICE Centring<accum_t<T>> centring(const Row& row, i64 axis_size, Ctx& ctx,
                                        RowCache<Ctx, T, Kind...>& in, double eps) {
    using A = accum_t<T>;
    A scale = A(1);
    if constexpr (sizeof(T) == 2) {
        Welford<A> m = near_moments(row, axis_size, ctx, in, scale);
        if (!sums_suffice(m)) {
            if (!squares_are_safe(m.squares[0])) {
                scale = safe_scale(row, axis_size, ctx, in, eps);
                m = near_moments(row, axis_size, ctx, in, scale);
            }
            m = far_moments(row, axis_size, ctx, in, scale, m.mean[0]);
        }
        return centring_of(m, scale, eps);
    } else {
        Welford<A> m = moments(row, axis_size, ctx, in, scale);
        if (!squares_are_safe(m.squares[0])) {
            scale = safe_scale(row, axis_size, ctx, in, eps);
            m = moments(row, axis_size, ctx, in, scale);
        }
        return centring_of(m, scale, eps);
    }
}

// y = (x - mean) / sqrt(var + eps) * weight + bias, with the population variance (Ba, Kiros and
// Hinton, "Layer Normalization", 2016).
template <class T, bool General>
struct LayerNormBody : NormInputs<T, General> {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    // More spill where two blocks share a multiprocessor (src/tuning.rs).
    static constexpr int kMostSplitVectors = sizeof(T) == 8 || (General && sizeof(T) == 2) ? 4 : 8;
    static constexpr bool kTakesColumns = false;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<Welford<A>>);
    static constexpr Occupancy kOccupancy =
        General ? Occupancy{2, 3, 3, 2, 2, 1} : Occupancy{3, 4, 4, 3, 3, 1};
    // With 2, 64 bytes spill.
    static constexpr int kF64Blocks = General ? 1 : 2;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        auto in = this->rows(row, axis_size, ctx);
        const Centring<A> c = centring(row, axis_size, ctx, in, this->eps);
        NormOutput<Ctx, T, General> out(row, axis_size, ctx, this->y);
        const auto weights = this->weights(ctx);
        const auto biases = this->biases(ctx, A(0));
        const A shift = -c.mean * c.inverse;
        const A rest_shift = -c.rest * c.inverse;
        // A row that is not far from 0 for its spread, as most are, is normalised in one step. Only half
        // types, whose kernels the instructions bound, take it.
        const bool is_near = c.scale == A(1) && absolute(shift) <= A(0.5);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            if (sizeof(T) == 2 && is_near) {
                emit(
                    tile, out,
                    [&](int i, A w, A b) {
                        hold_sides_back(ctx, i, !Ctx::kResident);
                        return fused(fused(in.element(i), c.inverse, shift), w, b);
                    },
                    weights, biases);
            } else {
                emit(
                    tile, out,
                    [&](int i, A w, A b) {
                        hold_sides_back(ctx, i, true);
                        const A centred = fused(in.element(i), c.scale, -c.mean);
                        return fused(fused(centred, c.inverse, rest_shift), w, b);
                    },
                    weights, biases);
            }
            this->emit_sum(row, axis_size, ctx, tile, in);
        });
    }

private:
    // Keeps the sides of the vector that element i begins from being read before: with those of several on their way, a
    // word or two spill.
    template <class Ctx>
    static RW_DEVICE void hold_sides_back(const Ctx&, int i, bool spills) {
        if constexpr (sizeof(T) == 2 && !Ctx::kWarpOwned) {
            if (spills && i % kVectorElements<T> == 0) {
                keep_reads_back();
            }
        }
    }
};

}  // namespace rowwise
