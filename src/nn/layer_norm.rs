//! `candle_nn::layer_norm`: the layers that normalise the last dim.

use candle_core::{Result, Tensor};
use candle_nn::{Module, VarBuilder};

use super::checks::check_side;
use super::compute_dtype;
use crate::ops;

pub use candle_nn::layer_norm::LayerNormConfig;

/// `candle_nn::LayerNorm`: layer norm with or without a bias, or RMS norm, of the last dim.
///
/// - Input: any shape whose last dim is as long as the weight (and the bias), any strides; f16,
///   bf16, f32 or f64.
/// - Weight and bias: one vector each; the dtype of the input, or f32 beside a half type.
/// - Output: the shape and dtype of the input, rounded once, after weight and bias.
/// - Gradients: of the input, the weight and the bias, with the formulas of [`ops::layer_norm`] and
///   [`ops::rms_norm`].
///
/// # Errors
/// [`Module::forward`] fails as these two functions do.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

impl LayerNorm {
    /// Layer norm with weight and bias.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: Some(bias),
            remove_mean: true,
            eps,
        }
    }

    /// Layer norm with a weight only.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: None,
            remove_mean: true,
            eps,
        }
    }

    /// RMS norm: the mean is not removed.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: None,
            remove_mean: false,
            eps,
        }
    }

    /// What the normalised row is multiplied by.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// What is added to it then.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Added to the variance, or to the mean square.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Whether this is a layer norm; else it is an RMS norm.
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }
}

impl Module for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Self { weight, eps, .. } = self;
        match (self.remove_mean, &self.bias) {
            (true, Some(bias)) => ops::layer_norm(x, weight, bias, *eps),
            (true, None) => ops::layer_norm(x, weight, &weight.zeros_like()?, *eps),
            (false, None) => ops::rms_norm(x, weight, *eps),
            (false, Some(bias)) => {
                let width = x.dims().last().copied().unwrap_or(1);
                check_side("rms-norm", "weight", weight, width, x)?;
                check_side("rms-norm", "bias", bias, width, x)?;
                // Wide until the bias has been added, so that half types are rounded once.
                let wide = compute_dtype(x.dtype());
                let weight = weight.to_dtype(wide)?;
                ops::rms_norm(&x.to_dtype(wide)?, &weight, *eps)?
                    .broadcast_add(&bias.to_dtype(wide)?)?
                    .to_dtype(x.dtype())
            }
        }
    }
}

impl From<candle_nn::LayerNorm> for LayerNorm {
    fn from(layer: candle_nn::LayerNorm) -> Self {
        Self {
            weight: layer.weight().clone(),
            bias: layer.bias().cloned(),
            remove_mean: layer.remove_mean(),
            eps: layer.eps(),
        }
    }
}

/// `candle_nn::layer_norm`: a [`LayerNorm`] with its tensors from `vb`, under the names that
/// candle-nn looks for.
///
/// # Errors
/// `vb` has no such tensors of length `size`.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, config, vb).map(Into::into)
}

/// `candle_nn::layer_norm_no_bias`: a [`LayerNorm`] with a weight only.
///
/// # Errors
/// `vb` has no weight of length `size`.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    candle_nn::layer_norm_no_bias(size, eps, vb).map(Into::into)
}

/// `candle_nn::RmsNorm`: RMS norm of the last dim. Shapes, dtypes and errors are those of
/// [`LayerNorm`].
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// RMS norm with a weight.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The same layer as a [`LayerNorm`] that does not remove the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// What the normalised row is multiplied by.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// Added to the mean square.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The variant that candle-nn can differentiate. Here [`Module::forward`] can be as well, and
    /// this is the same.
    ///
    /// # Errors
    /// Those of [`ops::rms_norm`].
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

impl From<candle_nn::RmsNorm> for RmsNorm {
    fn from(layer: candle_nn::RmsNorm) -> Self {
        Self(layer.into_inner().into())
    }
}

/// `candle_nn::rms_norm`: a [`RmsNorm`] with its weight from `vb`.
///
/// # Errors
/// `vb` has no weight of length `size`.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    candle_nn::rms_norm(size, eps, vb).map(Into::into)
}
