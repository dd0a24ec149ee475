// Bodies of the reductions: one value a row, or two.
//
// Reductions that differ in what a value counts as, or in a last step on the joined state, share a
// body: a kernel each would be compiled for every dtype and tier.
#pragma once

#include "log_sum_exp.cuh"
#include "moments.cuh"

namespace rowwise {

// What most reductions want of ptxas (see Occupancy); the largest figures without spills.
constexpr Occupancy kReductionOccupancy = {3, 4, 4, 2, 3};
// Of those that hold more of a tile at once.
constexpr Occupancy kWideReductionOccupancy = {2, 3, 3, 2, 2};

// What the bodies below have in common, where they do not say otherwise.
template <class T>
struct Reduction {
    using Element = T;
    static constexpr bool kEmitsRow = false;
    static constexpr bool kTakesColumns = !kIsInteger<T>;
    static constexpr int kMostSplitVectors = 8;
    static constexpr Occupancy kOccupancy = kReductionOccupancy;
};

// A value seen through two masks: (bits & keep) ^ flip. Without the sign bit it is a magnitude; with
// the sign (of integers, all bits) flipped, the order is reversed, so that a minimum is a maximum;
// with the top bit flipped, unsigned integers are ordered as signed ones.
template <class A>
struct BitMap {
    A keep;
    A flip;

    RW_DEVICE A operator()(A value) const {
        return (value & keep) ^ flip;
    }
};
template <>
struct BitMap<float> {
    u32 keep;
    u32 flip;

    RW_DEVICE float operator()(float value) const {
        return bits_to_float((float_to_bits(value) & keep) ^ flip);
    }
};
template <>
struct BitMap<double> {
    u64 keep;
    u64 flip;

    RW_DEVICE double operator()(double value) const {
        return bits_to_double((double_to_bits(value) & keep) ^ flip);
    }
};

// Walks the row, folds what `map` makes of its values, and joins.
template <class State, class Ctx, class T, class F>
RW_DEVICE State fold_row(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in, F map) {
    State state;
    reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
        accum_t<T> values[Ctx::simd_width];
        in.load(tile, values);
        decltype(map(values[0])) mapped[Ctx::simd_width];
#pragma unroll
        for (int i = 0; i < Ctx::simd_width; ++i) {
            mapped[i] = map(values[i]);
        }
        fold.accumulate(mapped, tile);
    });
    pjoin(state, ctx);
    return state;
}

// Sums and products of integers are 64 bits wide.
template <class T>
using total_t = conditional_t<kIsInteger<T>, i64, accum_t<T>>;
template <class T>
using total_output_t = conditional_t<kIsInteger<T>, i64, T>;

// A value as an element: rounded, or an integer that fits.
template <class T, class A>
RW_DEVICE T as_element(A value) {
    if constexpr (kIsInteger<T>) {
        return static_cast<T>(value);
    } else {
        return round_to<T>(static_cast<accum_t<T>>(value));
    }
}

// sum, mean and norm_l1.
template <class T>
struct SumBody : Reduction<T> {
    using Output = total_output_t<T>;
    using A = total_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<Sum<A>>);
    // With 8, 28 bytes (bf16) spill.
    static constexpr int kColumnOccupancy[] = {6, 3};

    InputRows<T> x;
    Output* y;
    T pad;  // -0, or 0 of integers
    BitMap<A> map;
    bool is_mean;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, pad);
        A total = fold_row<Sum<A>>(row, axis_size, ctx, in,
                                   [&](accum_t<T> v) { return map(static_cast<A>(v)); })
                      .value();
        if constexpr (!kIsInteger<T>) {
            if (is_mean) {
                const A count = static_cast<A>(axis_size);
                const bool finite = absolute(total) <= Limits<A>::largest();
                if (finite) {
                    total = divide(total, count);
                }
                if (walks_again(row, !finite, ctx)) {
                    // A sum beyond the range, of values whose mean may be within it. By 2^-64 no row
                    // is long enough to get there, and what that loses of small values does not count.
                    constexpr A kShrink = A(1) / A(1ull << 32) / A(1ull << 32);
                    const A shrunk =
                        fold_row<Sum<A>>(row, axis_size, ctx, in, [&](A v) { return v * kShrink; }).value();
                    total = finite ? total : divide(shrunk, count) / kShrink;
                }
            }
        }
        once(row, ctx, [&] { y[row.index] = as_element<Output>(total); });
    }
};

// norm_l2 and mean_of_squares.
template <class T>
struct SquaresBody : Reduction<T> {
    using Output = T;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<SumOfSquares<A>>);
    static constexpr int kTileBlocks = 1;
    static constexpr Occupancy kOccupancy = kWideReductionOccupancy;

    InputRows<T> x;
    Output* y;
    bool is_mean;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        const ScaledSquares<T> squares = safe_sum_of_squares(row, axis_size, ctx, in, 0.0);
        const A unscale = reciprocal(squares.scale);
        const A value = is_mean ? divide(squares.sum, static_cast<A>(axis_size)) * unscale * unscale
                                : square_root(squares.sum) * unscale;
        once(row, ctx, [&] { y[row.index] = round_to<T>(value); });
    }
};

