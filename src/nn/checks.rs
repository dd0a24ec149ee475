//! What the layers and losses that are made of several ops check before any of these runs, so that
//! an error speaks of the call and not of a part of it.

use candle_core::Tensor;

use super::compute_dtype;
use crate::error::{Error, Result};
use crate::problem::{is_float, FLOAT_DTYPE_NAMES};

/// The input must be of one of the float dtypes that ops take.
pub(super) fn check_float(op: &'static str, x: &Tensor) -> Result<()> {
    if is_float(x.dtype()) {
        return Ok(());
    }
    Err(Error::UnsupportedDType {
        op,
        dtype: x.dtype(),
        shape: x.shape().clone(),
        supported: FLOAT_DTYPE_NAMES,
    })
}

/// What is added to a variance must be no NaN, infinity or negative number.
pub(super) fn check_eps(op: &'static str, eps: f64, x: &Tensor) -> Result<()> {
    if eps >= 0. && eps.is_finite() {
        return Ok(());
    }
    Err(Error::InvalidOption {
        op,
        option: "eps",
        value: eps.to_string(),
        expected: "finite and not negative",
        shape: x.shape().clone(),
    })
}

/// A weight or bias must be a vector of `len` elements, of the dtype of `x` or f32 beside a half
/// type, and on the device of `x`.
pub(super) fn check_side(
    op: &'static str,
    argument: &'static str,
    side: &Tensor,
    len: usize,
    x: &Tensor,
) -> Result<()> {
    if side.dims() != [len] {
        return Err(Error::ShapeMismatch {
            op,
            argument,
            expected: len.into(),
            got: side.shape().clone(),
            input: x.shape().clone(),
        });
    }
    let wide = compute_dtype(x.dtype());
    if side.dtype() != x.dtype() && side.dtype() != wide {
        return Err(Error::DTypeMismatch {
            op,
            argument,
            expected: x.dtype(),
            got: side.dtype(),
            shape: x.shape().clone(),
        });
    }
    check_device(op, argument, side, x)
}

/// An argument must be on the device of `x`.
pub(super) fn check_device(
    op: &'static str,
    argument: &'static str,
    side: &Tensor,
    x: &Tensor,
) -> Result<()> {
    if side.device().same_device(x.device()) {
        return Ok(());
    }
    Err(Error::DeviceMismatch {
        op,
        argument,
        expected: x.device().location(),
        got: side.device().location(),
        got_shape: side.shape().clone(),
        shape: x.shape().clone(),
    })
}
