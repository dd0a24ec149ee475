// One __global__ per way to own a row. Each sets up the context that its tier promises and hands the
// row to the body; none knows what the body computes.
#pragma once

#include <rowwise/rowwise.cuh>

#include "../abi.h"

namespace rowwise {

// What a kernel needs of the plan and the problem.
struct Geometry {
    i64 rows;
    i64 width;
    i64 chunks;
    int lanes;
    int slots;
    int stage_offset;
    i64 staged;
    // Of teams that share a row.
    unsigned char* workspace;
    int row_blocks;
    int unit;
};

// The same of f64, whatever the tier: 2, unless a body says otherwise.
template <class Body, class = void>
constexpr int kF64Blocks = 2;
template <class Body>
constexpr int kF64Blocks<Body, decltype(static_cast<void>(Body::kF64Blocks))> = Body::kF64Blocks;

// Vectors that a body sums over the rows of a band (see BandSums): none, unless it says otherwise. Such a body
// says how many bands there are and where their sums go; without sums, every row is a band.
template <class Body, class = void>
constexpr int kBandSums = 0;
template <class Body>
constexpr int kBandSums<Body, decltype(static_cast<void>(Body::kBandSums))> = Body::kBandSums;

template <class Body, class Ctx>
RW_DEVICE auto band_sums(const Body& body, i64 band, i64 width) {
    constexpr int K = kBandSums<Body>;
    return BandSums<Ctx, typename Body::Element, K>(
        body.sums == nullptr ? nullptr : body.sums + band * K * width, width);
}

// Runs every `step`-th row from `first` on, each staged while the one before it is worked on. All threads go
// round together, whether or not their own row exists.
template <class Body, class Ctx, class Sums>
RW_DEVICE void run_ahead(const Body& body, i64 first, i64 place, i64 step, const Geometry& g, Ctx& ctx,
                         Sums& sums) {
    const auto row_of = [&](i64 index) {
        return Row{index + place, !Ctx::kWarpOwned || index + place < g.rows};
    };
    const auto stage = [&](i64 index, int turn) {
        if constexpr (Ctx::kResident) {
            if (index < g.rows) {
                body.stage(row_of(index), g.width, ctx, turn);
            }
        }
    };
    if constexpr (Ctx::kResident) {
        body.stage_weights(ctx, ctx.own_tile(Row{0, true}, g.width));
    }
    stage(first, 0);
    for (i64 index = first; index < g.rows; index += step) {
        if constexpr (Ctx::kResident) {
            wait_for_copies();
        }
        stage(index + step, ctx.ahead.turn ^ 1);
        ctx.walks = 0;
        body(row_of(index), g.width, ctx, sums);
        ctx.ahead.turn ^= 1;
    }
}

// Runs the rows of a band, one after the other.
template <class Body, class Ctx>
RW_DEVICE void run_band(const Body& body, i64 band, const Geometry& g, Ctx& ctx) {
    auto sums = band_sums<Body, Ctx>(body, band, g.width);
    run_ahead(body, band, 0, body.bands, g, ctx, sums);
    if constexpr (Ctx::kResident) {
        sums.finish(ctx.own_tile(Row{band, true}, g.width));
    }
}

// How many blocks a multiprocessor should hold at once (see Occupancy).
template <class Body, int V>
constexpr int blocks_at_once(Ownership ownership) {
    constexpr Occupancy kWanted = Body::kOccupancy;
    constexpr int kElementBytes = sizeof(typename Body::Element);
    constexpr int kValues = V * kVectorElements<typename Body::Element>;
    const bool cluster = ownership == Ownership::kResidentCluster;
    int wanted = ownership == Ownership::kResidentWarp ? kWanted.warp
                 : cluster                             ? kWanted.cluster
                                                       : kWanted.block;
    if (kElementBytes == 8) {
        wanted = kF64Blocks<Body>;
    } else if (kValues > 32) {
        wanted = cluster ? kWanted.wide_cluster : kWanted.wide_block;
    } else if (kElementBytes == 4) {
        wanted = ownership == Ownership::kResidentWarp ? min_of(wanted, 2) : max_of(2, min_of(wanted - 1, 3));
    }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    // The figures are Hopper's; for what came before, only that nothing spills is known.
    wanted = kElementBytes == 8 || kValues > 32 || kBandSums<Body> > 0 ? 1 : min_of(wanted, kWanted.older);
#endif
    return wanted;
}

// Rows of one chunk: one warp a row, or several rows a warp where a few lanes hold a whole one.
template <class Body, int V>
__global__ void __launch_bounds__(RW_MAX_WARP_TIER_WARPS * kWarpSize,
                                  blocks_at_once<Body, V>(Ownership::kResidentWarp))
    warp_kernel(const __grid_constant__ Body body, const __grid_constant__ Geometry g) {
    using Ctx = Context<typename Body::Element, V, Ownership::kResidentWarp, Body::kStateBytes>;
    const int warp = threadIdx.x / kWarpSize;
    // A power of two: divisions would take some 40 instructions.
    const int lanes_log2 = 31 - __clz(g.lanes);
    const int rows_per_warp = kWarpSize >> lanes_log2;
    const int place = lane_id() >> lanes_log2;
    const i64 warps_per_block = blockDim.x / kWarpSize;
    const auto context = [&] {
        Ctx ctx{};
        ctx.lane = lane_id() & (g.lanes - 1);
        ctx.lanes = g.lanes;
        ctx.warps = 1;
        ctx.chunks = 1;
        return ctx;
    };
    // All lanes of a warp go round together, whether or not their own row exists.
    if constexpr (kBandSums<Body> > 0) {
        // A block's rows are a band.
        static_assert(kBandWarps == RW_MAX_WARP_TIER_WARPS, "the headers and the ABI count alike");
        auto sums = band_sums<Body, Ctx>(body, blockIdx.x, g.width);
        RW_DYNAMIC_SHARED(dynamic_shared);
        Ctx ctx = context();
        ctx.ahead = RowsAhead::in<typename Body::Element, V>(dynamic_shared);
        const i64 step = static_cast<i64>(gridDim.x) * warps_per_block * rows_per_warp;
        run_ahead(body, (blockIdx.x * warps_per_block + warp) * rows_per_warp, place, step, g, ctx, sums);
        // Where rows were staged, once no warp has any left.
        using Meeting = typename decltype(sums)::Meeting;
        static_assert(sizeof(Meeting) <= RowsAhead::kWords<typename Body::Element, V> * kVectorBytes *
                                             RW_MAX_WARP_TIER_WARPS * kWarpSize);
        sync_block();
        sums.finish_side_by_side(ctx.own_tile(Row{0, true}, g.width), g.lanes,
                                 *reinterpret_cast<Meeting*>(dynamic_shared));
    } else {
        for (i64 first = (blockIdx.x * warps_per_block + warp) * rows_per_warp; first < g.rows;) {
            Ctx ctx = context();
            body(Row{first + place, first + place < g.rows}, g.width, ctx);
            // The step is worked out for each row: softmax of half types has no registers left to keep it in.
            u32 lanes = static_cast<u32>(g.lanes);
            forget(lanes);
            first += static_cast<i64>(gridDim.x) * (blockDim.x >> (31 - __clz(static_cast<int>(lanes))));
        }
    }
}

// Rows of as many chunks as the block has warps; one row a block, so no more rows than blocks.
template <class Body, int V>
__global__ void __launch_bounds__(RW_MAX_RESIDENT_WARPS * kWarpSize,
                                  blocks_at_once<Body, V>(Ownership::kResidentBlock))
    block_kernel(const __grid_constant__ Body body, const __grid_constant__ Geometry g) {
    using Ctx = Context<typename Body::Element, V, Ownership::kResidentBlock, Body::kStateBytes>;
    RW_SHARED(slots, unsigned char[2 * RW_MAX_RESIDENT_WARPS * Body::kStateBytes]);
    Ctx ctx{};
    ctx.lane = lane_id();
    ctx.lanes = kWarpSize;
    ctx.warp = threadIdx.x / kWarpSize;
    ctx.warps = blockDim.x / kWarpSize;
    ctx.chunks = ctx.warps;
    ctx.shared.base = slots;
    ctx.shared.slots = RW_MAX_RESIDENT_WARPS;
    if constexpr (kBandSums<Body> > 0) {
        RW_DYNAMIC_SHARED(dynamic_shared);
        ctx.ahead = RowsAhead::in<typename Body::Element, V>(dynamic_shared);
        run_band(body, blockIdx.x, g, ctx);
    } else {
        body(Row{static_cast<i64>(blockIdx.x), true}, g.width, ctx);
    }
}

// Rows of as many chunks as the blocks of a cluster have warps, or a few less; one row a cluster.
template <class Body, int V>
__global__ void __launch_bounds__(RW_MAX_RESIDENT_WARPS * kWarpSize,
                                  blocks_at_once<Body, V>(Ownership::kResidentCluster))
    cluster_kernel(const __grid_constant__ Body body, const __grid_constant__ Geometry g) {
#if __CUDA_ARCH__ >= 900
    using Ctx = Context<typename Body::Element, V, Ownership::kResidentCluster, Body::kStateBytes>;
    RW_SHARED(slots, ClusterSlots<Body::kStateBytes>);
    start_cluster(slots.barriers);
    Ctx ctx{};
    ctx.lane = lane_id();
    ctx.lanes = kWarpSize;
    ctx.warps = blockDim.x / kWarpSize;
    ctx.warp = cluster_rank() * ctx.warps + threadIdx.x / kWarpSize;
    ctx.chunks = g.chunks;
    ctx.cluster = &slots;
    if constexpr (kBandSums<Body> > 0) {
        RW_DYNAMIC_SHARED(dynamic_shared);
        ctx.ahead = RowsAhead::in<typename Body::Element, V>(dynamic_shared);
        run_band(body, blockIdx.x / cluster_size(), g, ctx);
    } else {
        body(Row{static_cast<i64>(blockIdx.x / cluster_size()), true}, g.width, ctx);
    }
#endif
}

// Rows of any number of chunks.
template <class Body, int V>
__global__ void __launch_bounds__(RW_MAX_STREAMING_WARPS * kWarpSize, 1)
    streaming_kernel(const __grid_constant__ Body body, const __grid_constant__ Geometry g) {
    using Ctx = Context<typename Body::Element, V, Ownership::kStreaming, Body::kStateBytes>;
    RW_DYNAMIC_SHARED(dynamic_shared);
    Ctx ctx{};
    ctx.lane = lane_id();
    ctx.lanes = kWarpSize;
    ctx.warp = threadIdx.x / kWarpSize;
    ctx.warps = blockDim.x / kWarpSize;
    ctx.chunks = g.chunks;
    ctx.end_chunk = g.chunks;
    ctx.shared = {dynamic_shared, g.slots, g.stage_offset, g.staged};
    if constexpr (kBandSums<Body> > 0) {
        for (i64 band = blockIdx.x; band < body.bands; band += gridDim.x) {
            run_band(body, band, g, ctx);
        }
    } else {
        for (i64 row = blockIdx.x; row < g.rows; row += gridDim.x) {
            ctx.walks = 0;
            body(Row{row, true}, g.width, ctx);
        }
    }
}

// Rows of any number of chunks, each shared by a team of blocks. All blocks are resident at once, two
// a multiprocessor, so that one computes or waits for its team while the other moves data: sums of
// (2048, 262144) bf16 took 315 us with one and 260 with two (H200, 2026-11-30; a block a row that
// streams, for which there are rows enough there, 240).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kSplitKBlocks = 1;
#else
constexpr int kSplitKBlocks = RW_SPLIT_K_BLOCKS;
#endif

template <class Body, int V>
__global__ void __launch_bounds__(RW_MAX_STREAMING_WARPS * kWarpSize, kSplitKBlocks)
    split_k_kernel(const __grid_constant__ Body body, const __grid_constant__ Geometry g) {
    using Ctx = Context<typename Body::Element, V, Ownership::kSplitK, Body::kStateBytes>;
    RW_DYNAMIC_SHARED(dynamic_shared);
    Ctx ctx{};
    ctx.lane = lane_id();
    ctx.lanes = kWarpSize;
    ctx.warp = threadIdx.x / kWarpSize;
    ctx.warps = blockDim.x / kWarpSize;
    ctx.chunks = g.chunks;
    ctx.shared = {dynamic_shared, g.slots, g.stage_offset, g.staged};
    const int teams = gridDim.x / g.row_blocks;
    const int team = blockIdx.x / g.row_blocks;
    const i64 units = (g.chunks + g.unit - 1) / g.unit;
    TeamCounters* counters = reinterpret_cast<TeamCounters*>(g.workspace);
    ctx.team = {counters + team,
                g.workspace + RW_MAX_TEAMS * sizeof(TeamCounters) + 2 * team * units * Body::kStateBytes,
                units,
                g.unit,
                g.row_blocks,
                0};
    // Whole units, evenly.
    const i64 place = blockIdx.x % g.row_blocks;
    ctx.first_chunk = place * units / g.row_blocks * g.unit;
    ctx.end_chunk = min_of((place + 1) * units / g.row_blocks * g.unit, g.chunks);
    if constexpr (kBandSums<Body> > 0) {
        for (i64 band = team; band < body.bands; band += teams) {
            run_band(body, band, g, ctx);
        }
    } else {
        for (i64 row = team; row < g.rows; row += teams) {
            ctx.walks = 0;
            body(Row{row, true}, g.width, ctx);
        }
    }
    leave_team(ctx.team);
}

}  // namespace rowwise
