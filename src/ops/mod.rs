//! The public ops, one family per file, and the gradient of each.
//!
//! What holds for every op here:
//!
//! - **Dims.** Softmax, its logarithm and [`l2_normalize`] go along any dim, the other norms and losses along the
//!   last. Reductions go over
//!   one dim or several, given as to candle's own; several are one axis, in the order of the shape,
//!   and with none (`()`) every element is a row of its own. Each reduction has a twin that keeps
//!   the dims as axes of length 1.
//! - **Layouts.** Contiguous, strided, offset and broadcast inputs are all taken, and give the result
//!   that a packed copy would. Rows that are contiguous inside are read in place; others are packed
//!   first.
//! - **Dtypes.** f16, bf16, f32 and f64. Half types are computed in f32 and rounded once, at the
//!   output; f32 in f32; f64 in f64. Reductions also take u8, u32, i16, i32 and i64: sums and
//!   products of them are i64; extrema, their indices, [`any`] and [`all`] are of the integers
//!   themselves; all others convert them to f64 first and return f64.
//! - **Determinism.** The bits of a row's result depend on the row's content and length, the dtype,
//!   the op's options and the device's architecture. They do not depend on how many other rows
//!   there are, on the row's position, on strides, or on the thread count.
//! - **Special values.** A NaN in a row makes the row's result NaN ([`argmax`] and [`argmin`] return
//!   its index, and for [`any`] and [`all`] it is not 0). Infinities follow the formula of each op.
//! - **Empty axes.** The value over nothing: sums and norms 0, products 1, [`any`] 0, [`all`] 1,
//!   [`logsumexp`] `-inf`, means, [`var`] and [`std`](fn@std) NaN. Smallest and largest values of
//!   nothing, and their indices, are an error.
//! - **Gradients.** Every op records its backward pass, for every layout, except [`argmax`],
//!   [`argmin`], [`any`] and [`all`], which have no derivative. Where a function has none at a point
//!   (a norm at zeros, [`std`](fn@std) of equal values), the gradient is exactly 0. Gradients of half types
//!   are computed in f32 and rounded once; those of a weight or a bias are sums over all rows, in an order that
//!   follows from the shape. As in candle, the gradient itself is part of no graph, unless the environment variable
//!   `CANDLE_GRAD_DO_NOT_DETACH` asks for that (for second derivatives).
//! - **Losses.** [`cross_entropy`] takes classes beside rows of logits; its own docs say what holds for it.
//! - **Clusters.** [`cluster_allreduce`] and [`cluster_allgather`] are exchanges between vectors and no
//!   row-wise ops: their own docs say what holds for them.
//! - **Errors.** A call that makes no sense is an [`Error`](crate::Error) that names the op, the
//!   dim and the shapes, inside candle's error. Nothing panics.

mod cluster;
mod dims;
mod gradient;
mod loss;
mod norm;
mod reduce;
mod softmax;

pub use crate::exchange::ClusterCombine;
#[doc(hidden)]
pub use crate::exchange::Trial;
#[doc(hidden)]
pub use cluster::cluster_trial;
pub use cluster::{cluster_allgather, cluster_allreduce};
pub(crate) use gradient::gradient;
pub(crate) use loss::check_targets;
pub use loss::{cross_entropy, cross_entropy_with_gradient, CrossEntropyOptions, Reduction};
pub use norm::{
    add_layer_norm, add_rms_norm, l2_normalize, layer_norm, layer_norm_with, rms_norm,
    rms_norm_with, NormOptions,
};
pub use reduce::{
    abs_max, abs_max_keepdim, all, all_keepdim, any, any_keepdim, argmax, argmax_keepdim, argmin,
    argmin_keepdim, logsumexp, logsumexp_keepdim, max, max_keepdim, mean, mean_keepdim,
    mean_of_squares, mean_of_squares_keepdim, min, min_keepdim, min_max, min_max_keepdim, norm_l1,
    norm_l1_keepdim, norm_l2, norm_l2_keepdim, norm_linf, norm_linf_keepdim, prod, prod_keepdim,
    std, std_keepdim, sum, sum_keepdim, var, var_keepdim,
};
pub use softmax::{log_softmax, log_softmax_with, softmax, softmax_with, SoftmaxOptions};
