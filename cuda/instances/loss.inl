// launch_loss, instantiated by loss_<dtype>.cu.
#include <type_traits>

#include "../ops/families.cuh"
#include "../ops/loss.cuh"

namespace rowwise {

template <class T>
int launch_loss(const rw_loss_params& params, void* stream, bool dry_run) {
    using A = accum_t<T>;
    constexpr rw_dtype kNumbers = sizeof(A) == 8 ? RW_F64 : RW_F32;
    const rw_problem& p = params.problem;
    const rw_operand& targets = p.operands[0];
    const bool may_be_plain = params.soft_cap == 0 && params.label_smoothing == 0;
    bool is_sound = params.classes > 0 && (may_be_plain || params.is_plain == 0) && (targets.dtype == RW_U32 || targets.dtype == RW_I64) &&
                    (params.kind == RW_TARGET_WEIGHTS || params.classes == p.width);
    for (int i = 1; i < RW_MAX_OPERANDS; ++i) {
        is_sound = is_sound && (p.operands[i].rows.data == nullptr || p.operands[i].dtype == kNumbers);
    }
    if (!is_sound) {
        return RW_BAD_PLAN;
    }
    const auto numbers = [&](int i) { return static_cast<const A*>(p.operands[i].rows.data); };
    const auto run = [&](auto body) {
        body.x = input_rows<T>(p.x);
        body.targets = input_rows<u32>(targets.rows);
        body.wide_targets = targets.dtype == RW_I64;
        if (body.wide_targets) {
            for (int i = 0; i < 3; ++i) {
                body.targets.strides[i] *= 2;
            }
        }
        body.ignores = params.has_ignore_index != 0;
        body.ignore_index = params.ignore_index;
        body.classes = params.classes;
        body.weights = numbers(1);
        body.keep = static_cast<A>(1 - params.label_smoothing);
        body.smooth = static_cast<A>(params.label_smoothing / static_cast<double>(params.classes));
        body.z_loss = static_cast<A>(params.z_loss);
        body.cap = static_cast<A>(params.soft_cap);
        body.inverse_cap = static_cast<A>(params.soft_cap == 0 ? 0 : 1 / params.soft_cap);
        return launch(body, p.rows, p.width, params.plan, stream, dry_run);
    };
    const auto run_kind = [&](auto plain) -> int {
        constexpr bool kPlain = decltype(plain)::value;
        switch (params.kind) {
            case RW_CROSS_ENTROPY:
            case RW_TARGET_WEIGHTS: {
                CrossEntropyBody<T, kPlain> body{};
                body.weight_sum = numbers(2);
                body.y = static_cast<A*>(p.results[0]);
                body.statistics = params.kind == RW_CROSS_ENTROPY ? static_cast<A*>(p.results[1]) : nullptr;
                body.rows = p.rows;
                return run(body);
            }
            case RW_CROSS_ENTROPY_WITH_GRADIENT: {
                CrossEntropyGradientBody<T, kPlain> body{};
                body.weight_sum = numbers(2);
                body.y = static_cast<T*>(p.results[0]);
                body.losses = static_cast<A*>(p.results[1]);
                body.scales = input_rows<A>(p.operands[3].rows);
                return run(body);
            }
            case RW_CROSS_ENTROPY_GRADIENT: {
                CrossEntropyGradientBody<T, kPlain> body{};
                body.y = static_cast<T*>(p.results[0]);
                body.scales = input_rows<A>(p.operands[2].rows);
                body.maxima = input_rows<A>(p.operands[3].rows);
                body.factors = input_rows<A>(p.operands[4].rows);
                return run(body);
            }
        }
        return RW_NO_KERNEL;
    };
    return params.is_plain != 0 ? run_kind(std::true_type{}) : run_kind(std::false_type{});
}

}  // namespace rowwise
