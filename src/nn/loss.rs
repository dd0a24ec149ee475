//! `candle_nn::loss` with the losses over classes replaced; the others are re-exported.

use candle_core::{DType, Result, Tensor};

use super::checks::{check_device, check_float};
use super::compute_dtype;
use crate::error::Error;
use crate::ops::{self, check_targets};

pub use candle_nn::loss::*;

/// `candle_nn::loss::cross_entropy`: the mean over the rows of `-log_softmax(inp)[target]`.
///
/// - `inp`: logits `(rows, classes)`, any strides; f16, bf16, f32 or f64.
/// - `target`: the class of each row, `(rows)`, any strides; u8, u32 or i64.
/// - Returns a scalar: f32 for half types (candle-nn's is of the half type), else the dtype of `inp`.
///   Without rows it is NaN.
/// - Gradient: `(softmax(inp) - one_hot(target)) / rows`, times that of the loss.
/// - A target that is no class is an error on the CPU. On a GPU, where reading it would make the
///   call wait, it makes the loss NaN; nothing is read out of bounds.
/// - Logits of `-inf` have probability 0: as a target one gives `+inf`. A row with a NaN or a `+inf`
///   gives NaN.
///
/// # Errors
/// The shapes do not fit each other, a target is no class (on the CPU), there are rows but no
/// classes, the dtypes are not of the ones above, or the devices differ.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let logits = Tensor::new(&[[1e8f32, 1e8], [0., 0.]], &Device::Cpu)?;
/// let target = Tensor::new(&[1u32, 0], &Device::Cpu)?;
/// let loss = candle_rowwise::nn::loss::cross_entropy(&logits, &target)?.to_scalar::<f32>()?;
/// assert!((loss - std::f32::consts::LN_2).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cross_entropy(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    check("cross-entropy", inp, target)?;
    let target = match target.dtype() {
        DType::U8 => target.to_dtype(DType::U32)?,
        _ => target.clone(),
    };
    ops::cross_entropy(inp, &target, &ops::CrossEntropyOptions::default())
}

/// `candle_nn::loss::nll`: the mean over the rows of `-inp[target]`, for log-probabilities `inp`.
///
/// Shapes, dtypes, targets and errors are those of [`cross_entropy`]; so is the dtype of the result.
/// Gradient: `-1 / rows` at the targets, times that of the loss, and 0 elsewhere.
///
/// # Errors
/// Those of [`cross_entropy`].
pub fn nll(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    const OP: &str = "nll";
    check(OP, inp, target)?;
    if target.device().is_cpu() {
        check_targets(OP, inp, inp.dims()[1], target, None)?;
    }
    // Candle gathers from contiguous tensors alone.
    minus_mean_at(
        &inp.to_dtype(compute_dtype(inp.dtype()))?.contiguous()?,
        target,
    )
}

/// The mean of what `log_probs` holds at the targets, negated.
fn minus_mean_at(log_probs: &Tensor, target: &Tensor) -> Result<Tensor> {
    let picked = match log_probs.dim(0)? {
        // Nothing at all, whose mean is NaN.
        0 => log_probs.flatten_all()?,
        _ => at_targets(log_probs, target)?,
    };
    ops::mean(&picked, 0)?.neg()
}

/// What each row holds at its target; NaN where that is no class.
fn at_targets(log_probs: &Tensor, target: &Tensor) -> Result<Tensor> {
    // Wide enough for any number of classes, and no class is the largest i64, for which candle's
    // gather gives 0.
    let target = target.to_dtype(DType::I64)?;
    let classes = log_probs.dim(1)? as i64;
    let is_class = (target.ge(0i64)? * target.lt(classes)?)?;
    let index = is_class.where_cond(&target, &target.zeros_like()?)?;
    let picked = log_probs.gather(&index.unsqueeze(1)?, 1)?.squeeze(1)?;
    is_class.where_cond(&picked, &picked.zeros_like()?.affine(0., f64::NAN)?)
}

fn check(op: &'static str, inp: &Tensor, target: &Tensor) -> Result<()> {
    let shape = inp.shape();
    let wrong_rank = |argument, shape, expected| Error::WrongRank {
        op,
        argument,
        shape,
        expected,
    };
    let [rows, classes] = *inp.dims() else {
        let expected = "two dims: rows, classes";
        return Err(wrong_rank("the input", shape.clone(), expected).into());
    };
    let &[targets] = target.dims() else {
        let expected = "one dim: rows";
        return Err(wrong_rank("the target", target.shape().clone(), expected).into());
    };
    if targets != rows {
        return Err(Error::ShapeMismatch {
            op,
            argument: "target",
            expected: rows.into(),
            got: target.shape().clone(),
            input: shape.clone(),
        }
        .into());
    }
    if !matches!(target.dtype(), DType::U8 | DType::U32 | DType::I64) {
        return Err(Error::IndexDType {
            op,
            argument: "target",
            got: target.dtype(),
            shape: target.shape().clone(),
        }
        .into());
    }
    if classes == 0 && rows > 0 {
        return Err(Error::EmptyAxis {
            op,
            dim: 1,
            shape: shape.clone(),
        }
        .into());
    }
    check_float(op, inp)?;
    Ok(check_device(op, "target", target, inp)?)
}

// Without CUDA: ops on tensors would link the driver, which a machine that only builds does not have.
#[cfg(all(test, not(feature = "cuda")))]
mod tests {
    use candle_core::Device;

    use super::*;

    /// What a GPU does with targets that the CPU refuses.
    #[test]
    fn what_is_no_class_is_nan() -> Result<()> {
        let log_probs = Tensor::new(&[[-1f32, -2.], [-3., -4.], [-5., -6.]], &Device::Cpu)?;
        let target = Tensor::new(&[1i64, 2, -1], &Device::Cpu)?;
        let picked = at_targets(&log_probs, &target)?.to_vec1::<f32>()?;
        assert_eq!(picked[0], -2.);
        assert!(picked[1].is_nan() && picked[2].is_nan());
        let loss = minus_mean_at(&log_probs, &target)?.to_scalar::<f32>()?;
        assert!(loss.is_nan());
        Ok(())
    }
}
