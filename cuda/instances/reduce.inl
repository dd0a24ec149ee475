// launch_reduce, instantiated by reduce_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/reduce.cuh"

namespace rowwise {

template <class T>
int launch_reduce(const rw_reduce_params& params, void* stream, bool dry_run) {
    const rw_problem& p = params.problem;
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.y = static_cast<typename decltype(body)::Output*>(p.y);
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    switch (params.reduction) {
        case RW_SUM:
            return run(ReduceBody<T, SumReduction>{});
        case RW_MAX:
            return run(ReduceBody<T, MaxReduction>{});
        case RW_ARGMAX:
            return run(ReduceBody<T, ArgMaxReduction>{});
        case RW_LOGSUMEXP:
            return run(ReduceBody<T, LogSumExpReduction>{});
    }
    return RW_NO_KERNEL;
}

}  // namespace rowwise
