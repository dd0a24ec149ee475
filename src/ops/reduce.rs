//! Reductions: one value per row.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, D};

use super::dims;
use super::gradient::Backward;
use super::softmax::probabilities;
use crate::problem::Op;

/// The sum of `x` over `dim`, which is removed from the shape.
///
/// `y = x[0] + ... + x[n-1]`, added up in a tree-like order, so that the error grows with the
/// logarithm of the length and not with the length; half types are added up in f32 and rounded
/// once. A sum beyond the dtype's range is an infinity.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the dtype of `x`.
/// - NaN and infinities follow IEEE addition: a NaN, or infinities of both signs, give NaN.
/// - The sum over an empty axis is 0.
/// - Gradient: that of the result, broadcast over the row.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::sum(&x, 1)?.to_vec1::<f32>()?, [6., 15.]);
/// assert_eq!(candle_rowwise::ops::sum(&x, 0)?.to_vec1::<f32>()?, [5., 7., 9.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn sum<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::Sum, x, dim, false)
}

/// [`sum`], with `dim` kept as an axis of length 1.
///
/// # Errors
/// As [`sum`].
pub fn sum_keepdim<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::Sum, x, dim, true)
}

/// The largest value of `x` over `dim`, which is removed from the shape.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the dtype of `x`; the value is one of the row's, exactly.
/// - A NaN in the row wins. A row of nothing but `-inf` gives `-inf`. Of -0.0 and +0.0, which are
///   equal, either may be returned.
/// - Gradient: that of the result, shared equally among the elements that tie for the largest, so
///   that the gradients of a row add up to the one that came in. Where a NaN has won, the NaNs of
///   the row are the ones that tie.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, the axis is empty, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor, D};
/// let x = Tensor::new(&[[1f32, 7., 3.], [f32::NAN, 5., 6.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::max(&x, D::Minus1)?.to_vec1::<f32>()?;
/// assert_eq!(y[0], 7.);
/// assert!(y[1].is_nan());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn max<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::Max, x, dim, false)
}

/// [`max`], with `dim` kept as an axis of length 1.
///
/// # Errors
/// As [`max`].
pub fn max_keepdim<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::Max, x, dim, true)
}

/// The index of the largest value of `x` over `dim`, which is removed from the shape.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns u32.
/// - Ties go to the lowest index, and -0.0 equals +0.0. If the row has NaNs, the index of the first
///   of them.
/// - No gradient: an index has no derivative. The result is an integer tensor that is part of no
///   graph, so no loss can be built through it; what else depends on `x` is differentiated as usual.
/// - The index depends on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, the axis is empty or has more than 2^32 elements, or the dtype is not
/// one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 5., 5., 3.], [0., 2., f32::NAN, f32::NAN]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::argmax(&x, 1)?.to_vec1::<u32>()?, [1, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn argmax<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::ArgMax, x, dim, false)
}

/// [`argmax`], with `dim` kept as an axis of length 1.
///
/// # Errors
/// As [`argmax`].
pub fn argmax_keepdim<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::ArgMax, x, dim, true)
}

/// `log(exp(x[0]) + ... + exp(x[n-1]))` over `dim`, which is removed from the shape.
///
/// Computed as `m + log(sum(exp(x - m)))` with `m` the largest value of the row, which neither
/// overflows nor loses the small terms (Blanchard, Higham and Higham, *Accurately computing the
/// log-sum-exp and softmax functions*, 2021).
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32 or f64.
/// - Returns the dtype of `x`.
/// - A row with a NaN gives NaN; else a row with `+inf` gives `+inf`; a row of nothing but `-inf`,
///   or an empty one, gives `-inf`. One element gives itself, exactly.
/// - Gradient: `softmax(x)` times that of the result. A row of nothing but `-inf` has no derivative
///   and gets exactly 0; one with a `+inf` gets NaN.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, or the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1000f32, 1000.], [f32::NEG_INFINITY, 3.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::logsumexp(&x, 1)?.to_vec1::<f32>()?;
/// assert!((y[0] - 1000.6931).abs() < 1e-4);
/// assert_eq!(y[1], 3.);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn logsumexp<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::LogSumExp, x, dim, false)
}

/// [`logsumexp`], with `dim` kept as an axis of length 1.
///
/// # Errors
/// As [`logsumexp`].
pub fn logsumexp_keepdim<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::LogSumExp, x, dim, true)
}

/// dx = g.
pub(super) fn sum_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    Ok(Some(pass.grad.broadcast_as(pass.x.shape())?))
}

/// dx = g / ties where x is the largest, else 0.
pub(super) fn max_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let x = &pass.x;
    // A NaN equals nothing, itself included; where there is one, it has won.
    let is_nan = x.ne(x)?;
    let ties = (x.broadcast_eq(&pass.res)? + is_nan)?;
    let count = sum_keepdim(&ties.to_dtype(x.dtype())?, D::Minus1)?;
    let share = (&pass.grad / count)?.broadcast_as(x.shape())?;
    // Selected, not multiplied: an infinite gradient must not become a NaN beside the largest.
    ties.where_cond(&share, &x.zeros_like()?).map(Some)
}

/// dx = softmax(x) * g, and 0 where there is no derivative.
pub(super) fn logsumexp_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let dx = probabilities(&pass.x)?.broadcast_mul(&pass.grad)?;
    // The value is -inf only for a row of nothing but -inf: rounding cannot lead there.
    let is_empty = pass.res.eq(f64::NEG_INFINITY)?;
    is_empty
        .broadcast_as(dx.shape())?
        .where_cond(&dx.zeros_like()?, &dx)
        .map(Some)
}
