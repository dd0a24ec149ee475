// Kernels with one planted fault each, by which tests/suite/host_run.rs shows that the shim notices it.
#include <rowwise/rowwise.cuh>

#include "host_run.h"

namespace {

using namespace rowwise;

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpSize;

struct Buffers {
    const float* input;  // kThreads values, each its index
    float* output;       // likewise
};

// The control: what the others do, done right.
__global__ void sound(Buffers b) {
    RW_SHARED(parts, float[kWarps]);
    const int thread = threadIdx.x;
    const float total = WarpReducer{}.sum(b.input[thread]);
    if (lane_id() == 0) {
        parts[thread / kWarpSize] = total;
    }
    sync_block();
    b.output[thread] = parts[thread / kWarpSize] - total + thread;
}

__global__ void missing_barrier(Buffers b) {
    RW_SHARED(parts, float[kThreads]);
    const int thread = threadIdx.x;
    parts[thread] = b.input[thread];
    b.output[thread] = parts[kThreads - 1 - thread] - (kThreads - 1 - 2 * thread);
}

// Shared memory is written again while others may still read it.
__global__ void missing_second_barrier(Buffers b) {
    RW_SHARED(parts, float[kThreads]);
    const int thread = threadIdx.x;
    parts[thread] = b.input[thread];
    sync_block();
    const float other = parts[kThreads - 1 - thread];
    parts[thread] = 0;
    b.output[thread] = other - (kThreads - 1 - 2 * thread);
}

__global__ void barrier_not_reached_by_all(Buffers b) {
    const int thread = threadIdx.x;
    b.output[thread] = b.input[thread];
    if (thread < kThreads / 2) {
        sync_block();
    }
}

// Half of the block waits for bytes that nobody sends, the others for them.
__global__ void deadlock(Buffers b) {
    RW_SHARED(barrier, ByteBarrier);
    const int thread = threadIdx.x;
    b.output[thread] = b.input[thread];
    if (thread == 0) {
        init_byte_barrier(&barrier);
        announce_bytes(&barrier, 4);
    }
    sync_block();
    if (thread < kThreads / 2) {
        wait_for_bytes(&barrier, 0);
    }
    sync_block();
}

__global__ void absent_lanes(Buffers b) {
    const int thread = threadIdx.x;
    float value = b.input[thread];
    if (lane_id() < 16) {
        value = bits_to_float(shuffle_xor(kAllLanes, float_to_bits(value), 1));
    }
    b.output[thread] = value;
}

__global__ void lanes_outside_their_mask(Buffers b) {
    const int thread = threadIdx.x;
    b.output[thread] = bits_to_float(shuffle_xor(0xffffu, float_to_bits(b.input[thread]), 1));
}

__global__ void different_shuffles(Buffers b) {
    const int thread = threadIdx.x;
    const u32 word = float_to_bits(b.input[thread]);
    b.output[thread] = bits_to_float(lane_id() < 16 ? shuffle_xor(kAllLanes, word, 1) : shuffle_from(kAllLanes, word, 1));
}

__global__ void unwritten_shared_memory(Buffers b) {
    RW_SHARED(parts, float[kThreads]);
    const int thread = threadIdx.x;
    if (thread != 77) {
        parts[thread] = b.input[thread];
    }
    sync_block();
    b.output[thread] = parts[kThreads - 1 - thread] - (kThreads - 1 - 2 * thread);
}

__global__ void beyond_shared_memory(Buffers b) {
    RW_SHARED(parts, float[kThreads]);
    const int thread = threadIdx.x;
    parts[thread + 1] = b.input[thread];
    b.output[thread] = b.input[thread];
}

__global__ void misaligned_vector(Buffers b) {
    const int thread = threadIdx.x;
    const Word4 v = load_streaming(b.input + (thread < kThreads - 4 ? thread : 0));
    b.output[thread] = thread + 0 * bits_to_float(v.word[0]);
}

__global__ void beyond_the_input(Buffers b) {
    const int thread = threadIdx.x;
    b.output[thread] = thread + 0 * b.input[thread + 1];
}

__global__ void beyond_the_output(Buffers b) {
    const int thread = threadIdx.x;
    b.output[thread] = b.input[thread];
    if (thread == 0) {
        b.output[kThreads] = 0;
    }
}

__global__ void written_twice(Buffers b) {
    b.output[threadIdx.x] = b.input[threadIdx.x];
    if (threadIdx.x == 1) {
        b.output[0] = 0;
    }
}

__global__ void written_again(Buffers b) {
    b.output[threadIdx.x] = 0;
    store_again(b.output + threadIdx.x, b.input[threadIdx.x]);
}

__global__ void written_again_by_another(Buffers b) {
    const int thread = threadIdx.x;
    b.output[thread] = b.input[thread];
    sync_block();
    if (thread == 1) {
        store_again(b.output, b.input[0]);
    }
}

// Each thread has a vector of the input copied, and reads it.
enum class Wait { kDone, kForgotten, kTooLate };

template <Wait W>
__global__ void copied(Buffers b) {
    RW_SHARED(vectors, Word4[kThreads]);
    const int thread = threadIdx.x;
    copy_async(vectors + thread, b.input + thread / 4 * 4);
    if (W == Wait::kDone) {
        wait_for_copies();
    }
    const float value = bits_to_float(vectors[thread].word[thread % 4]);
    if (W == Wait::kTooLate) {
        wait_for_copies();
    }
    b.output[thread] = value;
}

__global__ void not_written(Buffers b) {
    if (threadIdx.x != 5) {
        b.output[threadIdx.x] = b.input[threadIdx.x];
    }
}

// What two blocks of a cluster do, each faulty one in its own way: block r sends its rank to the other.
enum class Slip { kNone, kNoStart, kNoWait, kEarlyExit, kNoBarrier };

template <Slip S>
__global__ void exchange(Buffers b) {
    RW_SHARED(received, float[1]);
    RW_SHARED(barrier, ByteBarrier);
    const int thread = threadIdx.x;
    const u32 rank = cluster_rank();
    if (thread == 0 && S != Slip::kNoBarrier) {
        init_byte_barrier(&barrier);
        fence_byte_barrier_init();
        announce_bytes(&barrier, 4);
    }
    sync_block();
    cluster_arrive_relaxed();
    if (S != Slip::kNoStart) {
        cluster_wait();
    }
    if (thread == 0) {
        push_words(cluster_address(received, 1 - rank), cluster_address(&barrier, 1 - rank), float_to_bits(float(rank)));
    }
    if (S == Slip::kNone || S == Slip::kNoStart || S == Slip::kNoBarrier) {
        wait_for_bytes(&barrier, 0);
    }
    const float other = S == Slip::kEarlyExit ? 1 - float(rank) : received[0];
    const int at = rank * kThreads + thread;
    b.output[at] = b.input[at] + other - (1 - float(rank));
}

__global__ void signed_overflow(Buffers b) {
    const int thread = threadIdx.x;
    const int large = 0x7fffffff - kThreads / 2;
    b.output[thread] = b.input[thread] + 0 * static_cast<float>(large + thread);
}

// Lanes one after the other.
struct Run {
    u32 first;
    u32 last;
    u32 whole;

