//! What the tests share.

#[macro_use]
pub mod devices;
pub mod check;
pub mod composed;
pub mod data;
pub mod float;
pub mod gradient_reference;
pub mod ops;
pub mod reference;

pub use anyhow::Result;
pub use candle_core::{DType, Device, Tensor, Var, D};
pub use candle_rowwise::problem::Op;

pub use check::{assert_bits_eq, assert_close, assert_same, check, Expect};
pub use data::{h, normal, tensor, values};
