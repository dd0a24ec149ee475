// launch_softmax, instantiated by softmax_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/softmax.cuh"

namespace rowwise {

template <class T>
int launch_softmax(const rw_softmax_params& params, void* stream, bool dry_run) {
    const rw_problem& p = params.problem;
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.y = static_cast<T*>(p.results[0]);
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    switch (params.kind) {
        case RW_SOFTMAX:
            return run(SoftmaxBody<T>{});
        case RW_LOG_SOFTMAX:
            return run(LogSoftmaxBody<T>{});
    }
    return RW_NO_KERNEL;
}

}  // namespace rowwise