    RW_DEVICE void join(const Run& later) {
        whole = whole && later.whole && last + 1 == later.first;
        last = later.last;
    }
};

// No fault: a join has the lanes in their order, which no monoid of the crate would show.
__global__ void joined_in_order(Buffers b) {
    const int thread = threadIdx.x;
    const u32 lane = static_cast<u32>(lane_id());
    const Run all = WarpReducer{}.generic(Run{lane, lane, 1});
    const bool right = all.whole && all.first == 0 && all.last == kWarpSize - 1;
    b.output[thread] = b.input[thread] + (right ? 0 : 1);
}

struct Fault {
    void (*kernel)(Buffers);
    unsigned blocks;
};

// In the order of FAULTS in tests/suite/host_run.rs.
const Fault kFaults[] = {
    {sound, 1},
    {exchange<Slip::kNone>, 2},
    {missing_barrier, 1},
    {missing_second_barrier, 1},
    {barrier_not_reached_by_all, 1},
    {deadlock, 1},
    {absent_lanes, 1},
    {lanes_outside_their_mask, 1},
    {different_shuffles, 1},
    {unwritten_shared_memory, 1},
    {misaligned_vector, 1},
    {exchange<Slip::kNoStart>, 2},
    {exchange<Slip::kNoWait>, 2},
    {exchange<Slip::kEarlyExit>, 2},
    {exchange<Slip::kNoBarrier>, 2},
    {beyond_shared_memory, 1},
    {beyond_the_input, 1},
    {beyond_the_output, 1},
    {written_twice, 1},
    {written_again, 1},
    {written_again_by_another, 1},
    {copied<Wait::kDone>, 1},
    {copied<Wait::kForgotten>, 1},
    {copied<Wait::kTooLate>, 1},
    {not_written, 1},
    {signed_overflow, 1},
    {joined_in_order, 1},
};

}  // namespace

extern "C" int32_t rw_host_run_fault(int32_t number, uint64_t seed) {
    if (number < 0 || number >= static_cast<int32_t>(sizeof kFaults / sizeof kFaults[0])) {
        return cudaErrorInvalidValue;
    }
    const Fault& fault = kFaults[number];
    const unsigned count = fault.blocks * kThreads;
    // Of the exact size, so that what lies beyond is not theirs.
    float* input = new float[count];
    float* output = new float[count];
    for (unsigned i = 0; i < count; ++i) {
        input[i] = static_cast<float>(i);
        std::memset(output + i, 0xff, sizeof(float));
    }
    rw_host_run_begin(seed, 1);
    rw_host_run_buffer(input, count * sizeof(float), RW_HOST_RUN_READ);
    rw_host_run_buffer(output, count * sizeof(float), RW_HOST_RUN_WRITE_ONCE);
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = dim3(fault.blocks);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(fault.blocks);
    config.blockDim = dim3(kThreads);
    config.attrs = &cluster;
    config.numAttrs = 1;
    int status = cudaLaunchKernelEx(&config, fault.kernel, Buffers{input, output});
    const int ended = rw_host_run_end();
    status = status == 0 ? ended : status;
    for (unsigned i = 0; i < count && status == 0; ++i) {
        if (output[i] != input[i]) {
            host_run::set_failure("the result is wrong");
            status = cudaErrorLaunchFailure;
        }
    }
    delete[] input;
    delete[] output;
    return status;
}
