// Context: what stands between a body and the tier that runs it.
//
// A body reads `axis`, `emit_tile_width`, `simd_width` and `accumulator_width` of it and nothing
// else; reduce, pjoin and once (walk.cuh) do the rest. There are two ways to own a row:
//
//   Resident   a thread owns one tile, which stays in registers for the whole body. The row has one
//              chunk (warp tier: several rows a warp where they are short), as many as the block
//              has warps (block tier), or as many as the blocks of a cluster have (cluster tier).
//   Streaming  a block walks the chunks of a row that has more of them than the threads that own it
//              can hold (block tier), or its range of them (split-K tier: a team of blocks shares the
//              row). Chunk states are kept in shared memory, and so is as much of the row as fits.
//
//   Tiled      rows that are columns in memory. A block, or a cluster, turns a panel of them into rows in
//              shared memory; each is then owned by a warp (or part of one) and held in registers, or,
//              where it has several chunks, walked by that warp chunk after chunk. What is emitted takes
//              the place of the row and is turned back.
//
// All fold in the same order: lanes of a chunk, 32 chunks, 32 groups of chunks.
#pragma once

#include "cluster.cuh"
#include "grid.cuh"

namespace rowwise {

// Which of the two, and for a resident row who shares it.
enum class Ownership {
    kResidentWarp,
    kResidentBlock,
    kResidentCluster,
    kStreaming,
    kSplitK,
    kTiledWarp,
    kTiledStreaming
};

// Resident blocks of 256 threads that a multiprocessor should hold at once, which bounds the
// registers of a thread: 5 leave 48 each, 4 leave 64, 3 leave 80, 2 leave 128. A body says what it
// wants for tiles of up to 32 values of a half type, on the warp tier, in a block and in a cluster,
// and for wider tiles; f32 tiles get a block less, and on the warp tier two at most; f64 tiles get
// two everywhere. More blocks hide more latency, until
// registers spill: the figures are the largest that do not.
// bf16 softmax (16384, 16384) in a cluster: 0.92 of copy speed with 4, 0.97 with 5 (H200,
// 2026-11-29).
struct Occupancy {
    int warp;
    int block;
    int cluster;
    int wide_block;
    int wide_cluster;
    int older = 2;  // at most, before sm_90
};

// Chunk states that a streaming row keeps before it joins them: 32 groups of 32.
constexpr int kWindowChunks = kWarpSize * kWarpSize;
// Partial results of a row of more chunks than that: a counter in base 2 of whole windows.
constexpr int kWindowLevels = 40;

// The shared memory of one block, as the plan lays it out. All states of a body fit in `state_bytes`.
struct SharedLayout {
    unsigned char* base;
    int slots;         // chunk states kept at once: a power of two at most kWindowChunks
    int stage_offset;  // where staged chunks begin
    i64 staged;        // how many of the block's chunks are staged, from its first one on
};

// Rows that each thread stages in shared memory for itself, so that the next one is on its way while this
// one is worked on: two turns of kRows times the vectors of a tile, and behind them a vector that all rows
// share, whose tile is the same for all of them, in what is computed in. No barrier: a thread reads what it has
// copied. A warp's are together, so that places are constants away from each other.
struct RowsAhead {
    static constexpr int kRows = 2;

    Word4* own;  // this lane's first one
    int turn;    // of the row at hand; the next one's is the other

    // Of T, in tiles of V vectors: 16-byte words of a lane.
    template <class T, int V>
    static constexpr int kWords = (2 * kRows + static_cast<int>(sizeof(accum_t<T>) / sizeof(T))) * V;

    template <class T, int V>
    static RW_DEVICE RowsAhead in(unsigned char* shared) {
        const int warp = threadIdx.x / kWarpSize;
        return {reinterpret_cast<Word4*>(shared) + warp * (kWords<T, V> * kWarpSize) + lane_id(), 0};
    }

