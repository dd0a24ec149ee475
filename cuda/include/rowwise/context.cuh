// Context: what stands between a body and the tier that runs it.
//
// A body reads `axis`, `emit_tile_width`, `simd_width` and `accumulator_width` of it and nothing
// else; reduce, pjoin and once (walk.cuh) do the rest. There are two ways to own a row:
//
//   Resident   a thread owns one tile, which stays in registers for the whole body. The row has one
//              chunk (warp tier: several rows a warp where they are short) or as many as the block
//              has warps (block tier).
//   Streaming  a block walks the chunks of a row that has more of them than the block has warps, or
//              that is given fewer warps than it has chunks by force. Chunk states are kept in
//              shared memory, and so is the row where it fits.
//
// Both fold in the same order: lanes of a chunk, 32 chunks, 32 groups of chunks.
#pragma once

#include "reducer.cuh"

namespace rowwise {

// Which of the two, and for a resident row how many warps share it.
enum class Ownership { kResidentWarp, kResidentBlock, kStreaming };

// Chunk states that a streaming row keeps before it joins them: 32 groups of 32.
constexpr int kWindowChunks = kWarpSize * kWarpSize;
// Partial results of a row of more chunks than that: a counter in base 2 of whole windows.
constexpr int kWindowLevels = 40;

// The shared memory of one block, as the plan lays it out. All states of a body fit in `state_bytes`.
struct SharedLayout {
    unsigned char* base;
    int slots;         // chunk states kept at once: a power of two at most kWindowChunks
    int stage_offset;  // where staged rows begin; negative: none are staged
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
    static constexpr bool kResident = O != Ownership::kStreaming;
    static constexpr int kStateBytes = StateBytes;
    using TileT = Tile<kVectorElements<T>, V>;

    int lane;    // place among the lanes that share a chunk
    int lanes;   // how many those are: 32 but for several rows a warp
    int warp;    // place among the warps that share the row
    int warps;   // how many those are
    i64 chunks;  // of the row
    SharedLayout shared;
    int parity;  // which half of the slots the next fold uses
    int walks;   // walks of this row so far

    // The chunk that a resident thread owns.
    RW_DEVICE i64 own_chunk() const {
        return O == Ownership::kResidentWarp ? 0 : warp;
    }

    template <class Op>
    RW_DEVICE Op* slots() const {
        static_assert(sizeof(Op) <= StateBytes, "the body declares too small a kStateBytes");
        return reinterpret_cast<Op*>(shared.base + parity * shared.slots * StateBytes);
    }

    // Group states, behind both halves of the slots.
    template <class Op>
    RW_DEVICE Op* groups() const {
        return reinterpret_cast<Op*>(shared.base +
                                     (2 * shared.slots + parity * kWarpSize) * StateBytes);
    }

    template <class Op>
    RW_DEVICE Op* levels() const {
        return reinterpret_cast<Op*>(shared.base +
                                     (2 * shared.slots + 2 * kWarpSize) * StateBytes);
    }
};

// Shared memory before the staged rows, for `slots` chunk states of `state_bytes`.
constexpr int streaming_shared_bytes(int slots, int state_bytes) {
    return (2 * slots + 2 * kWarpSize + kWindowLevels) * state_bytes;
}

}  // namespace rowwise
