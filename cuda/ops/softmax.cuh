// Bodies of softmax and log-softmax.
#pragma once

#include "log_sum_exp.cuh"

namespace rowwise {

// y = exp(x - max) / sum(exp(x - max)).
//
// One exponential an element: the first walk takes it relative to the maximum of the thread's own
// tile and keeps it, and the last one only scales by exp(tile maximum - maximum) / sum. Both factors
// are at most 1, so nothing overflows; where the second underflows, so does the result.
//
// Of half types two: the elements take half the registers of their exponentials.
//
// A row with a NaN or a +inf, and a row of nothing but -inf, is NaN throughout.
template <class T>
struct SoftmaxBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kMostSplitVectors = 8;
    static constexpr bool kTakesColumns = !kIsInteger<T>;
    using A = accum_t<T>;
    using State = LogSumExpOf<T>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {4, 5, 5, 3, 4};

    InputRows<T> x;
    T* y;

    template <int N>
    struct Exponentials {
        A terms[N];
        State state;
    };

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, round_to<T>(-Limits<A>::infinity()));
        if constexpr (sizeof(T) == 2) {
            keeping_elements(row, axis_size, ctx, in);
        } else {
            keeping_exponentials(row, axis_size, ctx, in);
        }
    }

private:
    template <class Ctx>
    RW_DEVICE void keeping_elements(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in) const {
        const State total = log_sum_exp(row, axis_size, ctx, in);
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        const A shift = finite_shift(total.maximum[0]);
        const A inverse = reciprocal(total.sum[0]) * A(0x1p-64);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            emit(tile, out, [&](int i) { return exp_scaled(in.element(i) - shift, A(64)) * inverse; });
        });
    }

    template <class Ctx>
    RW_DEVICE void keeping_exponentials(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in) const {
        constexpr int N = Ctx::simd_width;
        auto exponentials = cache_tiles(row, axis_size, ctx, [&](const typename Ctx::TileT& tile) {
            Exponentials<N> e;
            A values[N];
            in.load(tile, values);
            e.state = State::exponentials(values, e.terms);
            return e;
        });
        State total;
        reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
            fold.join(exponentials(tile).state);
        });
        pjoin(total, ctx);
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        const A shift = finite_shift(total.maximum[0]);
        const A inverse = reciprocal(total.sum[0]);
        // Of half types, the exponentials and what is worked out of them leave no register for it.
        ctx.forget_place();
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            const Exponentials<N>& e = exponentials(tile);
            const A scale = exp_nonpositive(e.state.maximum[0] - shift) * inverse;
            emit(tile, out, [&](int i) { return e.terms[i] * scale; });
        });
    }
};

// y = (x - max) - log(sum(exp(x - max))): the large part is taken off first, exactly, so that the
// logarithm is not lost in it.
template <class T>
struct LogSoftmaxBody {
    using Element = T;
    static constexpr bool kEmitsRow = true;
    static constexpr int kMostSplitVectors = 8;
    static constexpr bool kTakesColumns = !kIsInteger<T>;
    using A = accum_t<T>;
    using State = LogSumExpOf<T>;
    static constexpr int kStateBytes = sizeof(Slot<State>);
    static constexpr Occupancy kOccupancy = {4, 5, 5, 3, 4};

    InputRows<T> x;
    T* y;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, round_to<T>(-Limits<A>::infinity()));
        const State total = log_sum_exp(row, axis_size, ctx, in);
        OutputRow<Ctx, T> out(row, axis_size, ctx, y);
        const A maximum = total.maximum[0];
        const A log_sum = natural_log(total.sum[0]);
        reduce(row, axis_size, ctx, [&](const auto& tile) {
            in.select(tile);
            emit(tile, out, [&](int i) { return (in.element(i) - maximum) - log_sum; });
        });
    }
};

}  // namespace rowwise
