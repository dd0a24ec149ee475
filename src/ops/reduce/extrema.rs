//! The ends of a row: the smallest and largest value, and the largest magnitude.

use candle_core::shape::Dims;
use candle_core::{Result, Tensor, D};

use super::sum_keepdim;
use crate::ops::dims;
use crate::ops::gradient::Backward;
use crate::problem::Op;

/// The largest value of `x` over `dims`, which are removed from the shape.
///
/// - `x`: any shape, any strides; f16, bf16, f32, f64, u8, u32, i16, i32 or i64.
/// - Returns the dtype of `x`; the value is one of the row's, exactly.
/// - A NaN in the row wins. A row of nothing but `-inf` gives `-inf`. Of -0.0 and +0.0, which are
///   equal, either may be returned.
/// - Gradient: that of the result, shared equally among the elements that tie for the largest, so
///   that the gradients of a row add up to the one that came in. Where a NaN has won, the NaNs of
///   the row are the ones that tie.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, the axis is empty, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor, D};
/// let x = Tensor::new(&[[1f32, 7., 3.], [f32::NAN, 5., 6.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::max(&x, D::Minus1)?.to_vec1::<f32>()?;
/// assert_eq!(y[0], 7.);
/// assert!(y[1].is_nan());
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn max<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Max, x, dims, false)
}

/// [`max`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`max`].
pub fn max_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Max, x, dims, true)
}

/// The smallest value of `x` over `dims`, which are removed from the shape.
///
/// As [`max`] in all else: dtypes, NaN, ties, gradient, bits.
///
/// # Errors
/// As [`max`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 7., 3.], [2., 5., -6.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::min(&x, 1)?.to_vec1::<f32>()?, [1., -6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn min<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Min, x, dims, false)
}

/// [`min`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`min`].
pub fn min_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Min, x, dims, true)
}

/// The smallest and the largest value of `x` over `dims`, which are removed from the shape: [`min`]
/// and [`max`], with their gradients, in one walk over the rows.
///
/// A NaN in a row is both. The two results share one piece of memory.
///
/// # Errors
/// As [`max`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 7., 3.], [2., 5., -6.]], &Device::Cpu)?;
/// let (min, max) = candle_rowwise::ops::min_max(&x, 1)?;
/// assert_eq!(min.to_vec1::<f32>()?, [1., -6.]);
/// assert_eq!(max.to_vec1::<f32>()?, [7., 5.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn min_max<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<(Tensor, Tensor)> {
    dims::reduce_to_pair(Op::MinMax, x, dims, false)
}

/// [`min_max`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`min_max`].
pub fn min_max_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<(Tensor, Tensor)> {
    dims::reduce_to_pair(Op::MinMax, x, dims, true)
}

/// The largest magnitude of `x` over `dims`, which are removed from the shape.
///
/// - `x`: any shape, any strides; f16, bf16, f32 or f64; integers (u8, u32, i16, i32, i64) are
///   converted to f64.
/// - Returns the dtype of `x`, f64 of integers; the value is the magnitude of one of the row's.
/// - A NaN in the row wins. The value over an empty axis is 0.
/// - Gradient: that of the result, shared equally among the elements that tie for the largest
///   magnitude, with their signs. A row of zeros has no derivative and gets exactly 0; a NaN gets
///   NaN.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, -7., 3.], [2., 5., -6.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::abs_max(&x, 1)?.to_vec1::<f32>()?, [7., 6.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn abs_max<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::AbsMax, x, dims, false)
}

/// [`abs_max`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`abs_max`].
pub fn abs_max_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::AbsMax, x, dims, true)
}

/// The maximum norm of `x` over `dims`: [`abs_max`] by its other name.
///
/// # Errors
/// As [`abs_max`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[2f32, -3., 1.], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::norm_linf(&x, 0)?.to_scalar::<f32>()?, 3.);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn norm_linf<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    abs_max(x, dims)
}

/// [`norm_linf`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`norm_linf`].
pub fn norm_linf_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    abs_max_keepdim(x, dims)
}

/// g / ties where x is `end`, else 0.
fn shared(x: &Tensor, end: &Tensor, grad: &Tensor) -> Result<Tensor> {
    // A NaN equals nothing, itself included; where there is one, it has won.
    let is_nan = x.ne(x)?;
    let ties = (x.broadcast_eq(end)? + is_nan)?;
    let count = sum_keepdim(&ties.to_dtype(x.dtype())?, D::Minus1)?;
    let share = (grad / count)?.broadcast_as(x.shape())?;
    // Selected, not multiplied: an infinite gradient must not become a NaN beside the end.
    ties.where_cond(&share, &x.zeros_like()?)
}

/// `t` with the signs of `x`: 0 where x is 0, NaN where x is NaN.
pub(super) fn signed(x: &Tensor, t: &Tensor) -> Result<Tensor> {
    // What is neither above nor below 0 is a zero or a NaN itself.
    let negative = x.lt(0.)?.where_cond(&t.neg()?, x)?;
    x.gt(0.)?.where_cond(t, &negative)
}

/// dx = g / ties where x is the largest or smallest, else 0.
pub(in crate::ops) fn extremum_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    shared(&pass.x, &pass.res, &pass.grad).map(Some)
}

/// The gradients of both results, added up.
pub(in crate::ops) fn min_max_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let of = |plane| shared(&pass.x, &pass.res.get(plane)?, &pass.grad.get(plane)?);
    (of(0)? + of(1)?).map(Some)
}

/// dx = sign(x) * g / ties where |x| is the largest, else 0.
pub(in crate::ops) fn abs_max_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let share = shared(&pass.x.abs()?, &pass.res, &pass.grad)?;
    signed(&pass.x, &share).map(Some)
}
