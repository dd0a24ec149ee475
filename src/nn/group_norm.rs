//! `candle_nn::group_norm`: the layer that normalises groups of channels.

use candle_core::{Result, Tensor};
use candle_nn::{Init, Module, VarBuilder};

use super::checks::{check_eps, check_float, check_side};
use super::compute_dtype;
use crate::error::Error;
use crate::ops::{self, NormOptions};

const OP: &str = "group-norm";

/// `candle_nn::GroupNorm`: `(x - mean) / sqrt(var + eps) * weight + bias`, with mean and population
/// variance of each group of channels of a sample, and weight and bias of each channel.
///
/// Wu and He, *Group Normalization*, 2018 (arXiv:1803.08494).
///
/// - Input: `(batch, channels, ...)`, with any number of dims after the channels, any strides; f16,
///   bf16, f32 or f64. (candle-nn asks for one dim after the channels at least.)
/// - Weight and bias: one vector each, with an element per channel; the dtype of the input, or f32
///   beside a half type.
/// - Output: the shape and dtype of the input; half types are rounded once, after weight and bias.
/// - Groups whose squares overflow or vanish are handled. A NaN or an infinity makes its group NaN. A
///   constant group gives exactly the bias; with eps 0 it is 0/0, and its result is undefined.
/// - Gradients: of the input, the weight and the bias.
/// - The bits of a group depend on the group, its weight and bias and eps alone.
///
/// # Errors
/// [`Module::forward`] fails if the input has less than two dims or another number of channels, if
/// the shape, dtype or device of weight or bias do not fit, if eps is negative or not finite, or if
/// the dtype is not one of the four.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::nn::{GroupNorm, Module};
/// // Two channels in one group.
/// let x = Tensor::new(&[[[4f32, 6.], [4., 6.]]], &Device::Cpu)?;
/// let weight = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
/// let bias = Tensor::new(&[0f32, 10.], &Device::Cpu)?;
/// let layer = GroupNorm::new(weight, bias, 2, 1, 0.)?;
/// assert_eq!(layer.forward(&x)?.to_vec3::<f32>()?, [[[-1., 1.], [8., 12.]]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// A layer for inputs of `num_channels` in `num_groups` of equally many.
    ///
    /// # Errors
    /// The groups do not divide the channels, or there are none.
    pub fn new(
        weight: Tensor,
        bias: Tensor,
        num_channels: usize,
        num_groups: usize,
        eps: f64,
    ) -> Result<Self> {
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            return Err(Error::Groups {
                op: OP,
                groups: num_groups,
                channels: num_channels,
            }
            .into());
        }
        Ok(Self {
            weight,
            bias,
            eps,
            num_channels,
            num_groups,
        })
    }

    fn check(&self, x: &Tensor) -> Result<()> {
        let shape = x.shape();
        let [_, channels, ..] = *x.dims() else {
            return Err(Error::WrongRank {
                op: OP,
                argument: "the input",
                shape: shape.clone(),
                expected: "two dims at least: batch, channels",
            }
            .into());
        };
        if channels != self.num_channels {
            return Err(Error::InvalidOption {
                op: OP,
                option: "num_channels",
                value: self.num_channels.to_string(),
                expected: "the length of dim 1",
                shape: shape.clone(),
            }
            .into());
        }
        check_float(OP, x)?;
        check_eps(OP, self.eps, x)?;
        check_side(OP, "weight", &self.weight, channels, x)?;
        check_side(OP, "bias", &self.bias, channels, x)?;
        Ok(())
    }
}

impl Module for GroupNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.check(x)?;
        if x.elem_count() == 0 && x.device().is_cuda() {
            // Candle's backend there casts and multiplies nothing only with an error.
            return Ok(x.clone());
        }
        // Wide until the bias has been added, so that half types are rounded once.
        let wide = compute_dtype(x.dtype());
        let width = x.dims()[1..].iter().product::<usize>() / self.num_groups;
        let rows = (x.dims()[0], self.num_groups, width);
        let groups = x.to_dtype(wide)?.reshape(rows)?;
        let mut per_channel = vec![1; x.rank()];
        per_channel[1] = self.num_channels;
        let weight = self
            .weight
            .to_dtype(wide)?
            .reshape(per_channel.as_slice())?;
        let bias = self.bias.to_dtype(wide)?.reshape(per_channel)?;
        ops::layer_norm_with(&groups, &NormOptions::new(self.eps))?
            .reshape(x.shape())?
            .broadcast_mul(&weight)?
            .broadcast_add(&bias)?
            .to_dtype(x.dtype())
    }
}

/// `candle_nn::group_norm`: a [`GroupNorm`] with its weight and bias from `vb`.
///
/// # Errors
/// `vb` has no weight or bias of length `num_channels`, or the groups do not divide the channels.
pub fn group_norm(
    num_groups: usize,
    num_channels: usize,
    eps: f64,
    vb: VarBuilder,
) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", Init::Const(1.))?;
    let bias = vb.get_with_hints(num_channels, "bias", Init::Const(0.))?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}
