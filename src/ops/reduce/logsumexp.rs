//! The logarithm of a sum of exponentials.

use candle_core::shape::Dims;
use candle_core::{Result, Tensor};

use crate::ops::dims;
use crate::ops::gradient::Backward;
use crate::ops::softmax::probabilities;
use crate::problem::Op;

/// `log(exp(x[0]) + ... + exp(x[n-1]))` over `dims`, which are removed from the shape.
///
/// Computed as `m + log(sum(exp(x - m)))` with `m` the largest value of the row, which neither
/// overflows nor loses the small terms (Blanchard, Higham and Higham, *Accurately computing the
/// log-sum-exp and softmax functions*, 2021).
///
/// - `x`: any shape, any strides; f16, bf16, f32 or f64; integers (u8, u32, i16, i32, i64) are
///   converted to f64.
/// - Returns the dtype of `x`, f64 of integers.
/// - A row with a NaN gives NaN; else a row with `+inf` gives `+inf`; a row of nothing but `-inf`,
///   or an empty one, gives `-inf`. One element gives itself, exactly.
/// - Gradient: `softmax(x)` times that of the result. A row of nothing but `-inf` has no derivative
///   and gets exactly 0; one with a `+inf` gets NaN.
/// - The bits of a value depend on its row alone ([module docs](crate::ops)).
///
/// # Errors
/// A dim does not exist or is given twice, or the dtype is none of those.
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[1000f32, 1000.], [f32::NEG_INFINITY, 3.]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::logsumexp(&x, 1)?.to_vec1::<f32>()?;
/// assert!((y[0] - 1000.6931).abs() < 1e-4);
/// assert_eq!(y[1], 3.);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn logsumexp<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::LogSumExp, x, dims, false)
}

/// [`logsumexp`], with `dims` kept as axes of length 1.
///
/// # Errors
/// As [`logsumexp`].
pub fn logsumexp_keepdim<Ds: Dims>(x: &Tensor, dims: Ds) -> Result<Tensor> {
    dims::reduce(Op::LogSumExp, x, dims, true)
}

/// dx = softmax(x) * g, and 0 where there is no derivative.
pub(in crate::ops) fn logsumexp_gradient(pass: &Backward) -> Result<Option<Tensor>> {
    let dx = probabilities(&pass.x)?.broadcast_mul(&pass.grad)?;
    // The value is -inf only for a row of nothing but -inf: rounding cannot lead there.
    let is_empty = pass.res.eq(f64::NEG_INFINITY)?;
    is_empty
        .broadcast_as(dx.shape())?
        .where_cond(&dx.zeros_like()?, &dx)
        .map(Some)
}
