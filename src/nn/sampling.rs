//! `candle_nn::sampling`: choosing along a dim at random.

use candle_core::shape::Dim;
use candle_core::{DType, Result, Tensor};

use crate::error::Error;
use crate::ops;

/// `candle_nn::sampling::gumbel_softmax`: the index of an element along `dim`, drawn with the
/// probabilities `softmax(logits / temperature)`.
///
/// Drawn as the index of the largest of the logits plus Gumbel noise, so that no softmax is computed.
/// The noise comes from the device's generator, with candle-nn's bounds; on the CPU that generator
/// cannot be seeded.
///
/// - `logits`: any shape with at least one dim, any strides; f16, bf16, f32 or f64. The noise is
///   added in f32.
/// - `temperature`: with 0 or less, the index of the largest logit ([`ops::argmax`]).
/// - Returns u32 of the shape of `logits` without `dim`. There is no gradient.
/// - A NaN is chosen before any number, the first one of a row.
///
/// # Errors
/// The temperature is not finite, or as for [`ops::argmax`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let logits = Tensor::new(&[[0f32, f32::NEG_INFINITY], [-100., 100.]], &Device::Cpu)?;
/// let drawn = candle_rowwise::nn::sampling::gumbel_softmax(&logits, 0.8, 1)?;
/// assert_eq!(drawn.to_vec1::<u32>()?, [0, 1]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn gumbel_softmax<D: Dim>(logits: &Tensor, temperature: f64, dim: D) -> Result<Tensor> {
    if !temperature.is_finite() {
        return Err(Error::InvalidOption {
            op: "gumbel-softmax",
            option: "temperature",
            value: temperature.to_string(),
            expected: "finite",
            shape: logits.shape().clone(),
        }
        .into());
    }
    if temperature <= 0. {
        return ops::argmax(logits, dim);
    }
    let logits = logits.to_dtype(DType::F32)?;
    let minus_noise = logits.rand_like(1e-7, 0.999)?.log()?.neg()?.log()?;
    ops::argmax(&(logits - (minus_noise * temperature)?)?, dim)
}
