use crate::custom_op::apply;
use crate::problem::Op;
use candle_core::{Result, Tensor};
/// RMS norm over the last axis.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    apply(Op::RmsNorm { eps }, x, &[weight])
}
/// Layer norm over the last axis.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
    apply(Op::LayerNorm { eps }, x, &[weight, bias])
}