// var and std: squared residuals over the length less `correction`, and the root of that.
template <class T>
struct VarianceBody : Reduction<T> {
    using Output = T;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<Welford<A>>);
    static constexpr Occupancy kOccupancy = kWideReductionOccupancy;
    // With 2, 4 (bf16) and 12 bytes (f32) spill.
    static constexpr int kTileBlocks = 1;

    InputRows<T> x;
    Output* y;
    i64 correction;
    bool is_std;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        const ScaledMoments<T> m = safe_moments(row, axis_size, ctx, in, 0.0);
        const A degrees = static_cast<A>(max_of<i64>(axis_size - correction, 0));
        // NaN where the correction leaves nothing to divide by, of one value and of several.
        const A variance = degrees > A(0) ? divide(m.state.squares[0], degrees) : Limits<A>::nan();
        const A unscale = reciprocal(m.scale);
        const A value = is_std ? square_root(variance) * unscale : variance * unscale * unscale;
        once(row, ctx, [&] { y[row.index] = round_to<T>(value); });
    }
};

template <class T>
struct ProdBody : Reduction<T> {
    using Output = total_output_t<T>;
    using A = total_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<Prod<A>>);
    static constexpr Occupancy kOccupancy = kWideReductionOccupancy;

    InputRows<T> x;
    Output* y;
    BitMap<A> map;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, as_element<T>(1));
        const A total = fold_row<Prod<A>>(row, axis_size, ctx, in, [&](accum_t<T> v) {
                            return map(static_cast<A>(v));
                        }).value();
        once(row, ctx, [&] { y[row.index] = as_element<Output>(total); });
    }
};

// max, min and abs_max, which is norm_linf: all of them the maximum of mapped values.
template <class T>
struct ExtremumBody : Reduction<T> {
    using Output = T;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<Max<A>>);

    InputRows<T> x;
    Output* y;
    T pad;  // what the map makes the lowest value of, or the lowest magnitude
    BitMap<A> map;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, pad);
        const A value = map(fold_row<Max<A>>(row, axis_size, ctx, in, map).value());
        once(row, ctx, [&] { y[row.index] = as_element<T>(value); });
    }
};

// argmax and argmin.
template <class T>
struct ArgExtremumBody : Reduction<T> {
    using Output = u32;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<ArgMax<A>>);

    InputRows<T> x;
    Output* y;
    T pad;  // what the map makes the lowest value of
    BitMap<A> map;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, pad);
        const ArgMax<A> state = fold_row<ArgMax<A>>(row, axis_size, ctx, in, map);
        once(row, ctx, [&] { y[row.index] = state.index[0]; });
    }
};

// min_max: the smallest values of all rows, then the largest.
template <class T>
struct MinMaxBody : Reduction<T> {
    using Output = T;
    using A = accum_t<T>;
    using State = MinMax<A>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr int kTileBlocks = 1;
    static constexpr Occupancy kOccupancy = kWideReductionOccupancy;

    InputRows<T> x;
    Output* y;
    i64 rows;
    BitMap<A> map;  // order-preserving

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, T{});
        State state;
        reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
            accum_t<T> values[Ctx::simd_width];
            in.load(tile, values);
#pragma unroll
            for (int i = 0; i < Ctx::simd_width; ++i) {
                values[i] = map(values[i]);
            }
            if (tile.is_full()) {
                fold.accumulate(values, tile);
                return;
            }
            // No padding is neutral to both, so each has its own.
            accum_t<T> others[Ctx::simd_width];
#pragma unroll
            for (int i = 0; i < Ctx::simd_width; ++i) {
                const bool has = tile.has(i);
                others[i] = has ? values[i] : Limits<A>::lowest();
                values[i] = has ? values[i] : mirrored(Limits<A>::lowest());
            }
            const Positions<typename Ctx::TileT> positions{tile};
            fold.join(State::of(Min<A>::of_tile(values, positions), Max<A>::of_tile(others, positions)));
        });
        pjoin(state, ctx);
        once(row, ctx, [&] {
            y[row.index] = as_element<T>(map(state.first.value()));
            y[rows + row.index] = as_element<T>(map(state.second.value()));
        });
    }
};

// any and all, of elements as the integers of their width: `keep` leaves out the sign of a float's
// zero. All values are true where none is false.
template <class T>
struct TruthBody : Reduction<T> {
    using Output = u8;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<Any<A>>);

    InputRows<T> x;
    Output* y;
    A keep;
    bool is_all;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, static_cast<T>(is_all));
        const bool found = fold_row<Any<A>>(row, axis_size, ctx, in, [&](A v) {
                               return static_cast<i32>((v & keep) != 0) ^ static_cast<i32>(is_all);
                           }).value() != 0;
        once(row, ctx, [&] { y[row.index] = static_cast<u8>(found != is_all); });
    }
};

template <class T>
struct LogSumExpBody : Reduction<T> {
    using Output = T;
    using A = accum_t<T>;
    static constexpr int kStateBytes = sizeof(Slot<LogSumExpOf<T>>);
    static constexpr Occupancy kOccupancy = {4, 5, 5, 4, 4};
    // Of halves, 20 bytes spill with 6.
    static constexpr int kColumnOccupancy[] = {sizeof(T) == 2 ? 5 : 6, 2};

    InputRows<T> x;
    Output* y;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, round_to<T>(-Limits<A>::infinity()));
        const auto state = log_sum_exp(row, axis_size, ctx, in);
        once(row, ctx, [&] { y[row.index] = round_to<T>(state.value()); });
    }
};

}  // namespace rowwise
