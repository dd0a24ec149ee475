//! Sum, mean and product.

use candle_core::shape::Dims;
use candle_core::{Result, Tensor, D};

use crate::ops::dims;
use crate::ops::gradient::Backward;
use crate::problem::Op;

/// The sum of `x` over `dims`, which are removed from the shape.
///
/// `y = x[0] + ... + x[n-1]`, added up in a tree-like order, so that the error grows with the
/// logarithm of the length and not with the length; half types are added up in f32 and rounded
/// once. A sum beyond the dtype's range is an infinity.
///
/// - `x`: any shape, any strides; f16, bf16, f32, f64, u8, u32, i16, i32 or i64.
/// - Returns the dtype of `x`; of integers i64, in which they are added up, and which wraps around.
/// - NaN and infinities follow IEEE addition: a NaN, or infinities of both signs, give NaN.
/// - The sum over an empty axis is 0.
/// - Gradient: that of the result, broadcast over the row.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 2., 3.], [4., 5., 6.]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::sum(&x, 1)?.to_vec1::<f32>()?, [6., 15.]);
/// assert_eq!(candle_rowwise::ops::sum(&x, 0)?.to_vec1::<f32>()?, [5., 7., 9.]);
/// assert_eq!(candle_rowwise::ops::sum(&x, (0, 1))?.to_scalar::<f32>()?, 21.);
/// let bytes = Tensor::new(&[200u8, 200, 200], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::sum(&bytes, 0)?.to_scalar::<i64>()?, 600);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn sum<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Sum, x, dims, false)
}

/// [`sum`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`sum`].
pub fn sum_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Sum, x, dims, true)
}

/// The mean of `x` over `dims`, which are removed from the shape.
///
/// The sum, added up as in [`sum`], is divided by the length before the one rounding. Where the sum
/// is beyond the range of numbers though the mean is not, the mean is still right.
///
/// - `x`: any shape, any strides; f16, bf16, f32 or f64; integers (u8, u32, i16, i32, i64) are
///   converted to f64.
/// - Returns the dtype of `x`, f64 of integers.
/// - NaN and infinities as in [`sum`]. The mean over an empty axis is NaN.
/// - Gradient: that of the result, divided by the length, broadcast over the row.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1f32, 2.], [3e38, 3e38]], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::mean(&x, 1)?.to_vec1::<f32>()?, [1.5, 3e38]);
/// let bytes = Tensor::new(&[200u8, 201], &Device::Cpu)?;
/// assert_eq!(candle_rowwise::ops::mean(&bytes, 0)?.to_scalar::<f64>()?, 200.5);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn mean<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Mean, x, dims, false)
}

/// [`mean`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`mean`].
pub fn mean_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Mean, x, dims, true)
}

/// The product of `x` over `dims`, which are removed from the shape.
///
/// Half types are multiplied in f32 and rounded once. The order of the factors is a fixed one, but
/// not that of the row: where some part of the product is beyond the range of numbers, the result
/// may be infinite, 0 or (of an infinite part and a part that is 0) NaN, though the product itself
/// has a value.
///
/// - `x`: any shape, any strides; f16, bf16, f32, f64, u8, u32, i16, i32 or i64.
/// - Returns the dtype of `x`; of integers i64, in which they are multiplied, and which wraps
///   around.
/// - NaN and infinities follow IEEE multiplication. The product over an empty axis is 1.
/// - Gradient: that of the result times the product of the other elements, found without a
///   division, so that it is right beside zeros.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor, Var};
/// let x = Var::new(&[[2f32, 0., 3., 4.], [1., 2., 3., 4.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::prod(x.as_tensor(), 1)?;
/// assert_eq!(y.to_vec1::<f32>()?, [0., 24.]);
/// let grads = y.sum_all()?.backward()?;
/// let dx = grads.get(x.as_tensor()).unwrap().to_vec2::<f32>()?;
/// assert_eq!(dx, [[0., 24., 0., 0.], [24., 12., 8., 6.]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn prod<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Prod, x, dims, false)
}

/// [`prod`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`prod`].
pub fn prod_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::Prod, x, dims, true)
}

/// dx = g.
pub(in crate::ops) fn sum_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    pass.grad.broadcast_as(pass.x.shape()).map(Some)
}

/// dx = g / n.
pub(in crate::ops) fn mean_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let share = (&pass.grad / pass.x.dim(D::Minus1)? as f64)?;
    share.broadcast_as(pass.x.shape()).map(Some)
}

/// dx = g * the product of the others.
///
/// The halves of the row are multiplied with each other, then the halves of that, and so on; on the
/// way back each half gets what its whole is to be multiplied with, times the other half.
pub(in crate::ops) fn prod_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let last = pass.x.rank() - 1;
    let mut levels = Vec::new();
    let mut product = pass.x.clone();
    while product.dim(last)? > 1 {
        let width = product.dim(last)?;
        let half = width.div_ceil(2);
        let front = product.narrow(last, 0, half)?;
        let mut back = product.narrow(last, half, width - half)?;
        if width % 2 == 1 {
            let one = product.narrow(last, 0, 1)?.ones_like()?;
            back = Tensor::cat(&[back, one], last)?;
        }
        product = (&front * &back)?;
        levels.push((width, front, back));
    }
    let mut others = pass.grad.clone();
    for (width, front, back) in levels.into_iter().rev() {
        let of_front = (&others * back)?;
        let of_back = (&others * front)?;
        others = Tensor::cat(&[of_front, of_back], last)?.narrow(last, 0, width)?;
    }
    Ok(Some(others))
}
