// From a plan to a launch: picks the instantiation the plan names, checks that the plan is one that
// it can run, and launches. Takes no decision of its own.
#pragma once

#include <cuda_runtime.h>

#include "columns.cuh"
#include "kernels.cuh"
#include "tiled.cuh"

namespace rowwise {

static_assert(sizeof(TeamCounters) == RW_TEAM_BYTES && kWindowChunks == RW_WINDOW_CHUNKS && kMaxResidentWarps == RW_MAX_RESIDENT_WARPS &&
                  kMaxClusterBlocks == RW_MAX_CLUSTER_BLOCKS,
              "the headers and the ABI count alike");

// Blocks of a cluster that every device with clusters runs.
constexpr int kPortableClusterBlocks = 8;

template <int... Vs>
struct VectorList {};

template <int V>
struct Vectors {
    static constexpr int kCount = V;
};

// Vectors a lane that each kernel is made for, by element size: those that
// src/tuning.rs::chunk_shape answers for rows of one chunk, of as many as a block or a cluster
// holds, and of any number. A test walks the planner and asks for a kernel for each plan.
template <int ElementBytes>
struct Made {
    using Warp = VectorList<1, 2, 4, 8>;
    using Block = VectorList<8>;
    using Cluster = VectorList<8>;
    using Streaming = VectorList<8>;
};
template <>
struct Made<1> {
    using Warp = VectorList<1, 2>;
    using Block = VectorList<2>;
    using Cluster = VectorList<2>;
    using Streaming = VectorList<2>;
};
template <>
struct Made<2> {
    using Warp = VectorList<1, 2, 4>;
    using Block = VectorList<4, 8>;
    using Cluster = VectorList<4, 8>;
    using Streaming = VectorList<4, 8>;
};

// The same of bodies that sum over rows, which keep fewer elements a lane beside what they sum.
struct MadeOfBands {
    using Warp = VectorList<1, 2, 4>;
    using Block = VectorList<4>;
    using Cluster = VectorList<4>;
    using Streaming = VectorList<4>;
};

// Calls f with the vector count as a compile-time constant; RW_NO_KERNEL where the list lacks it, or it is
// more than Most.
template <int Most, class F, int... Vs>
int with_vectors(VectorList<Vs...>, int vectors, F f) {
    int status = RW_NO_KERNEL;
    const auto one = [&](auto v) {
        if constexpr (decltype(v)::kCount <= Most) {
            status = f(v);
        }
    };
    static_cast<void>(((vectors == Vs ? (one(Vectors<Vs>{}), true) : false) || ...));
    return status;
}

constexpr bool is_power_of_two(int n) {
    return n > 0 && (n & (n - 1)) == 0;
}

// Rows of the element type that a body keeps between walks: one, unless it says otherwise (as
// Op::cached_rows must, for the plan to make room).
template <class Body, class = void>
constexpr int kCachedRows = 1;
template <class Body>
constexpr int kCachedRows<Body, decltype(static_cast<void>(Body::kCachedRows))> = Body::kCachedRows;

// Vectors a lane that a body has kernels for, at most (as src/tuning.rs::chunk_shape must say): as rows of one
// chunk may have fewer, and all others have so many. 0 where the body says nothing.
template <class Body, class = void>
constexpr int kMostVectors = 0;
template <class Body>
constexpr int kMostVectors<Body, decltype(static_cast<void>(Body::kMostVectors))> = Body::kMostVectors;

template <class Body, int Most = kMostVectors<Body>>
struct MadeFor {
    using Warp = typename Made<sizeof(typename Body::Element)>::Warp;
    using Block = VectorList<Most>;
    using Cluster = VectorList<Most>;
    using Streaming = VectorList<Most>;
};
template <class Body>
struct MadeFor<Body, 0> : Made<sizeof(typename Body::Element)> {};

// The same of a block that streams and keeps `kept` states.
template <class Body>
bool streaming_is_sound(const rw_plan& plan, i64 chunk, int warps, i64 kept) {
    const int fixed = streaming_shared_bytes(plan.slots, Body::kStateBytes);
    const i64 staged = plan.staged * chunk * static_cast<i64>(sizeof(typename Body::Element)) *
                       kCachedRows<Body>;
    return warps <= RW_MAX_STREAMING_WARPS && plan.lanes == kWarpSize &&
           plan.slots >= min_of<i64>(kept, kWindowChunks) && plan.staged >= 0 &&
           plan.stage_offset % kVectorBytes == 0 && plan.stage_offset >= fixed &&
           plan.shared_bytes >= plan.stage_offset + staged;
}

// True where the plan stays within what the kernels assume.
template <class Body>
bool plan_is_sound(const rw_plan& plan, i64 rows, i64 width) {
    const i64 chunk =
        static_cast<i64>(plan.lanes) * kVectorElements<typename Body::Element> * plan.vectors;
    const int warps = plan.threads / kWarpSize;
    if (rows <= 0 || width <= 0 || plan.blocks <= 0 || plan.threads % kWarpSize != 0 || warps <= 0 ||
        plan.lanes <= 0 || plan.lanes > kWarpSize || kWarpSize % plan.lanes != 0 ||
        plan.chunks * chunk < width || (plan.chunks - 1) * chunk >= width) {
        return false;
    }
    switch (plan.ownership) {
        case RW_RESIDENT_WARP:
            return plan.chunks == 1 && warps <= RW_MAX_WARP_TIER_WARPS;
        case RW_RESIDENT_BLOCK:
            return plan.chunks == warps && warps <= RW_MAX_RESIDENT_WARPS &&
                   plan.lanes == kWarpSize && plan.blocks == rows;
        case RW_RESIDENT_CLUSTER:
            return plan.row_blocks > 1 && plan.row_blocks <= RW_MAX_CLUSTER_BLOCKS &&
                   (plan.row_blocks & (plan.row_blocks - 1)) == 0 && warps <= RW_MAX_RESIDENT_WARPS &&
                   plan.chunks <= plan.row_blocks * warps && plan.lanes == kWarpSize &&
                   plan.blocks == rows * plan.row_blocks;
        case RW_STREAMING:
            return streaming_is_sound<Body>(plan, chunk, warps, plan.chunks);
        case RW_SPLIT_K: {
            if ((plan.unit != 1 && plan.unit != kWarpSize) || plan.row_blocks < 1 ||
                plan.blocks % plan.row_blocks != 0 || plan.blocks / plan.row_blocks > RW_MAX_TEAMS) {
                return false;
            }
            const i64 units = (plan.chunks + plan.unit - 1) / plan.unit;
            const i64 own = (units + plan.row_blocks - 1) / plan.row_blocks * plan.unit;
            // Chunk states go to the workspace; what a block keeps is those of their groups.
            const i64 kept = plan.unit == 1 ? (plan.chunks + kWarpSize - 1) / kWarpSize : own;
            return units >= plan.row_blocks && (plan.unit != 1 || kept <= plan.slots) &&
                   streaming_is_sound<Body>(plan, chunk, warps, kept);
        }
        case RW_COLUMNS:
            return warps == plan.lane_warps * plan.chunk_warps && warps <= RW_COLUMN_WARPS &&
                   plan.chunks <= kWindowChunks && (plan.chunks == 1 || plan.lanes == kWarpSize) &&
                   width <= RW_MAX_COLUMN && is_power_of_two(plan.row_blocks) &&
                   plan.row_blocks <= min_of<i64>(plan.chunks, RW_MAX_CLUSTER_BLOCKS) && plan.panels > 0 &&
                   plan.blocks % (plan.panels * plan.row_blocks) == 0 &&
                   plan.shared_bytes >=
                       ColumnShare::bytes(plan.lanes, plan.chunk_warps, plan.chunks, Body::kStateBytes);
        case RW_TILED: {
            return is_power_of_two(plan.columns) && plan.columns <= kWarpSize && plan.block_rows > 0 &&
                   plan.block_rows % plan.columns == 0 && plan.threads == plan.block_rows * plan.lanes &&
                   plan.threads % kWarpSize == 0 && plan.threads <= kTileThreads<typename Body::Element> &&
                   plan.row_blocks == plan.chunks && plan.chunks <= RW_MAX_CLUSTER_BLOCKS &&
                   (plan.chunks == 1 || plan.lanes == kWarpSize) && plan.panels > 0 &&
                   plan.blocks % (plan.panels * plan.row_blocks) == 0 &&
                   plan.shared_bytes >=
                       TileShare::bytes(plan.block_rows, plan.lanes, plan.chunks, Body::kStateBytes);
        }
    }
    return false;
}

// Has `config` launch `kernel` in clusters of so many blocks, by an attribute that must outlive it.
template <class Kernel>
cudaError_t ask_for_clusters(Kernel* kernel, int blocks, cudaLaunchConfig_t& config,
                             cudaLaunchAttribute& attribute) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (blocks <= kPortableClusterBlocks) {
        return cudaSuccess;
    }
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

template <class Body>
int launch(const Body& body, i64 rows, i64 width, const rw_plan& plan, void* stream, bool dry_run) {
    static_assert(Body::kStateBytes <= RW_STATE_BYTES || Body::kMostSplitVectors == 0,
                  "the workspace has RW_STATE_BYTES a state");
    constexpr int kMost = kMostVectors<Body> > 0 ? kMostVectors<Body> : 8;
    using Lists = conditional_t<(kBandSums<Body> > 0), MadeOfBands, MadeFor<Body>>;
    i64 owned = rows;
    if constexpr (kBandSums<Body> > 0) {
        // On the warp tier a band is the rows of a block; else it has an owner.
        owned = body.bands;
        if (body.bands < 1 || body.bands > rows ||
            (plan.ownership == RW_RESIDENT_WARP && body.sums != nullptr && plan.blocks != body.bands)) {
            return RW_BAD_PLAN;
        }
        // Two turns of RowsAhead, and its side.
        static_assert(Body::kCachedRows == RowsAhead::kRows);
        constexpr int kWords = RowsAhead::kWords<typename Body::Element, 1>;
        const bool is_resident = plan.ownership == RW_RESIDENT_WARP || plan.ownership == RW_RESIDENT_BLOCK ||
                                 plan.ownership == RW_RESIDENT_CLUSTER;
        if (is_resident &&
            plan.shared_bytes < kWords * plan.vectors * plan.threads * kVectorBytes) {
            return RW_BAD_PLAN;
        }
    }
    if (!plan_is_sound<Body>(plan, owned, width)) {
        return RW_BAD_PLAN;
    }
    const Geometry rows_of = {rows,
                               width,
                               plan.chunks,
                               plan.lanes,
                               plan.slots,
                               plan.stage_offset,
                               plan.staged,
                               static_cast<unsigned char*>(plan.workspace),
                               plan.row_blocks,
                               plan.unit};
    const auto start = [&](auto* kernel, const auto& geometry) -> int {
        if (dry_run) {
            return RW_OK;
        }
        // Beyond 48 KiB, which what a kernel declares itself counts towards, it must be asked for.
        if (plan.shared_bytes > 32 * 1024) {
            const cudaError_t raised = cudaFuncSetAttribute(
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes);
            if (raised != cudaSuccess) {
                return raised;
            }
        }
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
        config.blockDim = dim3(static_cast<unsigned>(plan.threads));
        config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
        config.stream = static_cast<cudaStream_t>(stream);
        cudaLaunchAttribute attribute;
        if (plan.row_blocks > 1 && plan.ownership != RW_SPLIT_K) {
            const cudaError_t allowed = ask_for_clusters(kernel, plan.row_blocks, config, attribute);
            if (allowed != cudaSuccess) {
                return allowed;
            }
        } else if (plan.ownership == RW_SPLIT_K) {
            // All blocks resident at once, or a refusal.
            attribute.id = cudaLaunchAttributeCooperative;
            attribute.val.cooperative = 1;
            config.attrs = &attribute;
            config.numAttrs = 1;
        }
        return cudaLaunchKernelEx(&config, kernel, body, geometry);
    };
    switch (plan.ownership) {
        case RW_RESIDENT_WARP:
            return with_vectors<kMost>(typename Lists::Warp{}, plan.vectors, [&](auto v) {
                return start(warp_kernel<Body, decltype(v)::kCount>, rows_of);
            });
        case RW_RESIDENT_BLOCK:
            return with_vectors<kMost>(typename Lists::Block{}, plan.vectors, [&](auto v) {
                return start(block_kernel<Body, decltype(v)::kCount>, rows_of);
            });
        case RW_RESIDENT_CLUSTER:
            return with_vectors<kMost>(typename Lists::Cluster{}, plan.vectors, [&](auto v) {
                return start(cluster_kernel<Body, decltype(v)::kCount>, rows_of);
            });
        case RW_STREAMING:
            return with_vectors<kMost>(typename Lists::Streaming{}, plan.vectors, [&](auto v) {
                return start(streaming_kernel<Body, decltype(v)::kCount>, rows_of);
            });
        case RW_SPLIT_K:
            return with_vectors<kMost>(typename Lists::Streaming{}, plan.vectors, [&](auto v) -> int {
                if constexpr (decltype(v)::kCount <= Body::kMostSplitVectors) {
                    return start(split_k_kernel<Body, decltype(v)::kCount>, rows_of);
                } else {
                    return RW_NO_KERNEL;
                }
            });
        case RW_COLUMNS:
            if constexpr (!Body::kTakesColumns) {
                return RW_NO_KERNEL;
            } else {
                const ColumnGeometry columns = {width,      plan.lane_warps, plan.chunk_warps, plan.row_blocks,
                                                plan.lanes, plan.chunks,     plan.panels};
                if (plan.chunks == 1) {
                    return with_vectors<kMost>(typename Lists::Warp{}, plan.vectors, [&](auto v) {
                        return start(columns_kernel<Body, decltype(v)::kCount>, columns);
                    });
                }
                return with_vectors<kMost>(typename Lists::Streaming{}, plan.vectors, [&](auto v) {
                    return start(columns_kernel<Body, decltype(v)::kCount>, columns);
                });
            }
        case RW_TILED:
            if constexpr (!Body::kTakesColumns) {
                return RW_NO_KERNEL;
            } else {
                const TileGeometry tiles = {width,      plan.columns, plan.block_rows,
                                            plan.lanes, static_cast<int>(plan.chunks), plan.panels};
                const auto of = [&](auto v) -> int {
                    if constexpr (kIsTileable<typename Body::Element, decltype(v)::kCount>) {
                        return start(tiled_kernel<Body, decltype(v)::kCount>, tiles);
                    } else {
                        return RW_NO_KERNEL;
                    }
                };
                return plan.chunks == 1 ? with_vectors<kMost>(typename Lists::Warp{}, plan.vectors, of)
                                        : with_vectors<kMost>(typename Lists::Cluster{}, plan.vectors, of);
            }
    }
    return RW_BAD_PLAN;
}

template <class T>
InputRows<T> input_rows(const rw_rows& rows) {
    InputRows<T> in;
    in.data = static_cast<const T*>(rows.data);
    for (int i = 0; i < 3; ++i) {
        in.sizes[i] = rows.sizes[i];
        in.strides[i] = rows.strides[i];
    }
    in.axis_stride = rows.axis_stride;
    in.inner = rows.inner;
    in.single_stride = rows.sizes[0] == 1 && rows.sizes[1] == 1;
    return in;
}

}  // namespace rowwise
