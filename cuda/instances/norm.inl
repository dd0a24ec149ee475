// launch_norm, instantiated by norm_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/norm.cuh"

namespace rowwise {

template <class T>
int launch_norm(const rw_norm_params& params, void* stream, bool dry_run) {
    const rw_problem& p = params.problem;
    const auto is_own = [&](const rw_operand& side) {
        return side.rows.data != nullptr && side.dtype == p.dtype;
    };
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.y = static_cast<T*>(p.results[0]);
        body.weight = static_cast<const T*>(p.operands[0].rows.data);
        body.bias = static_cast<const T*>(p.operands[1].rows.data);
        body.eps = params.eps;
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    if (params.kind == RW_RMS_NORM && is_own(p.operands[0]) && p.operands[1].rows.data == nullptr) {
        return run(RmsNormBody<T, false>{});
    }
    if (params.kind == RW_LAYER_NORM && is_own(p.operands[0]) && is_own(p.operands[1])) {
        return run(LayerNormBody<T, false>{});
    }
    return launch_norm_general<T>(params, stream, dry_run);
}

}  // namespace rowwise
