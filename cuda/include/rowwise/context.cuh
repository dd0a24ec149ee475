// Context: what stands between a body and the tier that runs it.
//
// A body reads `axis`, `emit_tile_width`, `simd_width` and `accumulator_width` of it and nothing
// else; reduce, pjoin and once (walk.cuh) do the rest. There are four ways to own a row:
//
//   Resident   a thread owns one tile, which stays in registers for the whole body. The row has one
//              chunk (warp tier: several rows a warp where they are short), as many as the block
//              has warps (block tier), or as many as the blocks of a cluster have (cluster tier).
//   Streaming  a block walks the chunks of a row that has more of them than the threads that own it
//              can hold (block tier), or its range of them (split-K tier: a team of blocks shares the
//              row). Chunk states are kept in shared memory, and so is as much of the row as fits.
//
//   Tiled      rows that are columns in memory, read and written where they lie, each thread having one tile of
//              one row, which it keeps. Neighbouring threads have neighbouring rows, so that memory sees whole
//              sectors. A block has some rows of one chunk, or a chunk of longer ones, which a cluster shares.
//
//   Columns    the same of rows too long for that. A thread takes one of 32 neighbouring rows and does for it
//              what several lanes would, one tile after the other. The states of a chunk's lanes are turned in
//              shared memory, and joined by a warp. Nothing is kept: a second walk reads again.
//
// All fold in the same order: lanes of a chunk, 32 chunks, 32 groups of chunks.
#pragma once

#include "cluster.cuh"
#include "grid.cuh"

namespace rowwise {

// Which of them, and for a resident row who shares it.
enum class Ownership {
    kResidentWarp,
    kResidentBlock,
    kResidentCluster,
    kStreaming,
    kSplitK,
    kTiled,
    kColumns
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

// Where a row that is a column in memory lies.
struct ColumnPlace {
    i64 outer;   // index of the panel of columns that it is in
    i64 column;  // of it
    i64 inner;   // rows that lie side by side
    bool has_pairs;  // lanes 2k and 2k + 1 of the warp have neighbouring ones, the first of an even index
};

// How a block of the tiled tier shares its rows: as many threads a row as a chunk has lanes.
struct TileShare {
    unsigned char* shared;  // states of lanes, of rows, then of chunks: two of each, used in turn
    ByteBarrier* barriers;  // of each turn, for what a block receives
    int rows;               // of the block
    int lanes;              // of a chunk
    int chunks;             // of a row: blocks of the cluster
    int chunk;              // that this block has
    int row;                // of this thread, among those of the block
    int lane;               // and which lane of it

    // From a row's states of lanes to the next row's: one more, so that those who write them do not meet in a bank.
    RW_HOST_DEVICE static constexpr int pitch(int lanes) {
        return lanes + 1;
    }

    // Shared memory of a block.
    static constexpr i64 bytes(i64 rows, int lanes, i64 chunks, int state_bytes) {
        return rows * (pitch(lanes) + 1 + (chunks > 1 ? 2 * chunks : 0)) * state_bytes;
    }
};

// How the warps of a block share the chunks of 32 rows on the columns tier, a lane of each warp per row.
struct ColumnShare {
    // From a state of a lane of a row to that of the row's next lane: one more, so that those who join the
    // lanes of a row do not meet in a bank.
    static constexpr int kPitch = kWarpSize + 1;

    unsigned char* shared;  // states of lanes, then of chunks and of rows, two of each, used in turn
    int lane_warps;         // warps that share a chunk
    int chunk_warps;        // chunks that a block walks side by side
    int blocks;             // that share the rows

    // Shared memory of a block.
    static constexpr i64 bytes(int lanes, int chunk_warps, i64 chunks, int state_bytes) {
        return (static_cast<i64>(chunk_warps) * lanes * kPitch + 2 * (chunks + 1) * kWarpSize) * state_bytes;
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
    static constexpr bool kTiled = O == Ownership::kTiled;
    static constexpr bool kResident = O == Ownership::kResidentWarp || O == Ownership::kResidentBlock ||
                                      O == Ownership::kResidentCluster || kTiled;
    // One warp, or a part of it, owns the row alone.
    static constexpr bool kWarpOwned = O == Ownership::kResidentWarp;
    static constexpr bool kColumns = O == Ownership::kColumns;
    // Rows are columns in memory.
    static constexpr bool kSideBySide = kTiled || kColumns;
    static constexpr int kStateBytes = StateBytes;
    using Index = conditional_t<kResident || kSideBySide, int, i64>;
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
    ColumnPlace place;
    TileShare tiles;
    ColumnShare columns;
    RowsAhead ahead;
    Team team;
    int folds;   // folds joined so far: the parity says which half of the slots the next one uses
    int walks;   // walks of this row so far

    // This thread's tile of a chunk of a row of `width` elements.
    RW_DEVICE TileT tile(Index chunk, Index width) const {
        return make_tile<TileT::kVectorWidth, TileT::kVectors, Index>(
            chunk, lane, kWarpOwned || kTiled ? lanes : kWarpSize, width);
    }

    // The tile of a lane that this thread stands for.
    RW_DEVICE TileT tile_of_lane(int chunk, int which, int width) const {
        static_assert(kColumns);
        return make_tile<TileT::kVectorWidth, TileT::kVectors, Index>(chunk, which, lanes, width);
    }

    // The tile that a resident thread owns.
    RW_DEVICE TileT own_tile(const Row& row, i64 axis_size) const {
        const Index width = row.exists ? static_cast<Index>(axis_size) : 0;
        return tile(kWarpOwned ? 0 : warp, width);
    }

    // Has the place of the tile worked out anew from here on, where it would be kept in registers since the last walk.
    RW_DEVICE void forget_place() {
        int& place = kWarpOwned ? lane : warp;
        u32 word = static_cast<u32>(place);
        forget(word);
        place = static_cast<int>(word);
    }

    template <class Op>
    RW_DEVICE Slot<Op>* slots() const {
        static_assert(sizeof(Slot<Op>) <= StateBytes, "the body declares too small a kStateBytes");
        return reinterpret_cast<Slot<Op>*>(shared.base + (folds & 1) * shared.slots * StateBytes);
    }

    // States of lanes, of the chunk that this warp works on.
    template <class Op>
    RW_DEVICE Slot<Op>* lane_states() const {
        static_assert(sizeof(Slot<Op>) <= StateBytes, "the body declares too small a kStateBytes");
        return reinterpret_cast<Slot<Op>*>(columns.shared + warp / columns.lane_warps * lanes *
                                                                ColumnShare::kPitch * StateBytes);
    }

    // States of chunks, those of a row side by side. The other half is written once every thread that shares
    // the rows has read this one.
    template <class Op>
    RW_DEVICE Slot<Op>* chunk_states(int row) const {
        const i64 before = static_cast<i64>(columns.chunk_warps) * lanes * ColumnShare::kPitch +
                           (folds & 1) * (chunks + 1) * kWarpSize + row * chunks;
        return reinterpret_cast<Slot<Op>*>(columns.shared + before * StateBytes);
    }

    // States of rows.
    template <class Op>
    RW_DEVICE Slot<Op>* row_states() const {
        return chunk_states<Op>(kWarpSize);
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
