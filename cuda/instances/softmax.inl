// launch_softmax, instantiated by softmax_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/softmax.cuh"
#include "../ops/softmax_gradient.cuh"

namespace rowwise {

template <class T>
int launch_softmax(const rw_softmax_params& params, void* stream, bool dry_run) {
    const rw_problem& p = params.problem;
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.y = static_cast<T*>(p.results[0]);
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    const auto run_gradient = [&](auto body) {
        body.gradient = input_rows<T>(p.operands[0].rows);
        return run(body);
    };
    switch (params.kind) {
        case RW_SOFTMAX:
            return run(SoftmaxBody<T>{});
        case RW_LOG_SOFTMAX:
            return run(LogSoftmaxBody<T>{});
        case RW_SOFTMAX_GRADIENT:
            return run_gradient(SoftmaxGradientBody<T, false>{});
        case RW_LOG_SOFTMAX_GRADIENT:
            return run_gradient(SoftmaxGradientBody<T, true>{});
    }
    return RW_NO_KERNEL;
}

}  // namespace rowwise
