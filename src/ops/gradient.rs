//! What the gradients of all ops share: the dtype they are computed in, which of them are wanted,
//! and whether they are part of a graph themselves. The formulas are in each op's own file.

use std::sync::OnceLock;

use candle_core::{DType, Result, Tensor};

use super::{loss, norm, reduce, softmax};
use crate::problem::{is_float, Op};

/// One backward pass, in a dtype wide enough to compute in: f32 for half types, else their own.
pub(super) struct Backward {
    /// The input, of any strides.
    pub x: Tensor,
    /// The operands, in the order of [`Op::operands`]; those of float dtypes widened like `x`.
    pub operands: Vec<Option<Tensor>>,
    /// The result of the op, rounded to the dtype of the input.
    pub res: Tensor,
    /// The gradient of the loss with respect to the result; often broadcast or transposed.
    pub grad: Tensor,
    /// Whether `x` and `res` have been rounded to a half type before.
    pub is_half: bool,
    /// Which gradients to compute: the input's, then the operands'.
    pub wanted: Vec<bool>,
}

impl Backward {
    /// An operand that the op cannot do without.
    #[allow(dead_code)]
    pub fn operand(&self, index: usize) -> Result<&Tensor> {
        match self.operands.get(index) {
            Some(Some(operand)) => Ok(operand),
            _ => candle_core::bail!("no operand {index} in the backward pass"),
        }
    }
}

/// The gradients of `op` with respect to its input and then to each operand, given its result and
/// the gradient of that; after the operands comes what else the op has made. `None` for those that nothing
/// upstream asks for.
pub(crate) fn gradient(
    op: Op,
    x: &Tensor,
    operands: &[Option<&Tensor>],
    res: &Tensor,
    grad: &Tensor,
) -> Result<Vec<Option<Tensor>>> {
    let arguments = || std::iter::once(Some(x)).chain(operands.iter().copied());
    let is_wanted = |arg: Option<&Tensor>| arg.is_some_and(|a| a.track_op() && is_float(a.dtype()));
    let wanted: Vec<bool> = arguments().map(is_wanted).collect();
    if x.elem_count() == 0 {
        // Every gradient is a sum over nothing.
        let zeros = arguments().map(|arg| arg.filter(|_| is_wanted(arg)).map(Tensor::zeros_like));
        return zeros.map(Option::transpose).collect();
    }
    if !keeps_graph() {
        if let Some(grads) = fused_gradient(op, x, operands, grad, &wanted)? {
            return Ok(grads);
        }
    }
    let pass = Backward {
        x: widen(x)?,
        operands: operands
            .iter()
            .map(|operand| operand.map(widen).transpose())
            .collect::<Result<_>>()?,
        res: widen(res)?,
        grad: widen(grad)?,
        is_half: compute_dtype(x.dtype()) != x.dtype(),
        wanted,
    };
    let grads = match op {
        Op::Sum => vec![reduce::sum_gradient(&pass)?],
        Op::Mean => vec![reduce::mean_gradient(&pass)?],
        Op::Prod => vec![reduce::prod_gradient(&pass)?],
        Op::Max | Op::Min => vec![reduce::extremum_gradient(&pass)?],
        Op::MinMax => vec![reduce::min_max_gradient(&pass)?],
        Op::AbsMax => vec![reduce::abs_max_gradient(&pass)?],
        Op::NormL1 => vec![reduce::norm_l1_gradient(&pass)?],
        Op::NormL2 => vec![reduce::norm_l2_gradient(&pass)?],
        Op::MeanOfSquares => vec![reduce::mean_of_squares_gradient(&pass)?],
        Op::Var { correction } => vec![reduce::var_gradient(&pass, correction)?],
        Op::Std { correction } => vec![reduce::std_gradient(&pass, correction)?],
        Op::LogSumExp => vec![reduce::logsumexp_gradient(&pass)?],
        Op::Softmax => vec![softmax::softmax_gradient(&pass)?],
        Op::LogSoftmax => vec![softmax::log_softmax_gradient(&pass)?],
        Op::RmsNorm { eps } => norm::rms_norm_gradient(&pass, eps)?,
        Op::L2Normalize { eps } => vec![norm::l2_normalize_gradient(&pass, eps)?],
        Op::LayerNorm { eps } => norm::layer_norm_gradient(&pass, eps)?,
        Op::CrossEntropy(options) => vec![loss::cross_entropy_gradient(&pass, options)?],
        Op::SoftmaxWith { log, logits } => softmax::gradient_with(&pass, log, &logits)?,
        Op::ArgMax
        | Op::ArgMin
        | Op::Any
        | Op::All
        | Op::CrossEntropyWithGradient(_)
        | Op::CrossEntropyGradient(_)
        | Op::TargetWeights { .. }
        | Op::SoftmaxGradient { .. }
        | Op::SoftmaxWithGradient { .. }
        | Op::AddRmsNorm { .. }
        | Op::AddLayerNorm { .. }
        | Op::RmsNormGradient { .. }
        | Op::L2NormalizeGradient { .. }
        | Op::LayerNormGradient { .. } => {
            candle_core::bail!("{}: no derivative", op.name())
        }
    };
    let narrowed = grads.into_iter().zip(arguments());
    narrowed
        .map(|(grad, arg)| match (grad, arg) {
            (Some(grad), Some(arg)) => grad.to_dtype(arg.dtype()).map(Some),
            _ => Ok(None),
        })
        .collect()
}

/// The gradients by kernels of their own, which have no derivatives themselves: read each tensor once and
/// round once. `None` for an op that has no such kernel.
fn fused_gradient(
    op: Op,
    x: &Tensor,
    operands: &[Option<&Tensor>],
    grad: &Tensor,
    wanted: &[bool],
) -> Result<Option<Vec<Option<Tensor>>>> {
    match op {
        Op::CrossEntropy(options) => {
            loss::fused_gradient(options, x, operands, grad).map(|dx| Some(vec![Some(dx)]))
        }
        Op::Softmax => softmax::fused_gradient(false, x, grad).map(Some),
        Op::LogSoftmax => softmax::fused_gradient(true, x, grad).map(Some),
        Op::SoftmaxWith { log, logits } => {
            softmax::fused_gradient_with(log, &logits, x, operands, grad, wanted).map(Some)
        }
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::L2Normalize { .. } => {
            norm::fused_gradient(op, x, operands, grad, wanted).map(Some)
        }
        _ => Ok(None),
    }
}

fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

/// The tensor in the dtype to compute in, integers as they are. It leaves the graph, as candle's own
/// gradients do, unless second derivatives are asked for: what is computed from it would otherwise stay
/// in memory for as long as the gradient of a weight does.
fn widen(t: &Tensor) -> Result<Tensor> {
    let t = if keeps_graph() { t.clone() } else { t.detach() };
    t.to_dtype(compute_dtype(t.dtype()))
}

/// Candle's own switch, by its own rule (`candle_core::backprop`).
fn keeps_graph() -> bool {
    static KEEPS: OnceLock<bool> = OnceLock::new();
    *KEEPS.get_or_init(|| {
        std::env::var("CANDLE_GRAD_DO_NOT_DETACH").is_ok_and(|s| !s.is_empty() && s != "0")
    })
}
