// reduce, pjoin and once: all that a body needs to walk a row, whatever runs it.
#pragma once

#include "context.cuh"

namespace rowwise {

// What a tile function folds into: the caller's state, one chunk at a time.
template <class Op>
class Fold {
public:
    // Folds the values of the tile; their number is a power of two.
    template <int N, class A, class TileT>
    RW_DEVICE void accumulate(const A (&values)[N], const TileT& tile) {
        join(Op::of_tile(values, Positions<TileT>{tile}));
    }

    // Folds a state that stands for the tile.
    RW_DEVICE void join(const Op& part) {
        if (empty_) {
            state_ = part;
            empty_ = false;
        } else {
            state_.join(part);
        }
    }

    RW_DEVICE Op state() const {
        return empty_ ? Op::identity() : state_;
    }

private:
    Op state_;
    bool empty_ = true;
};

// Walks the row with no state: calls `tile_fn(tile)` for every tile of this thread. For passes that
// map and emit.
template <class Ctx, class F>
RW_DEVICE void reduce(const Row& row, i64 axis_size, Ctx& ctx, F&& tile_fn) {
    if constexpr (Ctx::kResident) {
        tile_fn(ctx.own_tile(row, axis_size));
    } else {
        for (i64 chunk = ctx.warp; chunk < ctx.chunks; chunk += ctx.warps) {
            tile_fn(ctx.tile(chunk, axis_size));
        }
    }
    ctx.walks += 1;
}

namespace detail {

// The state of `count` chunks whose states lie in the slots, in every thread of the block.
template <class Op, class Ctx>
RW_DEVICE Op join_window(Ctx& ctx, int count) {
    const Slot<Op>* slots = ctx.template slots<Op>();
    sync_block();
    if (count <= kWarpSize) {
        return join_slots<kWarpSize>(slots, count);
    }
    Slot<Op>* groups = ctx.template groups<Op>();
    const int group_count = (count + kWarpSize - 1) / kWarpSize;
    for (int g = ctx.warp; g < group_count; g += ctx.warps) {
        const Op joined = join_slots<kWarpSize>(slots + g * kWarpSize, min_of(kWarpSize, count - g * kWarpSize));
        if (ctx.lane == 0) {
            groups[g].state = joined;
        }
    }
    sync_block();
    return join_slots<kWarpSize>(groups, group_count);
}

// Adds a window's state to the binary counter of windows: level k holds the join of 2^k windows.
// Thread 0 keeps it; the others pass by.
template <class Op, class Ctx>
RW_DEVICE void push_window(Ctx& ctx, i64 window, Op state) {
    if (threadIdx.x == 0) {
        Slot<Op>* levels = ctx.template levels<Op>();
        int level = 0;
        for (; (window >> level) & 1; ++level) {
            Op earlier = levels[level].state;
            earlier.join(state);
            state = earlier;
        }
        levels[level].state = state;
    }
}

// The join of all windows pushed, in every thread.
template <class Op, class Ctx>
RW_DEVICE Op pop_windows(Ctx& ctx, i64 windows) {
    const Slot<Op>* levels = ctx.template levels<Op>();
    sync_block();
    Op total = Op::identity();
    bool empty = true;
    for (int level = 0; (windows >> level) != 0; ++level) {
        if ((windows >> level) & 1) {
            Op earlier = levels[level].state;
            if (!empty) {
                earlier.join(total);
            }
            total = earlier;
            empty = false;
        }
    }
    sync_block();
    return total;
}

}  // namespace detail

// Walks the row and folds it into `state`: calls `tile_fn(fold, tile)` for every tile of this thread,
// which folds the tile by fold.accumulate(values, tile) or fold.join(part). Iteration only: the
// state is the row's once pjoin has been called on it, and until then it is nobody's.
template <class Op, class Ctx, class F>
RW_DEVICE void reduce(const Row& row, i64 axis_size, Ctx& ctx, Op& state, F&& tile_fn) {
    if constexpr (Ctx::kResident) {
        Fold<Op> fold;
        tile_fn(fold, ctx.own_tile(row, axis_size));
        state = fold.state();
    } else {
        i64 window = 0;
        for (i64 first = 0; first < ctx.chunks; first += kWindowChunks, ++window) {
            const int count = static_cast<int>(min_of<i64>(kWindowChunks, ctx.chunks - first));
            Slot<Op>* slots = ctx.template slots<Op>();
            for (int c = ctx.warp; c < count; c += ctx.warps) {
                Fold<Op> fold;
                tile_fn(fold, ctx.tile(first + c, axis_size));
                const Op chunk = fold.state().join_parallel(WarpReducer{});
                if (ctx.lane == 0) {
                    slots[c].state = chunk;
                }
            }
            if (ctx.chunks > kWindowChunks) {
                detail::push_window(ctx, window, detail::join_window<Op>(ctx, count));
                ctx.folds += 1;
            }
        }
    }
    ctx.walks += 1;
}

// Joins `state` across the threads that share the row. Every one of them receives the result, of
// equal bits, so a body may branch on it. Every thread must call it.
template <class Op, class Ctx>
RW_DEVICE void pjoin(Op& state, Ctx& ctx) {
    if constexpr (Ctx::kOwnership == Ownership::kResidentWarp) {
        state = state.join_parallel(WarpReducer{ctx.lanes, ctx.lanes < kWarpSize});
    } else if constexpr (Ctx::kOwnership == Ownership::kResidentBlock) {
        state = BlockReducer{ctx.template slots<Op>(), ctx.warps}.generic(state);
    } else if constexpr (Ctx::kOwnership == Ownership::kResidentCluster) {
        state = ClusterReducer<Ctx::kStateBytes>{ctx.cluster, static_cast<int>(ctx.chunks), ctx.warp,
                                                 ctx.folds}
                    .generic(state);
    } else if (ctx.chunks <= kWindowChunks) {
        state = detail::join_window<Op>(ctx, static_cast<int>(ctx.chunks));
    } else {
        state = detail::pop_windows<Op>(ctx, (ctx.chunks + kWindowChunks - 1) / kWindowChunks);
    }
    // The next fold writes the other half of the slots: a thread that is late in reading this one
    // is waited for by that fold's own barrier before this half is written again.
    ctx.folds += 1;
}

// Runs `emit` exactly once per row.
template <class Ctx, class F>
RW_DEVICE void once(const Row& row, Ctx& ctx, F&& emit) {
    if (row.exists && ctx.lane == 0 && ctx.warp == 0) {
        emit();
    }
}

}  // namespace rowwise
