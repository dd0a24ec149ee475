//! The drop-ins: candle-nn's names and signatures, its answers where it is right, its ways to load.

mod group_norm;
mod layer_norm;
mod loss;
mod names;
mod sampling;
mod swapping;

type TensorResult = candle_core::Result<crate::common::Tensor>;
