//! Any and all.

use candle_core::shape::Dims;
use candle_core::{Result, Tensor};

use crate::ops::dims;
use crate::problem::Op;

/// Whether any value of `x` over `dims`, which are removed from the shape, is not 0.
///
/// - `x`: any shape, any strides; f16, bf16, f32, f64, u8, u32, i16, i32 or i64; so also what
///   candle's comparisons return.
/// - Returns u8: 1 or 0.
/// - A NaN is not 0, and both zeros are. Over an empty axis: 0.
/// - No gradient: the result is an integer tensor that is part of no graph.
/// - The value depends on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[0f32, -0.], [0., f32::NAN]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::any(&x, 1)?.to_vec1::<u8>()?, [0, 1]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn any<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Any, x, dims, false)
}

/// [`any`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`any`].
pub fn any_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Any, x, dims, true)
}

/// Whether no value of `x` over `dims`, which are removed from the shape, is 0.
///
/// As [`any`] in all else: dtypes, NaN, bits; no gradient. Over an empty axis: 1.
///
/// # Errors
/// As [`any`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 0.], [2., 3.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::all(&x, 1)?.to_vec1::<u8>()?, [0, 1]);
/// assert_eq!(candle_rowwise::ops::all(&x.lt(5.)?, (0, 1))?.to_scalar::<u8>()?, 1);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn all<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::All, x, dims, false)
}

/// [`all`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`all`].
pub fn all_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::All, x, dims, true)
}
