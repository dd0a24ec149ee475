//! What the gradients of all ops share: the dtype they are computed in, which of them are wanted,
//! and whether they are part of a graph themselves. The formulas are in each op's own file.

use std::sync::OnceLock;

use candle_core::{DType, Result, Tensor};

use super::{norm, reduce, softmax};
use crate::problem::Op;

/// One backward pass, in a dtype wide enough to compute in: f32 for half types, else their own.
pub(super) struct Backward {
    /// The input, of any strides.
    pub x: Tensor,
    /// The side inputs, in the order of [`Op::sides`].
    pub sides: Vec<Tensor>,
    /// The result of the op, rounded to the dtype of the input.
    pub res: Tensor,
    /// The gradient of the loss with respect to the result; often broadcast or transposed.
    pub grad: Tensor,
    /// Whether `x` and `res` have been rounded to a half type before.
    pub is_half: bool,
    /// Which gradients to compute: the input's, then the side inputs'.
    pub wanted: Vec<bool>,
}

/// The gradients of `op` with respect to its input and side inputs (`args`), given its result and
/// the gradient of that. `None` for those that nothing upstream asks for.
pub(crate) fn gradient<const N: usize>(
    op: Op,
    args: [&Tensor; N],
    res: &Tensor,
    grad: &Tensor,
) -> Result<[Option<Tensor>; N]> {
    let wanted: Vec<bool> = args.iter().map(|arg| arg.track_op()).collect();
    let dtypes = args.map(|arg| arg.dtype());
    let [x, sides @ ..] = args.as_slice() else {
        candle_core::bail!("{}: no input to differentiate by", op.name())
    };
    if x.elem_count() == 0 {
        // Every gradient is a sum over nothing.
        return zeros(args, &wanted);
    }
    let pass = Backward {
        x: widen(x)?,
        sides: sides.iter().map(|s| widen(s)).collect::<Result<_>>()?,
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
        Op::LayerNorm { eps } => norm::layer_norm_gradient(&pass, eps)?,
        Op::ArgMax | Op::ArgMin | Op::Any | Op::All => {
            candle_core::bail!("{}: no derivative", op.name())
        }
    };
    let mut narrowed = [const { None }; N];
    for (slot, (grad, dtype)) in narrowed.iter_mut().zip(grads.into_iter().zip(dtypes)) {
        *slot = grad.map(|g| g.to_dtype(dtype)).transpose()?;
    }
    Ok(narrowed)
}

fn zeros<const N: usize>(args: [&Tensor; N], wanted: &[bool]) -> Result<[Option<Tensor>; N]> {
    let mut grads = [const { None }; N];
    for ((slot, arg), wanted) in grads.iter_mut().zip(args).zip(wanted) {
        *slot = wanted.then(|| arg.zeros_like()).transpose()?;
    }
    Ok(grads)
}

fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}

/// The tensor in the dtype to compute in. It leaves the graph, as candle's own gradients do, unless
/// second derivatives are asked for: what is computed from it would otherwise stay in memory for as
/// long as the gradient of a weight does.
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
