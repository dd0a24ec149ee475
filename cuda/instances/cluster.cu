// The exchange within clusters, for clusters of every size.
#include <utility>

#include "../ops/cluster.cuh"
#include "../ops/families.cuh"

namespace rowwise {

using ExchangeKernel = void(rw_cluster_params);

template <int... Below>
ExchangeKernel* exchange_kernel(int cluster_size, std::integer_sequence<int, Below...>) {
    static ExchangeKernel* const kernels[] = {cluster_exchange_kernel<Below + 1>...};
    return kernels[cluster_size - 1];
}

static bool exchange_is_sound(const rw_cluster_params& p) {
    const bool has_dtype = p.dtype == RW_F32 || p.dtype == RW_I32 || p.dtype == RW_U32;
    return has_dtype && p.op >= RW_CLUSTER_ADD && p.op <= RW_CLUSTER_GATHER && p.cluster_size >= 1 &&
           p.cluster_size <= kMaxClusterBlocks && p.clusters > 0 && p.width > 0 && p.blocks > 0 &&
           p.blocks % p.cluster_size == 0 && p.repeats > 0;
}

int launch_cluster(const rw_cluster_params& p, void* stream) {
    if (!exchange_is_sound(p)) {
        return RW_BAD_PLAN;
    }
    ExchangeKernel* kernel =
        exchange_kernel(p.cluster_size, std::make_integer_sequence<int, kMaxClusterBlocks>{});
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(p.blocks));
    config.blockDim = dim3(kExchangeThreads);
    config.stream = static_cast<cudaStream_t>(stream);
    cudaLaunchAttribute attribute;
    if (p.cluster_size > 1) {
        const cudaError_t allowed = ask_for_clusters(kernel, p.cluster_size, config, attribute);
        if (allowed != cudaSuccess) {
            return allowed;
        }
    }
    return cudaLaunchKernelEx(&config, kernel, p);
}

}  // namespace rowwise
