// launch_norm, instantiated by norm_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/norm.cuh"

namespace rowwise {

template <class T>
int launch_norm(const rw_norm_params& params, void* stream, bool dry_run) {
    const rw_problem& p = params.problem;
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.y = static_cast<T*>(p.results[0]);
        body.weight = static_cast<const T*>(p.operands[0].rows.data);
        body.eps = params.eps;
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    switch (params.kind) {
        case RW_RMS_NORM:
            return run(RmsNormBody<T>{});
        case RW_LAYER_NORM: {
            LayerNormBody<T> body{};
            body.bias = static_cast<const T*>(p.operands[1].rows.data);
            return run(body);
        }
    }
    return RW_NO_KERNEL;
}

}  // namespace rowwise
