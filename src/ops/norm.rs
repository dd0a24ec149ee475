//! Normalisation of rows: the last axis, as in candle-nn.

use candle_core::{DType, Result, Tensor, D};

use super::dims;
use super::gradient::Backward;
use super::reduce::{max_keepdim, sum, sum_keepdim};
use crate::custom_op::{apply, check};
use crate::error::Error;
use crate::problem::Op;

/// Root-mean-square norm of the last axis: `x / sqrt(mean(x^2) + eps) * weight`.
///
/// Zhang and Sennrich, *Root Mean Square Layer Normalization*, 2019 (arXiv:1910.07467).
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - `weight`: one vector as long as the last axis, any strides; the dtype of `x`, or f32 beside a
///   half type.
/// - `eps`: finite and not negative; held in f32 or wider, so that 1e-12 is no 0 for f16.
/// - Returns the shape and dtype of `x`, rounded once, after the weight.
/// - Rows whose squares overflow or vanish are handled. A NaN or an infinity in a row makes it NaN
///   wherever the formula does. With eps 0, a row of zeros is 0/0, and its result is undefined.
/// - Gradients, with `r = 1 / sqrt(mean(x^2) + eps)`, `h = x * r` and `t = weight * g`:
///   `dx = r * (t - h * mean(h * t))`, and `dweight` is the sum of `g * h` over all rows, added up
///   in f32 or wider whatever the dtype.
/// - The bits of a row depend on the row, the weight and eps alone ([module docs](crate::ops)).
///
/// # Errors
/// `x` has no dims, eps is negative or not finite, the weight's shape, dtype or device do not fit,
/// or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[3f32, -3., 3., -3.]], &Device::Cpu)?;
/// let w = Tensor::new(&[1f32, 1., 2., 2.], &Device::Cpu)?;
/// let y = candle_rowwise::ops::rms_norm(&x, &w, 0.)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1., -1., 2., -2.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    norm(Op::RmsNorm { eps }, x, &[weight])
}

/// Layer norm of the last axis: `(x - mean) / sqrt(var + eps) * weight + bias`, with the population
/// variance.
///
/// Ba, Kiros and Hinton, *Layer Normalization*, 2016 (arXiv:1607.06450). The variance is taken of
/// the differences from the mean, never as a difference of squares, so that rows far from zero keep
/// their digits.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - `weight`, `bias`: one vector each, as long as the last axis, any strides; the dtype of `x`, or
///   f32 beside a half type.
/// - `eps`: finite and not negative; held in f32 or wider, so that 1e-12 is no 0 for f16.
/// - Returns the shape and dtype of `x`, rounded once, after weight and bias.
/// - Rows whose squares overflow or vanish are handled. A NaN or an infinity makes a row NaN. A
///   constant row gives exactly the bias; with eps 0 it is 0/0, and its result is undefined.
/// - Gradients, with `r = 1 / sqrt(var + eps)`, `h = (x - mean) * r` and `t = weight * g`:
///   `dx = r * (t - mean(t) - h * mean(h * t))`; `dweight` and `dbias` are the sums of `g * h` and
///   of `g` over all rows, added up in f32 or wider whatever the dtype.
/// - The bits of a row depend on the row, weight, bias and eps alone ([module docs](crate::ops)).
///
/// # Errors
/// `x` has no dims, eps is negative or not finite, the shape, dtype or device of weight or bias do
/// not fit, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[4f32, 6., 4., 6.]], &Device::Cpu)?;
/// let w = Tensor::new(&[1f32, 1., 2., 2.], &Device::Cpu)?;
/// let b = Tensor::new(&[0f32, 0., 0., 10.], &Device::Cpu)?;
/// let y = candle_rowwise::ops::layer_norm(&x, &w, &b, 0.)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[-1., 1., -2., 12.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    norm(Op::LayerNorm { eps }, x, &[weight, bias])
}

/// Runs a norm. A half type beside f32 side inputs is computed in f32 throughout: the gradients of
/// the side inputs stay f32 that way.
fn norm(op: Op, x: &Tensor, sides: &[&Tensor]) -> Result<Tensor> {
    let dtype = x.dtype();
    check(op, dtype, x.shape(), &[dims::index(op, x, D::Minus1)?])?;
    let is_half = matches!(dtype, DType::F16 | DType::BF16);
    for (operand, side) in op.operands().iter().zip(sides) {
        if side.dtype() != dtype && !(is_half && side.dtype() == DType::F32) {
            return Err(Error::DTypeMismatch {
                op: op.name(),
                argument: operand.name,
                expected: dtype,
                got: side.dtype(),
                shape: x.shape().clone(),
            }
            .into());
        }
    }
    if sides.iter().all(|side| side.dtype() == dtype) {
        let sides: Vec<_> = sides.iter().copied().map(Some).collect();
        return apply(op, x, &sides);
    }
    let wide = sides
        .iter()
        .map(|side| side.to_dtype(DType::F32))
        .collect::<Result<Vec<_>>>()?;
    let wide: Vec<_> = wide.iter().map(Some).collect();
    apply(op, &x.to_dtype(DType::F32)?, &wide)?.to_dtype(dtype)
}

