//! `candle_nn::ops` with its softmaxes and norms replaced; its other functions are re-exported.

use candle_core::shape::Dim;
use candle_core::{Result, Tensor, D};

use crate::ops;

pub use candle_nn::ops::*;

/// `candle_nn::ops::softmax`: [`ops::softmax`].
///
/// # Errors
/// Those of [`ops::softmax`].
pub fn softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    ops::softmax(xs, dim)
}

/// `candle_nn::ops::log_softmax`: [`ops::log_softmax`].
///
/// # Errors
/// Those of [`ops::log_softmax`].
pub fn log_softmax<D: Dim>(xs: &Tensor, d: D) -> Result<Tensor> {
    ops::log_softmax(xs, d)
}

/// `candle_nn::ops::softmax_last_dim`: [`ops::softmax`] over the last dim.
///
/// # Errors
/// Those of [`ops::softmax`].
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    ops::softmax(xs, D::Minus1)
}

/// `candle_nn::ops::rms_norm`: [`ops::rms_norm`].
///
/// # Errors
/// Those of [`ops::rms_norm`].
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    ops::rms_norm(xs, alpha, eps.into())
}

/// `candle_nn::ops::rms_norm_slow`. It is not slow here: the same as [`rms_norm`].
///
/// # Errors
/// Those of [`ops::rms_norm`].
pub fn rms_norm_slow(x: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    rms_norm(x, alpha, eps)
}

/// `candle_nn::ops::layer_norm`: [`ops::layer_norm`].
///
/// # Errors
/// Those of [`ops::layer_norm`].
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    ops::layer_norm(xs, alpha, beta, eps.into())
}

/// `candle_nn::ops::layer_norm_slow`. It is not slow here: the same as [`layer_norm`].
///
/// # Errors
/// Those of [`ops::layer_norm`].
pub fn layer_norm_slow(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    layer_norm(x, alpha, beta, eps)
}
