//! Where the ends of a row are.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor};

use crate::ops::dims;
use crate::problem::Op;

/// The index of the largest value of `x` over `dim`, which is removed from the shape.
///
/// - `x`: any shape with at least one dim, any strides; f16, bf16, f32, f64, u8, u32, i16, i32 or
///   i64. Integers are compared as integers.
/// - Returns u32.
/// - Ties go to the lowest index, and -0.0 equals +0.0. If the row has NaNs, the index of the first
///   of them.
/// - No gradient: an index has no derivative. The result is an integer tensor that is part of no
///   graph, so no loss can be built through it; what else depends on `x` is differentiated as usual.
/// - The index depends on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// The dim does not exist, the axis is empty or has more than 2^32 elements, or the dtype is none
/// of those.
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

/// The index of the smallest value of `x` over `dim`, which is removed from the shape.
///
/// As [`argmax`] in all else: dtypes, NaN, ties, bits; no gradient.
///
/// # Errors
/// As [`argmax`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[7i64, 5, 5, 8], [0, 2, -1, -1]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::argmin(&x, 1)?.to_vec1::<u32>()?, [1, 2]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn argmin<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::ArgMin, x, dim, false)
}

/// [`argmin`], with `dim` kept as an axis of length 1.
///
/// # Errors
/// As [`argmin`].
pub fn argmin_keepdim<Dm: Dim>(x: &Tensor, dim: Dm) -> Result<Tensor> {
    dims::reduce(Op::ArgMin, x, dim, true)
}