    // Vector j of a row is j warps further.
    template <int V>
    RW_DEVICE Word4* place(int which, int of_turn) const {
        return own + (of_turn * kRows + which) * (V * kWarpSize);
    }
    template <int V>
    RW_DEVICE Word4* side() const {
        return own + 2 * kRows * (V * kWarpSize);
    }
};

// A row in a panel. Its vectors are swizzled, so that threads that turn neighbouring columns do not
// meet in a bank.
struct PanelRow {
    Word4* vectors;
    int swizzle;

    RW_DEVICE Word4& vector(int index) const {
        return vectors[index ^ swizzle];
    }
};

template <class T, int V, Ownership O, int StateBytes>
class Context {
public:
    // The axis is the innermost one on every tier so far.
    static constexpr int axis = -1;
    // Rows that a thread emits at once.
    static constexpr int emit_tile_width = 1;
    // Values of a tile.
    static constexpr int simd_width = kVectorElements<T> * V;
    // Lanes of a state while a tile is folded into it.
    static constexpr int accumulator_width = simd_width;

    // ------------------------------------------------------------ for the engine
    static constexpr Ownership kOwnership = O;
    static constexpr bool kResident = O == Ownership::kResidentWarp || O == Ownership::kResidentBlock ||
                                      O == Ownership::kResidentCluster || O == Ownership::kTiledWarp;
    // One warp, or a part of it, owns the row alone.
    static constexpr bool kWarpOwned = O == Ownership::kResidentWarp || O == Ownership::kTiledWarp;
    static constexpr bool kTiled = O == Ownership::kTiledWarp || O == Ownership::kTiledStreaming;
    static constexpr int kStateBytes = StateBytes;
    using Index = conditional_t<kResident, int, i64>;
    using TileT = Tile<kVectorElements<T>, V, Index>;

    int lane;    // place among the lanes that share a chunk
    int lanes;   // how many those are: 32 but for rows too short for so many
    int warp;    // place among the warps that share the row, in all its blocks
    int warps;   // of this block
    i64 chunks;  // of the row
    i64 first_chunk;  // of those that a streaming block walks
    i64 end_chunk;
    SharedLayout shared;
    ClusterSlots<StateBytes>* cluster;
    PanelRow panel;
    RowsAhead ahead;
    Team team;
    int folds;   // folds joined so far: the parity says which half of the slots the next one uses
    int walks;   // walks of this row so far

    // This thread's tile of a chunk of a row of `width` elements.
    RW_DEVICE TileT tile(Index chunk, Index width) const {
        return make_tile<TileT::kVectorWidth, TileT::kVectors, Index>(
            chunk, lane, kWarpOwned ? lanes : kWarpSize, width);
    }

    // The tile that a resident thread owns.
    RW_DEVICE TileT own_tile(const Row& row, i64 axis_size) const {
        const Index width = row.exists ? static_cast<Index>(axis_size) : 0;
        return tile(kWarpOwned ? 0 : warp, width);
    }

    template <class Op>
    RW_DEVICE Slot<Op>* slots() const {
        static_assert(sizeof(Slot<Op>) <= StateBytes, "the body declares too small a kStateBytes");
        return reinterpret_cast<Slot<Op>*>(shared.base + (folds & 1) * shared.slots * StateBytes);
    }

    // Group states, behind both halves of the slots.
    template <class Op>
    RW_DEVICE Slot<Op>* groups() const {
        return reinterpret_cast<Slot<Op>*>(shared.base +
                                     (2 * shared.slots + (folds & 1) * kWarpSize) * StateBytes);
    }

    // The states that the team publishes, in global memory.
    template <class Op>
    RW_DEVICE Slot<Op>* units() const {
        return reinterpret_cast<Slot<Op>*>(team.units +
                                           (folds & 1) * team.unit_count * StateBytes);
    }

    template <class Op>
    RW_DEVICE Slot<Op>* levels() const {
        return reinterpret_cast<Slot<Op>*>(shared.base +
                                     (2 * shared.slots + 2 * kWarpSize) * StateBytes);
    }
};

// Shared memory before the staged rows, for `slots` chunk states of `state_bytes`.
constexpr int streaming_shared_bytes(int slots, int state_bytes) {
    return (2 * slots + 2 * kWarpSize + kWindowLevels) * state_bytes;
}

}  // namespace rowwise
