// reduce, pjoin and once: all that a body needs to walk a row, whatever runs it.
#pragma once

#include "tile_reducer.cuh"

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

namespace detail {

// Walks this block's chunks of 32 rows, of which this thread has one: calls f(lane, tile) for the lanes that this
// warp stands for, then, once all threads are there, f_chunk(chunk) for a chunk that there is.
template <class Ctx, class F, class G>
RW_DEVICE void for_each_lane(const Row& row, i64 axis_size, Ctx& ctx, F f, G f_chunk) {
    const int width = row.exists ? static_cast<int>(axis_size) : 0;
    const int end = static_cast<int>(ctx.end_chunk);
    for (int first = static_cast<int>(ctx.first_chunk); first < end; first += ctx.columns.chunk_warps) {
        const int chunk = first + ctx.warp / ctx.columns.lane_warps;
        if (chunk < end) {
            for (int lane = ctx.warp % ctx.columns.lane_warps; lane < ctx.lanes; lane += ctx.columns.lane_warps) {
                f(lane, ctx.tile_of_lane(chunk, lane, width));
            }
        }
        f_chunk(chunk < end ? chunk : -1);
    }
}

}  // namespace detail

// Walks the row with no state: calls `tile_fn(tile)` for every tile of this thread. For passes that
// map and emit.
template <class Ctx, class F>
RW_DEVICE void reduce(const Row& row, i64 axis_size, Ctx& ctx, F&& tile_fn) {
    if constexpr (Ctx::kResident) {
        tile_fn(ctx.own_tile(row, axis_size));
    } else if constexpr (Ctx::kColumns) {
        detail::for_each_lane(row, axis_size, ctx, [&](int, const auto& tile) { tile_fn(tile); }, [](int) {});
    } else {
        // A warp that owns the row alone is its only one.
        for (i64 chunk = ctx.first_chunk + ctx.warp; chunk < ctx.end_chunk; chunk += ctx.warps) {
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

// Folds this block's chunks of 32 rows, and leaves their states in the shared memory of all blocks that share the
// rows.
template <class Op, class Ctx, class F>
RW_DEVICE void fold_columns(const Row& row, i64 axis_size, Ctx& ctx, F& tile_fn) {
    constexpr int kPitch = ColumnShare::kPitch;
    Slot<Op>* lanes = ctx.template lane_states<Op>();
    // Groups of lanes repeat what the first one does.
    const Slot<Op>* of_lane = lanes + (lane_id() & (ctx.lanes - 1)) * kPitch;
    bool started = ctx.folds > 0 || ctx.columns.blocks == 1;
    for_each_lane(
        row, axis_size, ctx,
        [&](int lane, const auto& tile) {
            Fold<Op> fold;
            tile_fn(fold, tile);
            lanes[lane * kPitch + lane_id()].state = fold.state();
        },
        [&](int chunk) {
            sync_block();
            if (!started) {
                // Nobody writes to a block that has not.
                wait_for_columns();
                started = true;
            }
            if (chunk >= 0) {
                const int first = ctx.warp % ctx.columns.lane_warps;
                for (int of = first; of < kWarpSize; of += ctx.columns.lane_warps) {
                    const Op mine = of_lane[of].state;
                    const Op joined = mine.join_parallel(WarpReducer{ctx.lanes});
                    Slot<Op>* to = ctx.template chunk_states<Op>(of) + chunk;
                    if (ctx.columns.blocks > 1) {
                        // Lane r writes to block r.
                        if (lane_id() < ctx.columns.blocks) {
                            store_to_block(to, static_cast<u32>(lane_id()), joined);
                        }
                    } else if (lane_id() == 0) {
                        to->state = joined;
                    }
                }
            }
            // The next chunk's states take the place of this one's.
            sync_block();
        });
}

// The join of the chunks of each row, in the threads that have the row.
template <class Op, class Ctx>
RW_DEVICE Op join_columns(Ctx& ctx) {
    const int chunks = static_cast<int>(ctx.chunks);
    if (ctx.columns.blocks > 1) {
        sync_columns();
    }
    Slot<Op>* rows = ctx.template row_states<Op>();
    for (int of = ctx.warp; of < kWarpSize; of += ctx.warps) {
        const Op joined = join_slots_in_groups(ctx.template chunk_states<Op>(of), chunks);
        if (lane_id() == 0) {
            rows[of].state = joined;
        }
    }
    sync_block();
    return rows[lane_id()].state;
}

// Publishes the states of the groups of a window, whose chunk states lie in the slots.
template <class Op, class Ctx>
RW_DEVICE void publish_groups(Ctx& ctx, i64 first_chunk, int count) {
    const Slot<Op>* slots = ctx.template slots<Op>();
    Slot<Op>* units = ctx.template units<Op>() + first_chunk / kWarpSize;
    sync_block();
    for (int g = ctx.warp; g * kWarpSize < count; g += ctx.warps) {
        const Op group = join_slots<kWarpSize>(slots + g * kWarpSize, min_of(kWarpSize, count - g * kWarpSize));
        if (ctx.lane == 0) {
            units[g].state = group;
        }
    }
    sync_block();
}

// The row's state of what the team has published, in every thread.
template <class Op, class Ctx>
RW_DEVICE Op join_team(Ctx& ctx) {
    const Slot<Op>* units = ctx.template units<Op>();
    sync_team(ctx.team);
    i64 groups = ctx.team.unit_count;
    const bool of_chunks = ctx.team.unit == 1;
    Slot<Op>* joined = ctx.template slots<Op>();
    if (of_chunks) {
        const int chunks = static_cast<int>(ctx.chunks);
        if (chunks <= kWarpSize) {
            return join_published(units, chunks);
        }
        groups = (chunks + kWarpSize - 1) / kWarpSize;
        for (int g = ctx.warp; g < groups; g += ctx.warps) {
            const Op group = join_published(units + g * kWarpSize, min_of(kWarpSize, chunks - g * kWarpSize));
            if (ctx.lane == 0) {
                joined[g].state = group;
            }
        }
        sync_block();
        if (groups <= kWarpSize) {
            return join_slots<kWarpSize>(joined, static_cast<int>(groups));
        }
    } else if (groups <= kWarpSize) {
        return join_published(units, static_cast<int>(groups));
    }
    // A warp a window, and the windows in their order.
    const i64 windows = (groups + kWarpSize - 1) / kWarpSize;
    Slot<Op>* batch = ctx.template groups<Op>();
    for (i64 first = 0; first < windows; first += ctx.warps) {
        const i64 w = first + ctx.warp;
        if (w < windows) {
            const int count = static_cast<int>(min_of<i64>(kWarpSize, groups - w * kWarpSize));
            const Op window = of_chunks ? join_slots<kWarpSize>(joined + w * kWarpSize, count)
                                        : join_published(units + w * kWarpSize, count);
            if (ctx.lane == 0) {
                batch[ctx.warp].state = window;
            }
        }
        sync_block();
        for (int i = 0; i < ctx.warps && first + i < windows; ++i) {
            push_window(ctx, first + i, batch[i].state);
        }
        sync_block();
    }
    return pop_windows<Op>(ctx, windows);
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
    } else if constexpr (Ctx::kColumns) {
        detail::fold_columns<Op>(row, axis_size, ctx, tile_fn);
    } else {
        i64 window = 0;
        for (i64 first = ctx.first_chunk; first < ctx.end_chunk; first += kWindowChunks, ++window) {
            const int count = static_cast<int>(min_of<i64>(kWindowChunks, ctx.end_chunk - first));
            Slot<Op>* slots = ctx.template slots<Op>();
            if constexpr (Ctx::kOwnership == Ownership::kSplitK) {
                if (ctx.team.unit == 1) {
                    slots = ctx.template units<Op>() + first;
                }
            }
            for (int c = ctx.warp; c < count; c += ctx.warps) {
                Fold<Op> fold;
                tile_fn(fold, ctx.tile(first + c, axis_size));
                const Op chunk = fold.state().join_parallel(WarpReducer{});
                if (ctx.lane == 0) {
                    slots[c].state = chunk;
                }
            }
            if constexpr (Ctx::kOwnership == Ownership::kSplitK) {
                if (ctx.team.unit != 1) {
                    detail::publish_groups<Op>(ctx, first, count);
                }
            } else if (ctx.chunks > kWindowChunks) {
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
    if constexpr (Ctx::kWarpOwned) {
        state = state.join_parallel(WarpReducer{ctx.lanes, ctx.lanes < kWarpSize});
    } else if constexpr (Ctx::kColumns) {
        state = detail::join_columns<Op>(ctx);
    } else if constexpr (Ctx::kOwnership == Ownership::kResidentBlock) {
        state = BlockReducer{ctx.template slots<Op>(), ctx.warps}.generic(state);
    } else if constexpr (Ctx::kOwnership == Ownership::kResidentCluster) {
        const int turn = ctx.folds & 1;
        const int chunks = static_cast<int>(ctx.chunks);
        state = ClusterReducer<Ctx::kStateBytes>{ctx.cluster->states[turn], &ctx.cluster->barriers[turn], chunks,
                                                 chunks, ctx.warp, ctx.folds}
                    .generic(state);
    } else if constexpr (Ctx::kTiled) {
        state = TileReducer<Ctx::kStateBytes>{ctx.tiles, ctx.folds}.generic(state);
    } else if constexpr (Ctx::kOwnership == Ownership::kSplitK) {
        state = detail::join_team<Op>(ctx);
    } else if (ctx.chunks <= kWindowChunks) {
        state = detail::join_window<Op>(ctx, static_cast<int>(ctx.chunks));
    } else {
        state = detail::pop_windows<Op>(ctx, (ctx.chunks + kWindowChunks - 1) / kWindowChunks);
    }
    // The next fold writes the other half of the slots: a thread that is late in reading this one
    // is waited for by that fold's own barrier before this half is written again.
    ctx.folds += 1;
}

// Whether a row needs another walk, or one that walks along with it does: all of those make it, and those that
// do not need it leave what comes of it.
template <class Ctx>
RW_DEVICE bool walks_again(const Row& row, bool needs, Ctx&) {
    if constexpr (Ctx::kColumns) {
        // All warps have the same rows, so they agree.
        return !every_lane(!row.exists || !needs);
    } else if constexpr (Ctx::kTiled) {
        // The blocks of the cluster have the same rows, so they agree too.
        return any_of_block(row.exists && needs);
    } else {
        return needs;
    }
}

// Runs `emit` exactly once per row.
template <class Ctx, class F>
RW_DEVICE void once(const Row& row, Ctx& ctx, F&& emit) {
    constexpr bool kShared = Ctx::kOwnership == Ownership::kSplitK || Ctx::kColumns;
    const bool first = !kShared || ctx.first_chunk == 0;
    if (row.exists && ctx.lane == 0 && ctx.warp == 0 && first) {
        emit();
    }
}

}  // namespace rowwise
