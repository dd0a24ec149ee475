//! candle-nn with its row-wise parts replaced by this crate's: a model changes only its `use` lines.
//!
//! Every path of candle-nn 0.11 exists here. These are this crate's own; all others are candle-nn's,
//! re-exported:
//!
//! | path | what is there |
//! |---|---|
//! | [`ops`](mod@ops) | `softmax`, `softmax_last_dim`, `log_softmax`, `rms_norm[_slow]`, `layer_norm[_slow]` |
//! | [`layer_norm`](mod@layer_norm) | [`LayerNorm`], [`RmsNorm`], `layer_norm`, `layer_norm_no_bias`, `rms_norm` |
//! | [`group_norm`](mod@group_norm) | [`GroupNorm`], `group_norm` |
//! | [`loss`] | `cross_entropy`, `nll` |
//! | [`sampling`] | `gumbel_softmax` |
//!
//! Signatures are candle-nn's to the letter. What differs is for the better: every function and
//! layer here records gradients on every layout (the fused ones of candle-nn record none), takes
//! inputs of any strides, computes half types in f32 and rounds once, and gives bits that do not
//! depend on the batch. A weight may also be f32 beside an input of a half type. What changes a
//! result's dtype or turns a result into an error is in the docs of each item.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_rowwise::nn::{self, Module}; // was: use candle_nn::{self as nn, Module};
//!
//! let layer = nn::RmsNorm::new(Tensor::ones(4, DType::F32, &Device::Cpu)?, 0.);
//! let y = layer.forward(&Tensor::new(&[[2f32, -2., 2., -2.]], &Device::Cpu)?)?;
//! assert_eq!(y.to_vec2::<f32>()?, [[1., -1., 1., -1.]]);
//! # Ok::<(), candle_core::Error>(())
//! ```

// Names that are declared here hide those of the glob, so that what is not row-wise comes through.
pub use candle_nn::*;

mod checks;
pub mod group_norm;
pub mod layer_norm;
pub mod loss;
pub mod ops;
pub mod sampling;

pub use group_norm::{group_norm, GroupNorm};
pub use layer_norm::{
    layer_norm, layer_norm_no_bias, rms_norm, LayerNorm, LayerNormConfig, RmsNorm,
};

use candle_core::DType;

/// The dtype that half types are computed in before they are rounded once; others stay as they are.
fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    }
}
