//! Reductions: one value per row, or two.
//!
//! All take one dim or several, as candle's own do (`1`, `D::Minus1`, `(0, 2)`, `vec![0, 1]`, `()`),
//! except the arg ones, which take one. Several dims are one axis, in the order of the shape.

mod arg;
mod extrema;
mod logic;
mod logsumexp;
mod norm;
mod spread;
mod sum;

pub use arg::{argmax, argmax_keepdim, argmin, argmin_keepdim};
pub use extrema::{
    abs_max, abs_max_keepdim, max, max_keepdim, min, min_keepdim, min_max, min_max_keepdim,
    norm_linf, norm_linf_keepdim,
};
pub(super) use extrema::{abs_max_gradient, extremum_gradient, min_max_gradient};
pub use logic::{all, all_keepdim, any, any_keepdim};
pub(super) use logsumexp::logsumexp_gradient;
pub use logsumexp::{logsumexp, logsumexp_keepdim};
pub use norm::{
    mean_of_squares, mean_of_squares_keepdim, norm_l1, norm_l1_keepdim, norm_l2, norm_l2_keepdim,
};
pub(super) use norm::{mean_of_squares_gradient, norm_l1_gradient, norm_l2_gradient};
pub use spread::{std, std_keepdim, var, var_keepdim};
pub(super) use spread::{std_gradient, var_gradient};
pub use sum::{mean, mean_keepdim, prod, prod_keepdim, sum, sum_keepdim};
pub(super) use sum::{mean_gradient, prod_gradient, sum_gradient};
