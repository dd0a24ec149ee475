// The rung of the join ladder above the block: the blocks of a cluster (sm_90 and up).
//
// States are pushed, not pulled: each warp sends its state to every block of the cluster, which
// counts the bytes in a barrier of its own, waits on that alone, and joins its own copies in the
// order of the row. So every block comes to the same bits, with no barrier of the cluster on the
// way, and none before leaving: a block that has joined has received all that is ever sent to it,
// and nobody reads from a peer.
#pragma once

#include "reducer.cuh"

namespace rowwise {

// Whether there are clusters: before sm_90 every block is on its own.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

// Blocks of a cluster at most: twice what every sm_90 device allows.
constexpr int kMaxClusterBlocks = 16;
// Chunk states of a row that a cluster shares.
constexpr int kMaxClusterStates = kMaxClusterBlocks * kMaxResidentWarps;

// Sends a state to a block of the cluster, which counts its bytes in its barrier; cluster addresses.
template <class Op>
RW_DEVICE void push_state(const Op& state, u32 address, u32 barrier) {
    const Words<Op> words(state);
    constexpr int kCount = Words<Op>::kCount;
    if constexpr (kCount == 2) {
        push_words(address, barrier, words.word[0], words.word[1]);
    } else if constexpr (kCount == 4) {
        push_words(address, barrier, words.word[0], words.word[1], words.word[2], words.word[3]);
    } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            push_words(address + 4 * i, barrier, words.word[i]);
        }
    }
}

// Two of everything, used in turn. A warp sends the states of fold k + 2 only after it has received
// those of fold k + 1 from every warp, each of which had read fold k by then.
template <int StateBytes>
struct ClusterSlots {
    alignas(16) unsigned char states[2][kMaxClusterStates * StateBytes];
    ByteBarrier barriers[2];
};

// Combines over the warps of a cluster that share a row: an all-reduce of any trivially copyable state. All
// threads of all its blocks call, those of several rows together. (Of a few words a block, cluster_primitives.cuh
// has one without a barrier in memory.)
template <int StateBytes>
struct ClusterReducer {
    unsigned char* states;  // of the row, this turn's
    ByteBarrier* barrier;   // of this turn
    int expected;           // states that a block receives, of all its rows
    int chunks;             // states to join: one a warp, in the order of the row
    int chunk;              // this warp's place in that order; it sends nothing where that is `chunks` or more
    int fold;               // how many folds of this kernel came before

    template <class Op>
    RW_DEVICE Op generic(const Op& state) const {
        static_assert(sizeof(Slot<Op>) <= StateBytes, "the body declares too small a kStateBytes");
        Slot<Op>* received = reinterpret_cast<Slot<Op>*>(states);
        const Op part = state.join_parallel(WarpReducer{});
        if (threadIdx.x == 0) {
            announce_bytes(barrier, static_cast<u32>(expected * sizeof(Slot<Op>)));
        }
        if (fold == 0) {
            // Every block of the cluster has started, and its barriers count.
            cluster_wait();
        }
        // Lane r sends to block r.
        const u32 rank = static_cast<u32>(lane_id());
        if (rank < cluster_size() && chunk < chunks) {
            push_state(part, cluster_address(received + chunk, rank), cluster_address(barrier, rank));
        }
        wait_for_bytes(barrier, static_cast<u32>(fold >> 1) & 1);
        return join_slots_in_groups(received, chunks);
    }
};

// Says that this thread has begun.
RW_DEVICE void arrive_at_columns() {
    if constexpr (kHasClusters) {
        cluster_arrive_relaxed();
    }
}

// Waits until all threads of the cluster have begun.
RW_DEVICE void wait_for_columns() {
    if constexpr (kHasClusters) {
        cluster_wait();
    }
}

// Waits for all threads of the cluster, and sees what they have written.
RW_DEVICE void sync_columns() {
    if constexpr (kHasClusters) {
        sync_cluster();
    }
}

// Writes a state to where `slot` is in block `rank`.
template <class Op>
RW_DEVICE void store_to_block(Slot<Op>* slot, u32 rank, const Op& state) {
    if constexpr (kHasClusters) {
        const Words<Op> words(state);
        const u32 address = cluster_address(slot, rank);
#pragma unroll
        for (int i = 0; i < Words<Op>::kCount; ++i) {
            store_cluster_word(address + 4 * i, words.word[i]);
        }
    }
}

// What every thread of a block does before its first fold across the cluster; the fold itself waits
// for the others.
RW_DEVICE void start_cluster(ByteBarrier (&barriers)[2]) {
    if (threadIdx.x == 0) {
        init_byte_barrier(&barriers[0]);
        init_byte_barrier(&barriers[1]);
        fence_byte_barrier_init();
    }
    // The block's own threads must see the barriers too.
    sync_block();
    cluster_arrive_relaxed();
}

}  // namespace rowwise
