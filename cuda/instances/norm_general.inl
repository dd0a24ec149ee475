// launch_norm_general, instantiated by norm_general_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/norm.cuh"

namespace rowwise {

template <class T>
int launch_norm_general(const rw_norm_params& params, void* stream, bool dry_run) {
    const rw_problem& p = params.problem;
    const bool adds = params.kind == RW_ADD_RMS_NORM || params.kind == RW_ADD_LAYER_NORM;
    // A residual comes before the sides.
    const rw_operand* sides = p.operands + (adds ? 1 : 0);
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.residual = input_rows<T>(p.operands[0].rows);
        if (!adds) {
            body.residual.data = nullptr;
        }
        body.y = static_cast<T*>(p.results[0]);
        body.sum = adds ? static_cast<T*>(p.results[1]) : nullptr;
        body.weight = sides[0].rows.data;
        body.weight_is_wide = sides[0].dtype != p.dtype;
        body.bias = sides[1].rows.data;
        body.bias_is_wide = sides[1].dtype != p.dtype;
        body.is_length = params.kind == RW_L2_NORMALIZE;
        body.eps = params.eps;
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    switch (params.kind) {
        case RW_RMS_NORM:
        case RW_ADD_RMS_NORM:
        case RW_L2_NORMALIZE:
            return run(RmsNormBody<T, true>{});
        case RW_LAYER_NORM:
        case RW_ADD_LAYER_NORM:
            return run(LayerNormBody<T, true>{});
        case RW_RMS_NORM_GRADIENT:
        case RW_LAYER_NORM_GRADIENT:
        case RW_L2_NORMALIZE_GRADIENT:
            break;
    }
    return RW_NO_KERNEL;
}

}  // namespace rowwise
