// CUDA C++ as a host compiler reads it: qualifiers, built-in variables and functions, and the launch,
// all made of host_run/engine.h. Only what the device code uses; a word that is missing is a compile
// error, to be answered here. As with nvcc, every source file includes this first.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "host_run/engine.h"

// ---------------------------------------------------------------- qualifiers

#define __host__
#define __device__
#define __global__
#define __constant__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__ __restrict
// No __shared__: shared memory is declared by these (core.cuh). Each block has its own; the address of
// the key, one for each instance of a template, stands for the declaration.
#define RW_SHARED(name, ...)                                                          \
    static const char name##_key = 0;                                                 \
    auto& name = ::host_run::shared<::rowwise::same_t<__VA_ARGS__>>(&name##_key, #name)
#define RW_DYNAMIC_SHARED(name) \
    unsigned char* const name = static_cast<unsigned char*>(::host_run::dynamic_shared())

// ---------------------------------------------------------------- threads

namespace host_run {

// Objects and no macros: the runtime has members of the same names.
template <Index Thread::*Which>
struct BuiltIn {
    struct {
        operator unsigned() const { return self(Which, &Index::x); }
    } x;
    struct {
        operator unsigned() const { return self(Which, &Index::y); }
    } y;
    struct {
        operator unsigned() const { return self(Which, &Index::z); }
    } z;
};

}  // namespace host_run

inline constexpr host_run::BuiltIn<&host_run::Thread::thread> threadIdx{};
inline constexpr host_run::BuiltIn<&host_run::Thread::block> blockIdx{};
inline constexpr host_run::BuiltIn<&host_run::Thread::block_size> blockDim{};
inline constexpr host_run::BuiltIn<&host_run::Thread::grid> gridDim{};
constexpr int warpSize = 32;

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline void __syncthreads() {
    host_run::sync_block();
}

inline int __syncthreads_or(int predicate) {
    static const char key = 0;
    auto& votes = host_run::shared<int[1024]>(&key, "__syncthreads_or");
    votes[threadIdx.x] = predicate;
    host_run::sync_block();
    int any = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) {
        any |= votes[i];
    }
    host_run::sync_block();
    return any;
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned word = 0;
    for (int i = 0; i < 4; ++i) {
        word |= static_cast<unsigned>(bytes >> (8 * (which >> (4 * i) & 7)) & 0xff) << (8 * i);
    }
    return word;
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    host_run::collective(host_run::Collective::kSync, mask, 0);
}

namespace host_run {

template <class T>
T shuffle(Collective kind, unsigned mask, T value, int argument, int width) {
    static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    word = collective(kind, mask, word, argument, width);
    std::memcpy(&value, &word, sizeof(T));
    return value;
}

}  // namespace host_run

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    return host_run::shuffle(host_run::Collective::kShuffleFrom, mask, value, lane, width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    return host_run::shuffle(host_run::Collective::kShuffleUp, mask, value, static_cast<int>(distance), width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    return host_run::shuffle(host_run::Collective::kShuffleDown, mask, value, static_cast<int>(distance), width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    return host_run::shuffle(host_run::Collective::kShuffleXor, mask, value, lane_mask, width);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return static_cast<unsigned>(host_run::collective(host_run::Collective::kBallot, mask, predicate != 0));
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) == mask;
}

#define HOST_RUN_REDUCE(name, type, kind)                                                             \
    inline type name(unsigned mask, type value) {                                                     \
        return static_cast<type>(                                                                     \
            host_run::collective(host_run::Collective::kind, mask, static_cast<unsigned>(value)));    \
    }
HOST_RUN_REDUCE(__reduce_min_sync, unsigned, kMin)
HOST_RUN_REDUCE(__reduce_max_sync, unsigned, kMax)
HOST_RUN_REDUCE(__reduce_min_sync, int, kMinSigned)
HOST_RUN_REDUCE(__reduce_max_sync, int, kMaxSigned)
HOST_RUN_REDUCE(__reduce_add_sync, unsigned, kAdd)
HOST_RUN_REDUCE(__reduce_and_sync, unsigned, kAnd)
HOST_RUN_REDUCE(__reduce_or_sync, unsigned, kOr)
HOST_RUN_REDUCE(__reduce_xor_sync, unsigned, kXor)
#undef HOST_RUN_REDUCE

// ---------------------------------------------------------------- memory

// Memory is as sequential as the interleaving makes it: a fence has nothing to add.
inline void __threadfence() { host_run::preempt(); }
inline void __threadfence_block() { host_run::preempt(); }

inline size_t __cvta_generic_to_shared(const void* pointer) {
    return host_run::shared_address(pointer);
}

namespace host_run {

template <class T, class F>
T atomic(T* address, F update) {
    enter_atomic(address, sizeof(T));
    const T before = *address;
    *address = update(before);
    return before;
}

}  // namespace host_run

template <class T>
T atomicAdd(T* address, T value) {
    return host_run::atomic(address, [=](T old) { return static_cast<T>(old + value); });
}
template <class T>
T atomicSub(T* address, T value) {
    return host_run::atomic(address, [=](T old) { return static_cast<T>(old - value); });
}
template <class T>
T atomicExch(T* address, T value) {
    return host_run::atomic(address, [=](T) { return value; });
}
template <class T>
T atomicCAS(T* address, T compare, T value) {
    return host_run::atomic(address, [=](T old) { return old == compare ? value : old; });
}
template <class T>
T atomicMin(T* address, T value) {
    return host_run::atomic(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
T atomicMax(T* address, T value) {
    return host_run::atomic(address, [=](T old) { return old < value ? value : old; });
}
template <class T>
T atomicOr(T* address, T value) {
    return host_run::atomic(address, [=](T old) { return old | value; });
}
template <class T>
T atomicAnd(T* address, T value) {
    return host_run::atomic(address, [=](T old) { return old & value; });
}
inline unsigned atomicInc(unsigned* address, unsigned last) {
    return host_run::atomic(address, [=](unsigned old) { return old >= last ? 0 : old + 1; });
}

// ---------------------------------------------------------------- bits

namespace host_run {

template <class To, class From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

}  // namespace host_run

inline float __uint_as_float(unsigned bits) { return host_run::bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return host_run::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return host_run::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return host_run::bit_cast<int>(value); }
inline double __longlong_as_double(long long bits) { return host_run::bit_cast<double>(bits); }
inline long long __double_as_longlong(double value) { return host_run::bit_cast<long long>(value); }
inline int __double2loint(double value) { return static_cast<int>(host_run::bit_cast<uint64_t>(value)); }
inline int __double2hiint(double value) { return static_cast<int>(host_run::bit_cast<uint64_t>(value) >> 32); }
inline double __hiloint2double(int high, int low) {
    return host_run::bit_cast<double>(static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 |
                                      static_cast<uint32_t>(low));
}
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline int __ffs(int word) { return __builtin_ffs(word); }
inline int __clz(int word) { return word == 0 ? 32 : __builtin_clz(static_cast<unsigned>(word)); }

// ---------------------------------------------------------------- launch

typedef int cudaError_t;
typedef void* cudaStream_t;
constexpr cudaError_t cudaSuccess = 0;
constexpr cudaError_t cudaErrorInvalidValue = 1;
constexpr cudaError_t cudaErrorLaunchFailure = 719;

inline const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorInvalidValue:
            return "invalid argument";
        default:
            return host_run::last_failure();
    }
}

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 10,
};

