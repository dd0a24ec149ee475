//! Softmax and its logarithm: a row of weights per row.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, D};

use super::dims;
use super::gradient::Backward;
use super::reduce::sum_keepdim;
use crate::custom_op::run;
use crate::problem::Op;

/// `exp(x) / sum(exp(x))` over `dim`.
///
/// Computed as `exp(x - m) / sum(exp(x - m))` with `m` the largest value of the row, which cannot
/// overflow (Blanchard, Higham and Higham, *Accurately computing the log-sum-exp and softmax
/// functions*, 2021). The sum is one of f32 or wider, so that a long row of half types still adds
/// up to 1.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the shape and dtype of `x`, contiguous.
/// - A NaN or a `+inf` anywhere makes the whole row NaN, and so does a row of nothing but `-inf`.
///   Elsewhere a `-inf` gives exactly 0.
/// - Gradient: `y * (g - sum(g * y))`.
/// - The bits of a row depend on the row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor, D};
/// let x = Tensor::new(&[[2f32, 2., f32::NEG_INFINITY, 2., 2.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::softmax(&x, D::Minus1)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[0.25, 0.25, 0., 0.25, 0.25]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::map(Op::Softmax, x, dim)
}

/// `x - log(sum(exp(x)))` over `dim`, the logarithm of [`softmax`].
///
/// Computed as `(x - m) - log(sum(exp(x - m)))` with `m` the largest value of the row; `x - m`
/// comes first, so that rows of a large magnitude keep the digits in which their elements differ.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the shape and dtype of `x`, contiguous.
/// - A NaN or a `+inf` anywhere makes the whole row NaN, and so does a row of nothing but `-inf`.
///   Elsewhere a `-inf` gives `-inf`.
/// - Gradient: `g - softmax(x) * sum(g)`.
/// - The bits of a row depend on the row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[1e8f32, 1e8], &Device::Cpu)?;
/// let y = candle_rowwise::ops::log_softmax(&x, 0)?.to_vec1::<f32>()?;
/// assert!((y[0] + std::f32::consts::LN_2).abs() < 1e-6);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn log_softmax<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::map(Op::LogSoftmax, x, dim)
}

/// The softmax of the last axis, for the gradients of the ops that are made of it.
pub(super) fn probabilities(x: &Tensor) -> Result<Tensor> {
    softmax(x, D::Minus1)
}

/// dx by the kernel that reads the input and the gradient once, of softmax or of its logarithm.
pub(super) fn fused_gradient(log: bool, x: &Tensor, grad: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let dx = run(Op::SoftmaxGradient { log }, x, &[Some(grad)])?;
    Ok(dx.into_iter().map(Some).collect())
}

/// dx = y * (g - sum(g * y)).
pub(super) fn softmax_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    // The result of a half type has lost digits that the sum below would miss.
    let y = if pass.is_half {
        probabilities(&pass.x)?
    } else {
        pass.res.clone()
    };
    let total = sum_keepdim(&(&y * &pass.grad)?, D::Minus1)?;
    (y * pass.grad.broadcast_sub(&total)?).map(Some)
}

/// dx = g - softmax(x) * sum(g).
pub(super) fn log_softmax_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let total = sum_keepdim(&pass.grad, D::Minus1)?;
    // Not exp of the result: its absolute error would become a relative one.
    (&pass.grad - probabilities(&pass.x)?.broadcast_mul(&total)?).map(Some)
}
