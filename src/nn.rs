//! Drop-ins with candle_nn's names and signatures: a model changes only its `use` lines.
//!
//! What differs from candle_nn 0.11 is for the better: every function and module here records
//! gradients on every layout (the fused ones of candle_nn record none), takes strided inputs in
//! place, computes half types in f32 and rounds once, and gives bits that do not depend on the
//! batch. A weight may also be f32 beside an input of a half type.
//!
//! ```
//! use candle_core::{Device, Module, Tensor};
//! use candle_rowwise::nn; // was: use candle_nn as nn;
//!
//! let layer = nn::RmsNorm::new(Tensor::ones(4, candle_core::DType::F32, &Device::Cpu)?, 0.);
//! let y = layer.forward(&Tensor::new(&[[2f32, -2., 2., -2.]], &Device::Cpu)?)?;
//! assert_eq!(y.to_vec2::<f32>()?, [[1., -1., 1., -1.]]);
//! # Ok::<(), candle_core::Error>(())
//! ```

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

pub use candle_nn::LayerNormConfig;

/// The functions of `candle_nn::ops` that are row-wise.
pub mod ops {
    use candle_core::shape::Dim;
    use candle_core::{Result, Tensor, D};

    use crate::ops;

    /// `candle_nn::ops::softmax`: [`ops::softmax`].
    pub fn softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
        ops::softmax(xs, dim)
    }

    /// `candle_nn::ops::log_softmax`: [`ops::log_softmax`].
    pub fn log_softmax<D: Dim>(xs: &Tensor, d: D) -> Result<Tensor> {
        ops::log_softmax(xs, d)
    }

    /// `candle_nn::ops::softmax_last_dim`: [`ops::softmax`] over the last dim.
    pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
        ops::softmax(xs, D::Minus1)
    }

    /// `candle_nn::ops::rms_norm`: [`ops::rms_norm`].
    pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
        ops::rms_norm(xs, alpha, eps.into())
    }

    /// `candle_nn::ops::rms_norm_slow`. It is not slow here: the same as [`rms_norm`].
    pub fn rms_norm_slow(x: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
        rms_norm(x, alpha, eps)
    }

    /// `candle_nn::ops::layer_norm`: [`ops::layer_norm`].
    pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
        ops::layer_norm(xs, alpha, beta, eps.into())
    }

    /// `candle_nn::ops::layer_norm_slow`. It is not slow here: the same as [`layer_norm`].
    pub fn layer_norm_slow(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
        layer_norm(x, alpha, beta, eps)
    }
}

/// `candle_nn::LayerNorm`: layer norm with or without a bias, or RMS norm, of the last dim.
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
        match (self.remove_mean, &self.bias) {
            (true, Some(bias)) => crate::ops::layer_norm(x, &self.weight, bias, self.eps),
            (true, None) => {
                crate::ops::layer_norm(x, &self.weight, &self.weight.zeros_like()?, self.eps)
            }
            (false, None) => crate::ops::rms_norm(x, &self.weight, self.eps),
            (false, Some(bias)) => {
                // Wide until the bias has been added, so that half types are rounded once.
                let wide = match x.dtype() {
                    DType::F16 | DType::BF16 => DType::F32,
                    dtype => dtype,
                };
                let weight = self.weight.to_dtype(wide)?;
                crate::ops::rms_norm(&x.to_dtype(wide)?, &weight, self.eps)?
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

/// `candle_nn::RmsNorm`: RMS norm of the last dim.
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

    /// The variant that candle_nn can differentiate. Here [`Module::forward`] can be as well, and
    /// this is the same.
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

/// `candle_nn::layer_norm`: a [`LayerNorm`] with its tensors from `vb`, under the names that
/// candle_nn looks for.
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    candle_nn::layer_norm(size, config, vb).map(Into::into)
}

/// `candle_nn::layer_norm_no_bias`: a [`LayerNorm`] with a weight only.
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    candle_nn::layer_norm_no_bias(size, eps, vb).map(Into::into)
}

/// `candle_nn::rms_norm`: a [`RmsNorm`] with its weight from `vb`.
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    candle_nn::rms_norm(size, eps, vb).map(Into::into)
}