namespace host_run {

// What a kernel may ask for, which attributes raise. Kept of the last one of a type: whoever needs an
// attribute sets it for each launch.
template <class Kernel>
struct Allowance {
    Kernel* kernel;
    size_t dynamic_bytes;
    unsigned cluster;

    static Allowance& of(Kernel* kernel) {
        static thread_local Allowance last = {};
        if (last.kernel != kernel) {
            last = {kernel, 48 * 1024, 8};
        }
        return last;
    }
};

}  // namespace host_run

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
    auto& allowance = host_run::Allowance<Kernel>::of(kernel);
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
        allowance.cluster = value != 0 ? 16 : 8;
        return cudaSuccess;
    }
    constexpr int kMost = 227 * 1024;
    if (value < 0 || value > kMost) {
        return cudaErrorInvalidValue;
    }
    allowance.dynamic_bytes = static_cast<size_t>(value);
    return cudaSuccess;
}

// One device, an H200's like.
enum cudaDeviceAttr { cudaDevAttrClusterLaunch = 120 };

inline cudaError_t cudaGetDevice(int* device) {
    *device = 0;
    return cudaSuccess;
}

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
    *value = 1;
    return cudaSuccess;
}

enum cudaLaunchAttributeID {
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
};

struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        dim3 clusterDim;
        int cooperative;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};

namespace host_run {

// The arguments of a launch: each thread calls the kernel with its own copies, as on the device.
template <class... P>
struct Call {
    void (*kernel)(P...);
    std::tuple<std::remove_cv_t<P>...> arguments;

    static void run(const void* self) {
        const Call& call = *static_cast<const Call*>(self);
        std::apply(call.kernel, call.arguments);
    }
};

}  // namespace host_run

template <class... P>
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* blocks, void (*)(P...), const cudaLaunchConfig_t*) {
    *blocks = 16;
    return cudaSuccess;
}

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... arguments) {
    const auto index = [](const dim3& d) { return host_run::Index{d.x, d.y, d.z}; };
    const host_run::Call<P...> call = {kernel, {std::forward<A>(arguments)...}};
    host_run::Launch launch = {};
    launch.grid = index(config->gridDim);
    launch.block = index(config->blockDim);
    launch.cluster = 1;
    launch.dynamic_bytes = config->dynamicSmemBytes;
    launch.kernel = call.run;
    launch.arguments = &call;
    launch.argument_bytes = sizeof(call);
    for (unsigned i = 0; i < config->numAttrs; ++i) {
        const cudaLaunchAttribute& attribute = config->attrs[i];
        if (attribute.id == cudaLaunchAttributeClusterDimension) {
            launch.cluster = attribute.val.clusterDim.x * attribute.val.clusterDim.y * attribute.val.clusterDim.z;
        } else {
            launch.cooperative = attribute.val.cooperative != 0;
        }
    }
    const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
    const uint64_t blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    const auto& allowance = host_run::Allowance<void(P...)>::of(kernel);
    const bool fits = threads > 0 && threads <= 1024 && blocks > 0 && launch.cluster > 0 &&
                      launch.cluster <= allowance.cluster && blocks % launch.cluster == 0 &&
                      launch.dynamic_bytes <= allowance.dynamic_bytes;
    if (!fits) {
        return cudaErrorInvalidValue;
    }
    return host_run::run(launch) ? cudaSuccess : cudaErrorLaunchFailure;
}
