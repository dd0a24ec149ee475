// The cluster primitives as an op: a block a vector, exchanged within each cluster.
#pragma once

#include <rowwise/rowwise.cuh>

#include "../abi.h"

namespace rowwise {

// Elements exchanged at once; wider vectors go in pieces.
constexpr int kExchangeWidth = 8;
// Threads of a block: one for each element that a block gathers at once, and several warps, so that
// results cross from one to another.
constexpr int kExchangeThreads = kMaxClusterBlocks * kExchangeWidth;

// Memory for two slots of whatever type and width, used in turn: by the time that one of them serves
// again, everybody has passed the barrier of an exchange in the other.
struct alignas(16) ExchangeSlots {
    unsigned char bytes[2][sizeof(ClusterGatherSlot<u32, kExchangeWidth, kMaxClusterBlocks>)];
};

// The op's combine for the dtype's bits, picked as it runs: one for each of them would be eight times the
// code, and compile as long.
struct CombineBits {
    rw_cluster_op op;
    rw_dtype dtype;

    RW_DEVICE u32 combine(u32 a, u32 b) const {
        switch (dtype) {
            case RW_F32:
                return float_to_bits(of(bits_to_float(a), bits_to_float(b)));
            case RW_I32:
                return static_cast<u32>(of(static_cast<i32>(a), static_cast<i32>(b)));
            default:
                return of(a, b);
        }
    }

private:
    template <class T>
    RW_DEVICE T of(T a, T b) const {
        switch (op) {
            case RW_CLUSTER_MAX:
                return LargerOf::combine(a, b);
            case RW_CLUSTER_MIN:
                return SmallerOf::combine(a, b);
            default:
                return SumOf::combine(a, b);
        }
    }
};

template <int ClusterSize>
struct Exchange {
    const rw_cluster_params& p;
    ExchangeSlots& slots;
    i64 cluster;    // of those in x
    int rank;       // in it
    u32 turn;       // of the slots

    RW_DEVICE void run() {
        const i64 stride = gridDim.x / ClusterSize;
#pragma unroll 1
        for (cluster = blockIdx.x / ClusterSize; cluster < p.clusters; cluster += stride) {
#pragma unroll 1
            for (i64 first = 0; first < p.width; first += kExchangeWidth) {
                run_piece(first, static_cast<int>(min_of<i64>(kExchangeWidth, p.width - first)));
            }
        }
    }

private:
    RW_DEVICE void run_piece(i64 first, int width) {
        switch (width) {
            case 1: return run_width<1>(first);
            case 2: return run_width<2>(first);
            case 3: return run_width<3>(first);
            case 4: return run_width<4>(first);
            case 5: return run_width<5>(first);
            case 6: return run_width<6>(first);
            case 7: return run_width<7>(first);
            default: return run_width<8>(first);
        }
    }

    template <int Width>
    RW_DEVICE void run_width(i64 first) {
        if (p.op == RW_CLUSTER_GATHER) {
            gather<Width>(first);
        } else if (p.single_slot) {
            combine<Width, true>(first);
        } else {
            combine<Width, false>(first);
        }
    }

    template <int Width, bool NeedTailSync>
    RW_DEVICE void combine(i64 first) {
        u32 own[Width];
        load(first, own);
        u32 results[Width] = {};
#pragma unroll 1
        for (u32 left = static_cast<u32>(p.repeats); left-- > 0;) {
            u32 vals[Width];
            vary(own, left, vals);
            cluster_allreduce<u32, Width, CombineBits, ClusterSize, NeedTailSync>(
                slot<ClusterSlot<u32, Width>>(), vals, {p.op, p.dtype});
#pragma unroll
            for (int i = 0; i < Width; ++i) {
                results[i] ^= canonical(vals[i]);
            }
            turn += NeedTailSync ? 0 : 1;
        }
        // The next piece may be of another width, and its slot another type.
        turn += NeedTailSync ? 1 : 0;
        u32* y = static_cast<u32*>(p.y) + (cluster * ClusterSize + rank) * p.width + first;
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            // Threads of the last warp write, so the result has to reach them.
            if (threadIdx.x == kExchangeThreads - 1 - i) {
                y[i] = results[i];
            }
        }
    }

    template <int Width>
    RW_DEVICE void gather(i64 first) {
        u32 own[Width];
        load(first, own);
        u32 result = 0;
        const int i = static_cast<int>(threadIdx.x);
        constexpr int kGathered = ClusterSize * Width;
#pragma unroll 1
        for (u32 left = static_cast<u32>(p.repeats); left-- > 0;) {
            u32 vals[Width];
            vary(own, left, vals);
            const auto& all = cluster_allgather<u32, Width, ClusterSize, false>(
                slot<ClusterGatherSlot<u32, Width, ClusterSize>>(), vals);
            result ^= all[i < kGathered ? i : 0];
            turn += 1;
        }
        if (i < kGathered) {
            u32* y = static_cast<u32*>(p.y) + (cluster * ClusterSize + rank) * ClusterSize * p.width;
            y[i / Width * p.width + first + i % Width] = result;
        }
    }

    // This block's part of a vector, for thread 0, which alone is asked for it.
    template <int Width>
    RW_DEVICE void load(i64 first, u32 (&words)[Width]) const {
        const u32* x = static_cast<const u32*>(p.x) + cluster * p.strides[0] + rank * p.strides[1];
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            words[i] = threadIdx.x == 0 ? x[(first + i) * p.strides[2]] : 0;
        }
    }

    // What the exchange with `left` more to come takes of this block.
    template <int Width>
    static RW_DEVICE void vary(const u32 (&own)[Width], u32 left, u32 (&vals)[Width]) {
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            vals[i] = own[i] ^ left;
        }
    }

    template <class Slot>
    RW_DEVICE Slot& slot() {
        static_assert(sizeof(Slot) <= sizeof(slots.bytes[0]), "the slots are too small");
        return *reinterpret_cast<Slot*>(slots.bytes[turn & 1]);
    }

    // One NaN for all, as on the CPU.
    RW_DEVICE u32 canonical(u32 bits) const {
        return p.dtype == RW_F32 && is_nan(bits_to_float(bits)) ? float_to_bits(Limits<float>::nan())
                                                                : bits;
    }
};

template <int ClusterSize>
__global__ void __launch_bounds__(kExchangeThreads)
    cluster_exchange_kernel(const __grid_constant__ rw_cluster_params p) {
#if __CUDA_ARCH__ >= 900
    constexpr bool kRuns = true;
#else
    constexpr bool kRuns = ClusterSize == 1;
#endif
    if constexpr (kRuns) {
        RW_SHARED(slots, ExchangeSlots);
        const int rank = static_cast<int>(blockIdx.x % ClusterSize);
        if (rank == p.late_rank) {
            spin(p.spin_cycles);
        }
        Exchange<ClusterSize>{p, slots, 0, rank, 0}.run();
        if (rank == p.lingering_rank) {
            spin(p.spin_cycles);
        }
        if constexpr (ClusterSize > 1) {
            sync_cluster();
        }
    }
}

}  // namespace rowwise
