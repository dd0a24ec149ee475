// The rung of the join ladder for rows that are columns, of which a thread has one tile.
//
// The lanes of a chunk are spread over warps: their states are turned in shared memory, so that those of a row are
// neighbours, and joined as on the other tiers. Of longer rows that gives the state of a block's chunk, which the
// cluster joins.
#pragma once

#include "context.cuh"

namespace rowwise {

template <int StateBytes>
struct TileReducer {
    const TileShare& share;
    int fold;  // how many folds of this kernel came before

    // The join of all states of each row, in all threads that have the row. All threads of all blocks call.
    template <class Op>
    RW_DEVICE Op generic(const Op& state) const {
        static_assert(sizeof(Slot<Op>) <= StateBytes, "the body declares too small a kStateBytes");
        if (share.lanes == 1) {
            return state;
        }
        const int pitch = TileShare::pitch(share.lanes);
        Slot<Op>* of_lanes = slots<Op>(0);
        Slot<Op>* of_rows = slots<Op>(share.rows * pitch);
        of_lanes[share.row * pitch + share.lane].state = state;
        sync_block();
        const int row = threadIdx.x / share.lanes;
        const int lane = threadIdx.x & (share.lanes - 1);
        const Op joined = join_lanes(of_lanes[row * pitch + lane].state, row);
        if (lane == 0) {
            of_rows[row].state = joined;
        }
        // Those who write either of them next have passed this or the next fold's first.
        sync_block();
        return of_rows[share.row].state;
    }

private:
    // Slots from the `index`-th on.
    template <class Op>
    RW_DEVICE Slot<Op>* slots(int index) const {
        return reinterpret_cast<Slot<Op>*>(share.shared + index * StateBytes);
    }

    template <class Op>
    RW_DEVICE Op join_lanes(const Op& state, int row) const {
        if constexpr (kHasClusters) {
            if (share.chunks > 1) {
                const int turn = fold & 1;
                const int states = share.rows * share.chunks;
                const int before = share.rows * (TileShare::pitch(share.lanes) + 1) + turn * states;
                return ClusterReducer<StateBytes>{share.shared + (before + row * share.chunks) * StateBytes,
                                                  &share.barriers[turn],
                                                  states,
                                                  share.chunks,
                                                  share.chunk,
                                                  fold}
                    .generic(state);
            }
        }
        return state.join_parallel(WarpReducer{share.lanes});
    }
};

}  // namespace rowwise
