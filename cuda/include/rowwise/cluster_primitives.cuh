// For kernel authors: a small vector a block, exchanged between the blocks of a cluster (sm_90 and up).
//
//   cluster_allreduce    every block's vector, combined; in every thread of every block
//   cluster_allgather    every block's vector, by rank; in the shared memory of every block
//   load_cluster_smem    a vector in the shared memory of one block of the cluster
//   store_cluster_smem   its mirror
//
// They carry types of 32 bits. A state of any size and trivially copyable type, such as those that
// pjoin joins, is combined across a cluster by ClusterReducer (cluster.cuh), which pushes instead.
//
// Blocks are one-dimensional and have whole warps. All threads of all blocks of the cluster make the
// same calls. ClusterSize is the number of blocks that the kernel was launched with, 1 to 16; with 1
// nothing here needs clusters, nor sm_90.
//
//     __shared__ ClusterSlot<float, 2> slot;
//     float vals[2] = {block_sum, block_count};  // valid in thread 0
//     cluster_allreduce<float, 2, SumOf, 4>(slot, vals);
//     if (vals[0] > limit) { ... }               // all blocks go the same way
#pragma once

#include "cluster.cuh"

namespace rowwise {

// Bytes to which a vector of so many words is aligned where it is accessed as widely as it can be.
RW_HOST_DEVICE constexpr int cluster_alignment(int width) {
    return width >= 4 ? 16 : width >= 2 ? 8 : 4;
}

namespace detail {

template <class T, int Width>
struct Carried {
    static_assert(sizeof(T) == 4,
                  "cluster primitives carry types of 32 bits; ClusterReducer joins states of any size");
    static_assert(__is_trivially_copyable(T), "what is carried is a value's bits");
    static_assert(Width >= 1, "a vector has at least one element");
    static constexpr bool kChecked = true;
};

}  // namespace detail

// What a call of cluster_allreduce needs of shared memory: a vector that peers read, and the result
// that thread 0 leaves for its block. A variable of the kernel, so that it is the same memory in every
// block. The functions take the slot itself and no address: one that differs between blocks cannot be
// passed by mistake.
//
// With NeedTailSync, a slot may serve the next call at once. Without, callers alternate between two
// slots, and all threads call sync_cluster() before any of them leaves the kernel: a peer may still be
// reading. Memory that serves as slots of several types takes a barrier of the block, or a call with
// another slot, between one type and the next.
template <class T, int Width, int Results = 1>
struct alignas(cluster_alignment(Width)) ClusterSlot {
    static_assert(detail::Carried<T, Width>::kChecked);
    T own[Width];
    T result[Results * Width];
};

// The same of cluster_allgather.
template <class T, int Width, int ClusterSize>
using ClusterGatherSlot = ClusterSlot<T, Width, ClusterSize>;

namespace detail {

// Words that the next access of `left` takes.
RW_HOST_DEVICE constexpr int access_words(int left, int alignment) {
    return left >= 4 && alignment >= 16 ? 4 : left >= 2 && alignment >= 8 ? 2 : 1;
}

template <int Left, int Alignment, int Width>
RW_DEVICE void load_peer_vector(const unsigned char* address, u32 rank, u32 (&words)[Width]) {
    if constexpr (Left > 0) {
        constexpr int at = Width - Left;
        constexpr int kWords = access_words(Left, Alignment);
        if constexpr (kWords == 4) {
            load_peer_words(address + 4 * at, rank, words[at], words[at + 1], words[at + 2],
                            words[at + 3]);
        } else if constexpr (kWords == 2) {
            load_peer_words(address + 4 * at, rank, words[at], words[at + 1]);
        } else {
            load_peer_words(address + 4 * at, rank, words[at]);
        }
        load_peer_vector<Left - kWords, Alignment>(address, rank, words);
    }
}

template <int Left, int Alignment, int Width>
RW_DEVICE void store_peer_vector(unsigned char* address, u32 rank, const u32 (&words)[Width]) {
    if constexpr (Left > 0) {
        constexpr int at = Width - Left;
        constexpr int kWords = access_words(Left, Alignment);
        if constexpr (kWords == 4) {
            store_peer_words(address + 4 * at, rank, words[at], words[at + 1], words[at + 2],
                             words[at + 3]);
        } else if constexpr (kWords == 2) {
            store_peer_words(address + 4 * at, rank, words[at], words[at + 1]);
        } else {
            store_peer_words(address + 4 * at, rank, words[at]);
        }
        store_peer_vector<Left - kWords, Alignment>(address, rank, words);
    }
}

}  // namespace detail

// Reads the vector that lies at `address` in this block's shared memory as block `rank` has it. That block
// must have written it before a sync_cluster() that this thread has passed, and must not leave nor
// write it again before another. `address` is aligned to Alignment bytes; the widest accesses that
// fit are used, so that widths 1, 2 and 4 take one.
template <class T, int Width, int Alignment = cluster_alignment(Width)>
RW_DEVICE void load_cluster_smem(const T* address, u32 rank, T (&values)[Width]) {
    static_assert(detail::Carried<T, Width>::kChecked);
    u32 words[Width];
    detail::load_peer_vector<Width, Alignment>(reinterpret_cast<const unsigned char*>(address), rank,
                                               words);
    __builtin_memcpy(values, words, sizeof(values));
}

// Writes a vector to where `address` is in block `rank`. That block must have begun (it has where this
// thread has passed a sync_cluster()), and sees the vector after another one.
template <class T, int Width, int Alignment = cluster_alignment(Width)>
RW_DEVICE void store_cluster_smem(T* address, u32 rank, const T (&values)[Width]) {
    static_assert(detail::Carried<T, Width>::kChecked);
    u32 words[Width];
    __builtin_memcpy(words, values, sizeof(values));
    detail::store_peer_vector<Width, Alignment>(reinterpret_cast<unsigned char*>(address), rank, words);
}

namespace detail {

template <class T, int N>
RW_DEVICE void copy(T* to, const T (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
        to[i] = from[i];
    }
}

// What both exchanges are: thread 0 shows its vector to the cluster, lane r of the first warp reads that of
// rank r, and `finish` makes slot.result of those, which is then seen by the block. All peers are
// read at once, so the time hardly grows with the size of the cluster.
template <int ClusterSize, bool NeedTailSync, class T, int Width, int Results, class F>
RW_DEVICE void exchange(ClusterSlot<T, Width, Results>& slot, const T (&vals)[Width], F finish) {
    static_assert(ClusterSize >= 1 && ClusterSize <= kMaxClusterBlocks, "no such cluster");
    if constexpr (ClusterSize == 1) {
        if constexpr (NeedTailSync) {
            // At the head, for once: until all have read the last result.
            sync_block();
        }
        if (threadIdx.x == 0) {
            copy(slot.result, vals);
        }
        sync_block();
    } else {
        if (threadIdx.x == 0) {
            copy(slot.own, vals);
        }
        sync_cluster();
        if (threadIdx.x < kWarpSize) {
            const int rank = lane_id();
            T peer[Width] = {};
            if (rank < ClusterSize) {
                load_cluster_smem<T, Width, alignof(ClusterSlot<T, Width, Results>)>(
                    slot.own, static_cast<u32>(rank), peer);
            }
            finish(rank, peer);
        }
        if constexpr (NeedTailSync) {
            sync_cluster();
        } else {
            sync_block();
        }
    }
}

}  // namespace detail

// Combines a vector a block across the cluster. In: `vals` of thread 0 of each block, already reduced
// within the block; those of other threads are not looked at. Out: `vals` of every thread of every
// block, the vectors of all ranks combined element by element.
//
// Every block combines all vectors itself and in the order of their ranks, from the left, so all come to
// the same bits and may branch on them. Combine is a type with a function combine(a, b): SumOf
// (integers wrap), LargerOf and SmallerOf (a NaN wins), or one of the caller's; one with options of its
// own is passed as a value.
template <class T, int Width, class Combine, int ClusterSize, bool NeedTailSync = true>
RW_DEVICE void cluster_allreduce(ClusterSlot<T, Width>& slot, T (&vals)[Width],
                                 const Combine& with = Combine{}) {
    const auto fold = [&](int, const T (&peer)[Width]) {
        const auto of_rank = [&](int i, int rank) {
            return shuffle_state(peer[i],
                                 [=](u32 word) { return shuffle_from(kAllLanes, word, rank); });
        };
        T folded[Width];
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            folded[i] = of_rank(i, 0);
        }
#pragma unroll 1
        for (int rank = 1; rank < ClusterSize; ++rank) {
#pragma unroll
            for (int i = 0; i < Width; ++i) {
                folded[i] = with.combine(folded[i], of_rank(i, rank));
            }
        }
        if (threadIdx.x == 0) {
            detail::copy(slot.result, folded);
        }
    };
    detail::exchange<ClusterSize, NeedTailSync>(slot, vals, fold);
    detail::copy(vals, slot.result);
}

// Every block's vector in the order of their ranks, element i of rank r at [r * Width + i]. In: `vals` of
// thread 0 of each block. Out: in the slot, for every thread of every block, until the slot serves
// again; whoever wants the values longer copies them.
template <class T, int Width, int ClusterSize, bool NeedTailSync = true>
RW_DEVICE auto cluster_allgather(ClusterGatherSlot<T, Width, ClusterSize>& slot, const T (&vals)[Width])
    -> const T (&)[ClusterSize * Width] {
    const auto keep = [&](int rank, const T (&peer)[Width]) {
        if (rank < ClusterSize) {
            detail::copy(slot.result + rank * Width, peer);
        }
    };
    detail::exchange<ClusterSize, NeedTailSync>(slot, vals, keep);
    return slot.result;
}

}  // namespace rowwise
