//! The public ops, one family per file, and the gradient of each.
//!
//! What holds for every op here:
//!
//! - **Layouts.** Contiguous, strided, offset and broadcast inputs are all taken, over any dim, and
//!   give the result that a packed copy would. Rows that are contiguous inside are read in place;
//!   others are packed first.
//! - **Dtypes.** f16, bf16, f32 and f64. Half types are computed in f32 and rounded once, at the
//!   output; f32 in f32; f64 in f64.
//! - **Determinism.** The bits of a row's result depend on the row's content and length, the dtype,
//!   the op's options and the device's architecture. They do not depend on how many other rows
//!   there are, on the row's position, on strides, or on the thread count.
//! - **Special values.** A NaN in a row makes the row's result NaN ([`argmax`] returns its index).
//!   Infinities follow the formula of each op.
//! - **Gradients.** Every op records its backward pass, for every layout, except [`argmax`], which
//!   has no derivative. Gradients of half types are computed in f32 and rounded once. As in candle,
//!   the gradient itself is part of no graph, unless the environment variable
//!   `CANDLE_GRAD_DO_NOT_DETACH` asks for that (for second derivatives).
//! - **Errors.** A call that makes no sense is an [`Error`](crate::Error) that names the op, the
//!   dim and the shapes, inside candle's error. Nothing panics.

mod dims;
mod gradient;
mod norm;
mod reduce;
mod softmax;

pub(crate) use gradient::gradient;
pub use norm::{layer_norm, rms_norm};
pub use reduce::{
    argmax, argmax_keepdim, logsumexp, logsumexp_keepdim, max, max_keepdim, sum, sum_keepdim,
};
pub use softmax::{log_softmax, softmax};
