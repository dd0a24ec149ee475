//! Variance and standard deviation.

use candle_core::shape::Dims;
use candle_core::{Result, Tensor, D};

use super::norm::direction;
use super::{mean_keepdim, min_max_keepdim};
use crate::ops::dims;
use crate::ops::gradient::Backward;
use crate::problem::Op;

/// The variance of `x` over `dims`, which are removed from the shape:
/// `sum((x - mean)^2) / (n - correction)`.
///
/// Taken of the differences from the mean, never as a difference of squares, and corrected by what
/// the rounded mean lacks, so that rows far from zero keep their digits (Chan, Golub and LeVeque,
/// *Algorithms for computing the sample variance*, 1983).
///
/// - `x`: any shape, any strides; f16, bf16, f32 or f64; integers (u8, u32, i16, i32, i64) are
///   converted to f64.
/// - `correction`: what is taken off the length `n`: 0 for the variance of a population, 1 for the
///   unbiased one of a sample, as candle's `var` has it.
/// - Returns the dtype of `x`, f64 of integers. The variance of a row of equal values is exactly 0;
///   one beyond the dtype's range is `+inf`.
/// - NaN where the row has a NaN or an infinity, where `n <= correction`, and over an empty axis.
/// - Gradient: `2 (x - mean) / (n - correction)` times that of the result; NaN where
///   `n <= correction`.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 3.], [1e7, 1e7 + 2.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::var(&x, 1, 0)?.to_vec1::<f32>()?, [1., 1.]);
/// assert_eq!(candle_rowwise::ops::var(&x, 1, 1)?.to_vec1::<f32>()?, [2., 2.]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn var<Ds: Dims>(x: &Tensor, dims: Ds, correction: usize) -> Result<Tensor> {
    dims::reduce(Op::Var { correction }, x, dims, false)
}

/// [`var`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`var`].
pub fn var_keepdim<Ds: Dims>(x: &Tensor, dims: Ds, correction: usize) -> Result<Tensor> {
    dims::reduce(Op::Var { correction }, x, dims, true)
}

/// The standard deviation of `x` over `dims`, which are removed from the shape: the root of
/// [`var`].
///
/// Squares that overflow or vanish are no obstacle: the root is right where the variance itself is
/// no number of the dtype. In all else, but for the gradient, as [`var`].
///
/// - Gradient: `(x - mean) / ((n - correction) y)` times that of the result. A row of equal values
///   has no derivative and gets exactly 0; NaN where `n <= correction`.
///
/// # Errors
/// As [`var`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let huge = 2f32.powi(100);
/// let x = Tensor::new(&[[1f32, 3.], [huge, 3. * huge]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::std(&x, 1, 0)?.to_vec1::<f32>()?, [1., huge]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn std<Ds: Dims>(x: &Tensor, dims: Ds, correction: usize) -> Result<Tensor> {
    dims::reduce(Op::Std { correction }, x, dims, false)
}

/// [`std`](fn@std), with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`std`](fn@std).
pub fn std_keepdim<Ds: Dims>(x: &Tensor, dims: Ds, correction: usize) -> Result<Tensor> {
    dims::reduce(Op::Std { correction }, x, dims, true)
}

/// The deviations of rows from their mean, halved where the row is large: the difference of two
/// numbers may be none.
struct Deviations {
    halved: Tensor,
    /// What they are multiplied by: 0.5 or 1, of length 1 along the last axis.
    factor: Tensor,
}

impl Deviations {
    fn new(x: &Tensor) -> Result<Self> {
        let (min, max) = min_max_keepdim(x, D::Minus1)?;
        let one = max.ones_like()?;
        let large = max.maximum(&min.neg()?)?.gt(1.)?;
        let factor = large.where_cond(&(&one * 0.5)?, &one)?;
        let mean = (mean_keepdim(x, D::Minus1)? * &factor)?;
        let rows = x.broadcast_mul(&factor)?.broadcast_sub(&mean)?;
        // The mean is rounded at the magnitude of the row; what is left of it is not.
        let rows = rows.broadcast_sub(&mean_keepdim(&rows, D::Minus1)?)?;
        // Nothing is left of a row of equal values, whatever its mean rounds to. Not of infinite
        // ones: the difference of these is a NaN.
        let constant = ((max * &factor)? - (min * &factor)?)?.eq(0.)?;
        let constant = constant.broadcast_as(rows.shape())?;
        Ok(Self {
            halved: constant.where_cond(&rows.zeros_like()?, &rows)?,
            factor,
        })
    }
}

/// What a sum of squares is divided by; NaN where nothing is left.
fn degrees(x: &Tensor, correction: usize) -> Result<f64> {
    Ok(match x.dim(D::Minus1)?.checked_sub(correction) {
        None | Some(0) => f64::NAN,
        Some(degrees) => degrees as f64,
    })
}

/// dx = 2 (x - mean) / (n - correction) * g.
pub(in crate::ops) fn var_gradient(pass: &Backward, correction: usize) -> Result<Option<Tensor>> {
    let slope = 2. / degrees(&pass.x, correction)?;
    let rows = Deviations::new(&pass.x)?;
    let slope = ((&pass.grad * slope)? / rows.factor)?;
    rows.halved.broadcast_mul(&slope).map(Some)
}

/// dx = (x - mean) / ((n - correction) * std) * g: of the deviations the direction, divided by the
/// root of `n - correction`.
pub(in crate::ops) fn std_gradient(pass: &Backward, correction: usize) -> Result<Option<Tensor>> {
    let slope = degrees(&pass.x, correction)?.sqrt().recip();
    let rows = Deviations::new(&pass.x)?;
    direction(&rows.halved)?
        .broadcast_mul(&(&pass.grad * slope)?)
        .map(Some)
}
