// launch_norm_gradient, instantiated by norm_gradient_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/norm_gradient.cuh"

namespace rowwise {

template <class T>
int launch_norm_gradient(const rw_norm_params& params, void* stream, bool dry_run) {
    const rw_problem& p = params.problem;
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.grad = input_rows<T>(p.operands[0].rows);
        body.dx = static_cast<T*>(p.results[0]);
        body.sums = static_cast<accum_t<T>*>(p.results[1]);
        body.weight = p.operands[1].rows.data;
        body.weight_is_wide = p.operands[1].dtype != p.dtype;
        body.is_length = params.kind == RW_L2_NORMALIZE_GRADIENT;
        body.eps = params.eps;
        body.bands = p.bands;
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    switch (params.kind) {
        case RW_RMS_NORM_GRADIENT:
        case RW_L2_NORMALIZE_GRADIENT:
            return run(RmsNormGradientBody<T>{});
        case RW_LAYER_NORM_GRADIENT:
            return run(LayerNormGradientBody<T>{});
        default:
            return RW_NO_KERNEL;
    }
}

}  // namespace rowwise
