//! Failures that people met in row-wise ops of other projects, each as an input with its right
//! answer. A test is named by the id of its case; where a case also speaks of ops that this crate
//! does not have yet, the comment says which.

mod arguments;
mod big;
mod empty;
#[cfg(feature = "cuda")]
mod gpus;
mod gradients;
#[cfg(feature = "cuda")]
mod large;
mod layout;
mod precision;
mod sizes;
mod special;
mod table;
mod ties;
mod variance;

use candle_core::backprop::GradStore;

use crate::common::*;

/// The gradient of a variable, which must be there.
fn gradient_of(grads: &GradStore, var: &Var) -> Tensor {
    let grad = grads.get(var.as_tensor());
    grad.expect("no gradient for a tracked tensor").clone()
}

/// A tracked tensor of these values.
fn var(
    values: &[f64],
    shape: impl Into<candle_core::Shape>,
    dtype: DType,
    device: &Device,
) -> Result<Var> {
    Ok(Var::from_tensor(&tensor(values, shape, dtype, device)?)?)
}
