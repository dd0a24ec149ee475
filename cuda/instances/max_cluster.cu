// What the device says of clusters, asked of the kernel whose threads hold the most registers.
#include "../ops/families.cuh"
#include "../ops/softmax.cuh"

int rowwise::max_cluster(int* blocks) {
    *blocks = 0;
    int device = 0;
    int has_clusters = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess) {
        status = cudaDeviceGetAttribute(&has_clusters, cudaDevAttrClusterLaunch, device);
    }
    if (status != cudaSuccess || has_clusters == 0) {
        return status;
    }
    auto* kernel = cluster_kernel<SoftmaxBody<bf16>, 8>;
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (status != cudaSuccess) {
        return status;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kMaxClusterBlocks);
    config.blockDim = dim3(RW_MAX_RESIDENT_WARPS * kWarpSize);
    status = cudaOccupancyMaxPotentialClusterSize(blocks, kernel, &config);
    *blocks = min_of(*blocks, kMaxClusterBlocks);
    return status;
}
