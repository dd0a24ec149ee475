//! candle-rowwise (skeleton; docs to come)
pub mod engine;
pub mod error;
pub mod nn;
pub mod ops;
pub mod plan;
pub mod problem;
pub mod tuning;

mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod custom_op;

pub use error::Error;
