//! Norms of rows, and the mean of squares.

use candle_core::shape::Dims;
use candle_core::{Result, Tensor, D};

use super::abs_max_keepdim;
use super::extrema::signed;
use crate::ops::dims;
use crate::ops::gradient::Backward;
use crate::problem::Op;

/// The sum of magnitudes of `x` over `dims`, which are removed from the shape.
///
/// Added up as in [`sum`](super::sum).
///
/// - `x`: any shape, any strides; f16, bf16, f32 or f64; integers (u8, u32, i16, i32, i64) are
///   converted to f64.
/// - Returns the dtype of `x`, f64 of integers.
/// - A NaN gives NaN, else an infinity gives `+inf`. The norm over an empty axis is 0.
/// - Gradient: that of the result, with the sign of each element; 0 for a zero, where there is no
///   derivative, NaN for a NaN.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, -2., 3.], [-4., 5., -6.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::norm_l1(&x, 1)?.to_vec1::<f32>()?, [6., 15.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn norm_l1<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::NormL1, x, dims, false)
}

/// [`norm_l1`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`norm_l1`].
pub fn norm_l1_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::NormL1, x, dims, true)
}

/// The Euclidean norm of `x` over `dims`, which are removed from the shape: the root of the sum of
/// squares.
///
/// Squares that overflow or vanish are no obstacle: such a row is scaled by a power of two first.
///
/// - `x`: any shape, any strides; f16, bf16, f32 or f64; integers (u8, u32, i16, i32, i64) are
///   converted to f64.
/// - Returns the dtype of `x`, f64 of integers.
/// - A NaN gives NaN, else an infinity gives `+inf`. The norm over an empty axis is 0.
/// - Gradient: `x / y` times that of the result. A row of zeros has no derivative and gets exactly
///   0; one with a NaN or an infinity gets NaN.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[3f32, -4.], [3e30, 4e30]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::norm_l2(&x, 1)?.to_vec1::<f32>()?, [5., 5e30]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn norm_l2<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::NormL2, x, dims, false)
}

/// [`norm_l2`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`norm_l2`].
pub fn norm_l2_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::NormL2, x, dims, true)
}

/// The mean of squares of `x` over `dims`, which are removed from the shape.
///
/// A sum of squares that overflows though their mean does not is no obstacle; a mean beyond the
/// dtype's range is `+inf`.
///
/// - `x`: any shape, any strides; f16, bf16, f32 or f64; integers (u8, u32, i16, i32, i64) are
///   converted to f64.
/// - Returns the dtype of `x`, f64 of integers.
/// - A NaN gives NaN, else an infinity gives `+inf`. The mean over an empty axis is NaN.
/// - Gradient: `2 x / n` times that of the result.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, -7.], [3., 3.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::mean_of_squares(&x, 1)?.to_vec1::<f32>()?, [25., 9.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn mean_of_squares<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::MeanOfSquares, x, dims, false)
}

/// [`mean_of_squares`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`mean_of_squares`].
pub fn mean_of_squares_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::MeanOfSquares, x, dims, true)
}

/// Each row divided by its norm; a row of zeros stays one.
pub(super) fn direction(x: &Tensor) -> Result<Tensor> {
    // At a magnitude of 1 neither squares nor the norm overflow or vanish.
    let unit = zeros_to_ones(&abs_max_keepdim(x, D::Minus1)?)?;
    let x = x.broadcast_div(&unit)?;
    let norm = zeros_to_ones(&norm_l2_keepdim(&x, D::Minus1)?)?;
    x.broadcast_div(&norm)
}

fn zeros_to_ones(t: &Tensor) -> Result<Tensor> {
    t.eq(0.)?.where_cond(&t.ones_like()?, t)
}

/// dx = sign(x) * g.
pub(in crate::ops) fn norm_l1_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let grad = pass.grad.broadcast_as(pass.x.shape())?;
    signed(&pass.x, &grad).map(Some)
}

/// dx = x / norm * g.
pub(in crate::ops) fn norm_l2_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    direction(&pass.x)?.broadcast_mul(&pass.grad).map(Some)
}

/// dx = 2 x / n * g.
pub(in crate::ops) fn mean_of_squares_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let slope = (&pass.grad * (2. / pass.x.dim(D::Minus1)? as f64))?;
    pass.x.broadcast_mul(&slope).map(Some)
}
