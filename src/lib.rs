#![doc = include_str!("../README.md")]
//!
//! # Where things are
//!
//! - [`ops`]: the ops as functions of tensors, with their formulas, errors and gradients.
//! - [`nn`]: drop-ins with candle-nn's paths, names and signatures.
//! - [`TensorRowwise`]: candle's reductions of a tensor under their own names, as
//!   `x.rowwise().sum(1)`.
//! - [`engine`]: the row-wise engine on the CPU, for writing new ops: monoids
//!   ([`engine::ReduceOp`]), walks ([`engine::reduce`]), joins ([`engine::pjoin`]). Its CUDA twin is a
//!   folder of headers, `cuda/include/rowwise/`; a crate that depends on this one finds it in its
//!   build script's environment, as `DEP_ROWWISE_INCLUDE`.
//! - [`plan`]: which tier of the GPU runs a problem and how; [`problem`]: what a checked problem is;
//!   [`tuning`]: the thresholds, each with the measurement that set it.
#![deny(missing_docs)]

mod cpu;
mod custom_op;
pub mod engine;
pub mod error;
mod exchange;
pub mod nn;
pub mod ops;
pub mod plan;
pub mod problem;
#[cfg(doctest)]
mod refused;
mod tensor;
pub mod tuning;

#[cfg(any(feature = "cuda", feature = "host-kernels"))]
pub mod cuda;

pub use error::Error;
pub use tensor::{Rowwise, TensorRowwise};
