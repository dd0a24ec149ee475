// The C ABI's entry points: dtype to instantiation, status to words.
#include "ops/families.cuh"

namespace {

template <class F>
int32_t with_dtype(rw_dtype dtype, F f) {
    switch (dtype) {
        case RW_F16:
            return f(rowwise::f16{});
        case RW_BF16:
            return f(rowwise::bf16{});
        case RW_F32:
            return f(float{});
        case RW_F64:
            return f(double{});
        default:
            return RW_NO_KERNEL;
    }
}

// For reductions: unsigned words are reduced by the kernels of signed ones, and any and all by those
// of the integers that are as wide.
template <class F>
int32_t with_reduced_dtype(rw_reduction reduction, rw_dtype dtype, F f) {
    const bool is_truth = reduction == RW_ANY || reduction == RW_ALL;
    switch (dtype) {
        case RW_U8:
            return f(rowwise::u8{});
        case RW_I16:
            return f(rowwise::i16{});
        case RW_U32:
        case RW_I32:
            return f(rowwise::i32{});
        case RW_I64:
            return f(rowwise::i64{});
        case RW_F16:
        case RW_BF16:
            return is_truth ? f(rowwise::i16{}) : with_dtype(dtype, f);
        case RW_F32:
            return is_truth ? f(rowwise::i32{}) : f(float{});
        case RW_F64:
            return is_truth ? f(rowwise::i64{}) : f(double{});
    }
    return RW_NO_KERNEL;
}

}  // namespace

extern "C" {

int32_t rw_reduce(const rw_reduce_params* params, void* stream, int32_t dry_run) {
    return with_reduced_dtype(params->reduction, params->problem.dtype, [&](auto t) {
        return rowwise::launch_reduce<decltype(t)>(*params, stream, dry_run != 0);
    });
}

int32_t rw_softmax(const rw_softmax_params* params, void* stream, int32_t dry_run) {
    return with_dtype(params->problem.dtype, [&](auto t) {
        return rowwise::launch_softmax<decltype(t)>(*params, stream, dry_run != 0);
    });
}

int32_t rw_norm(const rw_norm_params* params, void* stream, int32_t dry_run) {
    const bool is_gradient = params->kind == RW_RMS_NORM_GRADIENT ||
                             params->kind == RW_LAYER_NORM_GRADIENT ||
                             params->kind == RW_L2_NORMALIZE_GRADIENT;
    return with_dtype(params->problem.dtype, [&](auto t) {
        return is_gradient
                   ? rowwise::launch_norm_gradient<decltype(t)>(*params, stream, dry_run != 0)
                   : rowwise::launch_norm<decltype(t)>(*params, stream, dry_run != 0);
    });
}

int32_t rw_loss(const rw_loss_params* params, void* stream, int32_t dry_run) {
    return with_dtype(params->problem.dtype, [&](auto t) {
        return rowwise::launch_loss<decltype(t)>(*params, stream, dry_run != 0);
    });
}

int32_t rw_cluster(const rw_cluster_params* params, void* stream) {
    return rowwise::launch_cluster(*params, stream);
}

int32_t rw_max_cluster(int32_t* blocks) {
    return rowwise::max_cluster(blocks);
}

const char* rw_status_message(int32_t status) {
    switch (status) {
        case RW_OK:
            return "ok";
        case RW_NO_KERNEL:
            return "no kernel is built for this plan";
        case RW_BAD_PLAN:
            return "the plan does not fit the problem";
        default:
            return cudaGetErrorString(static_cast<cudaError_t>(status));
    }
}

}  // extern "C"
