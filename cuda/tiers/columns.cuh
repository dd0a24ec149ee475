// The columns tier: rows that are columns in memory, read and written where they lie.
//
// A block or a cluster has 32 neighbouring rows, a lane of each of its warps per row, and its warps share the rows'
// length: chunks, and the lanes of a chunk (see ColumnShare). A warp reads elements of 32 rows at a place of the
// axis at once, which are neighbours in memory; only states go through shared memory.
#pragma once

#include <rowwise/rowwise.cuh>

#include "../abi.h"

namespace rowwise {

// How columns are cut; see rw_plan.
struct ColumnGeometry {
    i64 width;        // of a row
    int lane_warps;
    int chunk_warps;
    int blocks;       // that share 32 rows
    int lanes;
    i64 chunks;
    i64 panels;       // of 32 rows, side by side in one outer index
};

// Blocks that a multiprocessor should hold at once, of tiles of up to 32 elements and of more. 4 leave a thread 128
// registers, 2 leave 255, 8 leave 64. Blocks beside each other hide what each waits for: with 8 for 4,
// over dim 1 of (64, 4096, 512) f32, sum went from 0.93 of a copy to 0.97 and logsumexp from 0.83 to 0.95 (stand-alone
// kernels, H200, 2026-11-30). What keeps more would spill.
struct ColumnOccupancy {
    int narrow;
    int wide;
};

template <class Body, class = void>
constexpr ColumnOccupancy kColumnOccupancy = {4, 2};
template <class Body>
constexpr ColumnOccupancy kColumnOccupancy<Body, decltype(static_cast<void>(Body::kColumnOccupancy))> =
    {Body::kColumnOccupancy[0], Body::kColumnOccupancy[1]};

template <class Body, int V>
RW_HOST_DEVICE constexpr int column_blocks() {
    using T = typename Body::Element;
    const bool wide = V * kVectorElements<T> > 32;
    if (!kHasClusters) {
        // The figures are Hopper's; for what came before, only that nothing spills is known.
        return wide || sizeof(T) == 8 ? 2 : 3;
    }
    return wide ? kColumnOccupancy<Body>.wide : sizeof(T) == 8 ? 4 : kColumnOccupancy<Body>.narrow;
}

template <class Body, int V>
__global__ void __launch_bounds__(RW_COLUMN_WARPS * kWarpSize, column_blocks<Body, V>())
    columns_kernel(const __grid_constant__ Body body, const __grid_constant__ ColumnGeometry g) {
    using Ctx = Context<typename Body::Element, V, Ownership::kColumns, Body::kStateBytes>;
    RW_DYNAMIC_SHARED(dynamic_shared);
    const u32 shared_by = blockIdx.x / static_cast<u32>(g.blocks);
    const u32 outer = shared_by / static_cast<u32>(g.panels);
    const u32 panel = shared_by - outer * static_cast<u32>(g.panels);
    const i64 rank = blockIdx.x - shared_by * static_cast<u32>(g.blocks);
    if (g.blocks > 1) {
        arrive_at_columns();
    }
    const i64 column = static_cast<i64>(panel) * kWarpSize + lane_id();
    Ctx ctx{};
    ctx.lanes = g.lanes;
    ctx.warp = threadIdx.x / kWarpSize;
    ctx.warps = blockDim.x / kWarpSize;
    ctx.chunks = g.chunks;
    ctx.first_chunk = rank * g.chunks / g.blocks;
    ctx.end_chunk = (rank + 1) * g.chunks / g.blocks;
    ctx.place = {outer, column, body.x.inner, true};
    ctx.columns = {dynamic_shared, g.lane_warps, g.chunk_warps, g.blocks};
    body(Row{outer * body.x.inner + column, column < body.x.inner}, g.width, ctx);
}

}  // namespace rowwise
