// launch_softmax, instantiated by softmax_<dtype>.cu.
#include "../ops/families.cuh"
#include "../ops/softmax.cuh"
#include "../ops/softmax_gradient.cuh"
#include "../ops/softmax_options.cuh"

namespace rowwise {

// The options of a call, whose operands are the mask, the temperatures and the sinks; false where the kernels do
// not take their dtypes.
template <class T>
bool read_logits(const rw_softmax_params& params, const rw_operand* operands, Logits<T>& logits) {
    using A = accum_t<T>;
    logits.scale = static_cast<A>(params.scale);
    logits.soft_cap = static_cast<A>(params.soft_cap);
    logits.queries = params.queries;
    logits.mask = input_rows<u8>(operands[0].rows);
    logits.temperature = input_rows<A>(operands[1].rows);
    logits.sink = input_rows<A>(operands[2].rows);
    logits.mask_kind = MaskKind::kNone;
    if (logits.mask.data) {
        if (operands[0].dtype == params.problem.dtype) {
            logits.mask_kind = MaskKind::kAdditive;
        } else if (operands[0].dtype == RW_U8) {
            logits.mask_kind = MaskKind::kKept;
        } else if (operands[0].dtype == RW_F32 && sizeof(T) == 2) {
            logits.mask_kind = MaskKind::kAdditiveF32;
        } else {
            return false;
        }
    }
    const rw_dtype values = sizeof(A) == 8 ? RW_F64 : RW_F32;
    return (!logits.temperature.data || operands[1].dtype == values) &&
           (!logits.sink.data || operands[2].dtype == values);
}

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
    const auto run_with = [&](auto body) {
        body.log = params.kind == RW_LOG_SOFTMAX_WITH;
        return read_logits(params, p.operands, body.logits) ? run(body) : RW_NO_KERNEL;
    };
    const auto run_gradient_with = [&](auto body) {
        body.sink_gradient = static_cast<accum_t<T>*>(p.results[1]);
        body.of_logits = params.of_logits != 0;
        return read_logits(params, p.operands + 1, body.logits) ? run_gradient(body) : RW_NO_KERNEL;
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
        case RW_SOFTMAX_WITH:
        case RW_LOG_SOFTMAX_WITH:
            return run_with(SoftmaxWithBody<T>{});
        case RW_SOFTMAX_WITH_GRADIENT:
            return run_gradient_with(SoftmaxWithGradientBody<T, false>{});
        case RW_LOG_SOFTMAX_WITH_GRADIENT:
            return run_gradient_with(SoftmaxWithGradientBody<T, true>{});
    }
    return RW_NO_KERNEL;
}

}  // namespace rowwise
