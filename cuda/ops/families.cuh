// The entry point of each family for one element type: picks the body and launches it. Instantiated
// once per family and dtype, by the files of cuda/instances/.
#pragma once

#include "../tiers/launch.cuh"

namespace rowwise {

template <class T>
int launch_reduce(const rw_reduce_params& params, void* stream, bool dry_run);
template <class T>
int launch_softmax(const rw_softmax_params& params, void* stream, bool dry_run);
template <class T>
int launch_norm(const rw_norm_params& params, void* stream, bool dry_run);
template <class T>
int launch_loss(const rw_loss_params& params, void* stream, bool dry_run);
// With what most norms lack: a residual, another dtype of weight or bias, one without the other or neither.
template <class T>
int launch_norm_general(const rw_norm_params& params, void* stream, bool dry_run);
template <class T>
int launch_norm_gradient(const rw_norm_params& params, void* stream, bool dry_run);
// The exchange within clusters, of any dtype.
int launch_cluster(const rw_cluster_params& params, void* stream);

// Blocks of a cluster that the current device runs the kernels with.
int max_cluster(int* blocks);

}  // namespace rowwise
