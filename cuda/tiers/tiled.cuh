// The tiled tier: rows that are columns in memory, held in registers.
//
// Each thread has one tile of one row; neighbouring threads have neighbouring rows, up to 32 of them, so that memory
// sees whole sectors, and the next ones the same rows at the next lane. A block has some rows of one chunk. Of
// longer rows it has a chunk, and a cluster has all of them, so that the row is read once and stays on the chip.
#pragma once

#include <rowwise/rowwise.cuh>

#include "../abi.h"

namespace rowwise {

// How columns are cut; see rw_plan.
struct TileGeometry {
    i64 width;    // of a row
    int columns;  // neighbouring rows
    int rows;     // of a block: groups of so many neighbours, side by side
    int lanes;
    int chunks;   // and blocks that share a row
    i64 panels;   // of the rows of a block, side by side in one outer index
};

// Elements of a tile at most: with twice as many, a thread needs 128 registers, and then a block has so few threads
// that its rows are too few for whole sectors (src/tuning.rs).
template <class T, int V>
constexpr bool kIsTileable = V * kVectorElements<T> <= RW_TILED_ELEMENTS;

// Threads of a block at most: half as many of f64, which takes twice the registers.
template <class T>
constexpr int kTileThreads = sizeof(T) == 8 ? RW_TILED_THREADS / 2 : RW_TILED_THREADS;

// Blocks that a multiprocessor should hold at once: two leave a thread 64 registers. A body that needs more says so. With
// one, softmax of (64, 4096, 512) over dim 1 is at 0.36 of a copy for 0.55 (bf16) and 0.62 for 0.90 (f32; H200,
// 2026-11-30).
template <class Body, class = void>
constexpr int kTileBlocks = sizeof(typename Body::Element) == 8 || !kHasClusters ? 1 : 2;
template <class Body>
constexpr int kTileBlocks<Body, decltype(static_cast<void>(Body::kTileBlocks))> = Body::kTileBlocks;

template <class Body, int V>
__global__ void __launch_bounds__(kTileThreads<typename Body::Element>, kTileBlocks<Body>)
    tiled_kernel(const __grid_constant__ Body body, const __grid_constant__ TileGeometry g) {
    using Ctx = Context<typename Body::Element, V, Ownership::kTiled, Body::kStateBytes>;
    RW_DYNAMIC_SHARED(dynamic_shared);
    RW_SHARED(barriers, ByteBarrier[2]);
    if constexpr (kHasClusters) {
        if (g.chunks > 1) {
            start_cluster(barriers);
        }
    }
    const u32 shared_by = blockIdx.x / static_cast<u32>(g.chunks);
    const int chunk = static_cast<int>(blockIdx.x - shared_by * static_cast<u32>(g.chunks));
    const u32 outer = shared_by / static_cast<u32>(g.panels);
    const i64 panel = shared_by - outer * static_cast<u32>(g.panels);
    const u32 of_column = threadIdx.x / static_cast<u32>(g.columns);
    const int lane = static_cast<int>(of_column) & (g.lanes - 1);
    const int group = of_column / static_cast<u32>(g.lanes);
    const int row = group * g.columns + (threadIdx.x & (g.columns - 1));
    const i64 column = panel * g.rows + row;
    const i64 inner = body.x.inner;
    Ctx ctx{};
    ctx.lane = lane;
    ctx.lanes = g.lanes;
    ctx.warp = chunk;
    ctx.chunks = g.chunks;
    ctx.place = {outer, column, inner, g.columns > 1};
    ctx.tiles = {dynamic_shared, barriers, g.rows, g.lanes, g.chunks, chunk, row, lane};
    body(Row{outer * inner + column, column < inner}, g.width, ctx);
}

}  // namespace rowwise