/// Rows divided by the root of their mean square (plus eps), and by what they were divided.
struct Normalised {
    /// The normalised rows.
    hat: Tensor,
    /// Divisors of length 1 along the last axis. Their product, which may fit no float where the
    /// squares of a row do not, is the root.
    divisors: Vec<Tensor>,
}

impl Normalised {
    /// `rows / sqrt(mean(rows^2) + root_eps^2)`. Squares are taken of rows that have been brought
    /// to a magnitude of 1, so that they neither overflow nor vanish.
    fn new(rows: &Tensor, root_eps: &Tensor) -> Result<Self> {
        let unit = max_keepdim(&rows.abs()?, D::Minus1)?.broadcast_maximum(root_eps)?;
        let rows = rows.broadcast_div(&unit)?;
        let eps = root_eps.broadcast_div(&unit)?.sqr()?;
        let root = (mean_keepdim(&rows.sqr()?)? + eps)?.sqrt()?;
        Ok(Self {
            hat: rows.broadcast_div(&root)?,
            divisors: vec![root, unit],
        })
    }

    /// The same of `x - mean(x)`.
    fn centred(x: &Tensor, root_eps: &Tensor) -> Result<Self> {
        // A sum of huge values overflows though their mean does not. A power of two scales exactly,
        // and this one is far enough from both ends of the range that nothing else is lost.
        let huge = match x.dtype() {
            DType::F64 => 2f64.powi(512),
            _ => 2f64.powi(64),
        };
        let largest = max_keepdim(&x.abs()?, D::Minus1)?;
        let one = largest.ones_like()?;
        let scale = largest.gt(huge)?.where_cond(&(&one * huge)?, &one)?;
        let x = x.broadcast_div(&scale)?;
        let rows = x.broadcast_sub(&mean_keepdim(&x)?)?;
        // The mean is rounded at the magnitude of the row; what is left of it is not.
        let rows = rows.broadcast_sub(&mean_keepdim(&rows)?)?;
        let mut this = Self::new(&rows, &root_eps.broadcast_div(&scale)?)?;
        this.divisors.push(scale);
        Ok(this)
    }

    /// `t - hat * mean(hat * t)`, divided by the root.
    fn project(&self, t: &Tensor) -> Result<Tensor> {
        let along = mean_keepdim(&(&self.hat * t)?)?;
        let mut dx = (t - self.hat.broadcast_mul(&along)?)?;
        for divisor in &self.divisors {
            dx = dx.broadcast_div(divisor)?;
        }
        Ok(dx)
    }
}

/// dx and dweight.
pub(super) fn rms_norm_gradient(pass: &Backward, eps: f64) -> Result<Vec<Option<Tensor>>> {
    let rows = Normalised::new(&pass.x, &root_eps(pass, eps)?)?;
    let t = pass.grad.broadcast_mul(pass.operand(0)?)?;
    Ok(vec![
        wanted(pass, 0, || rows.project(&t))?,
        wanted(pass, 1, || sum_rows(&(&pass.grad * &rows.hat)?))?,
    ])
}

/// dx, dweight and dbias.
pub(super) fn layer_norm_gradient(pass: &Backward, eps: f64) -> Result<Vec<Option<Tensor>>> {
    let rows = Normalised::centred(&pass.x, &root_eps(pass, eps)?)?;
    let t = pass.grad.broadcast_mul(pass.operand(0)?)?;
    let t = t.broadcast_sub(&mean_keepdim(&t)?)?;
    Ok(vec![
        wanted(pass, 0, || rows.project(&t))?,
        wanted(pass, 1, || sum_rows(&(&pass.grad * &rows.hat)?))?,
        wanted(pass, 2, || sum_rows(&pass.grad))?,
    ])
}

fn wanted(
    pass: &Backward,
    arg: usize,
    grad: impl FnOnce() -> Result<Tensor>,
) -> Result<Option<Tensor>> {
    pass.wanted[arg].then(grad).transpose()
}

fn root_eps(pass: &Backward, eps: f64) -> Result<Tensor> {
    Tensor::new(eps.sqrt(), pass.x.device())?.to_dtype(pass.x.dtype())
}

fn mean_keepdim(x: &Tensor) -> Result<Tensor> {
    sum_keepdim(x, D::Minus1)? / x.dim(D::Minus1)? as f64
}

/// The sum over all dims but the last.
fn sum_rows(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    sum(&x.reshape(((), width))?, 0)
}
