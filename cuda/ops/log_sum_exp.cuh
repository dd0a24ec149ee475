// The maximum of a row and the sum of exp(x - maximum), for the bodies that fold a row's elements as they are.
#pragma once

#include <rowwise/rowwise.cuh>

namespace rowwise {

// The state of a tile. Of half types the maximum is found two elements at a time as they are stored, and exponentials
// take two instructions each: those that exp_short makes 0 are below 2^-125 of the tile's largest one.
template <class TileT, class Ctx, class T>
RW_DEVICE LogSumExpOf<T> tile_log_sum_exp(const TileT& tile, RowCache<Ctx, T>& in) {
    using A = accum_t<T>;
    using State = LogSumExpOf<T>;
    if constexpr (sizeof(T) == 2) {
        in.select(tile);
        State s;
        s.maximum[0] = in.maximum();
        const A shift = finite_shift(s.maximum[0]);
        s.sum[0] = fold_vectors<Sum>(tile, in, [&](int, A v) { return exp_short(v - shift); }).value();
        return s;
    } else {
        A values[Ctx::simd_width];
        in.load(tile, values);
        return State::of_tile(values, Positions<TileT>{tile});
    }
}

template <class Ctx, class T>
RW_DEVICE LogSumExpOf<T> log_sum_exp(const Row& row, i64 axis_size, Ctx& ctx, RowCache<Ctx, T>& in) {
    LogSumExpOf<T> total;
    reduce(row, axis_size, ctx, total, [&](auto& fold, const auto& tile) {
        fold.join(tile_log_sum_exp(tile, in));
    });
    pjoin(total, ctx);
    return total;
}

}  // namespace rowwise
