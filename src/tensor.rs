//! Candle's reductions of a tensor, by their own names: [`TensorRowwise::rowwise`].

use candle_core::shape::{Dim, Dims};
use candle_core::{Result, Tensor};

use crate::ops;

/// Gives a tensor this crate's reductions under candle's names.
///
/// A tensor's own methods win over those of a trait, so the names are on a view: where a model has
/// `x.sum(1)` it gets `x.rowwise().sum(1)`, with the same arguments, shape and dtype of the result.
/// What is better is in the docs of each op: half types are added up in f32 and rounded once,
/// NaN is never lost, strides are taken as they are, and bits do not depend on the batch.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::TensorRowwise;
///
/// let x = Tensor::new(&[[1f32, 2., 6.], [4., 5., 9.]], &Device::Cpu)?;
/// assert_eq!(x.rowwise().mean(1)?.to_vec1::<f32>()?, [3., 6.]);
/// assert_eq!(x.rowwise().var_keepdim(1)?.to_vec2::<f32>()?, [[7.], [7.]]);
/// assert_eq!(x.rowwise().max_all()?.to_scalar::<f32>()?, 9.);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait TensorRowwise {
    /// The view.
    fn rowwise(&self) -> Rowwise<'_>;
}

impl TensorRowwise for Tensor {
    fn rowwise(&self) -> Rowwise<'_> {
        Rowwise(self)
    }
}

/// A tensor with this crate's reductions under candle's names: see [`TensorRowwise`].
#[derive(Debug, Clone, Copy)]
pub struct Rowwise<'a>(&'a Tensor);

impl Rowwise<'_> {
    fn all_dims(&self) -> Vec<usize> {
        (0..self.0.rank()).collect()
    }

    /// `Tensor::sum`: [`ops::sum`]. Of integers the sum is i64 here, which does not wrap.
    pub fn sum<D: Dims>(&self, sum_dims: D) -> Result<Tensor> {
        ops::sum(self.0, sum_dims)
    }

    /// `Tensor::sum_keepdim`: [`ops::sum_keepdim`].
    pub fn sum_keepdim<D: Dims>(&self, sum_dims: D) -> Result<Tensor> {
        ops::sum_keepdim(self.0, sum_dims)
    }

    /// `Tensor::sum_all`: [`ops::sum`] over all dims.
    pub fn sum_all(&self) -> Result<Tensor> {
        ops::sum(self.0, self.all_dims())
    }

    /// `Tensor::mean`: [`ops::mean`].
    pub fn mean<D: Dims>(&self, mean_dims: D) -> Result<Tensor> {
        ops::mean(self.0, mean_dims)
    }

    /// `Tensor::mean_keepdim`: [`ops::mean_keepdim`].
    pub fn mean_keepdim<D: Dims>(&self, mean_dims: D) -> Result<Tensor> {
        ops::mean_keepdim(self.0, mean_dims)
    }

    /// `Tensor::mean_all`: [`ops::mean`] over all dims.
    pub fn mean_all(&self) -> Result<Tensor> {
        ops::mean(self.0, self.all_dims())
    }

    /// `Tensor::max`: [`ops::max`], which takes several dims as well.
    pub fn max<D: Dims>(&self, dim: D) -> Result<Tensor> {
        ops::max(self.0, dim)
    }

    /// `Tensor::max_keepdim`: [`ops::max_keepdim`].
    pub fn max_keepdim<D: Dims>(&self, dim: D) -> Result<Tensor> {
        ops::max_keepdim(self.0, dim)
    }

    /// `Tensor::max_all`: [`ops::max`] over all dims.
    pub fn max_all(&self) -> Result<Tensor> {
        ops::max(self.0, self.all_dims())
    }

    /// `Tensor::min`: [`ops::min`], which takes several dims as well.
    pub fn min<D: Dims>(&self, dim: D) -> Result<Tensor> {
        ops::min(self.0, dim)
    }

    /// `Tensor::min_keepdim`: [`ops::min_keepdim`].
    pub fn min_keepdim<D: Dims>(&self, dim: D) -> Result<Tensor> {
        ops::min_keepdim(self.0, dim)
    }

    /// `Tensor::min_all`: [`ops::min`] over all dims.
    pub fn min_all(&self) -> Result<Tensor> {
        ops::min(self.0, self.all_dims())
    }

    /// `Tensor::argmax`: [`ops::argmax`].
    pub fn argmax<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::argmax(self.0, dim)
    }

    /// `Tensor::argmax_keepdim`: [`ops::argmax_keepdim`].
    pub fn argmax_keepdim<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::argmax_keepdim(self.0, dim)
    }

    /// `Tensor::argmin`: [`ops::argmin`].
    pub fn argmin<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::argmin(self.0, dim)
    }

    /// `Tensor::argmin_keepdim`: [`ops::argmin_keepdim`].
    pub fn argmin_keepdim<D: Dim>(&self, dim: D) -> Result<Tensor> {
        ops::argmin_keepdim(self.0, dim)
    }

    /// `Tensor::var`, the unbiased variance: [`ops::var`] with correction 1.
    pub fn var<D: Dims>(&self, dim: D) -> Result<Tensor> {
        ops::var(self.0, dim, 1)
    }

    /// `Tensor::var_keepdim`: [`ops::var_keepdim`] with correction 1.
    pub fn var_keepdim<D: Dims>(&self, dim: D) -> Result<Tensor> {
        ops::var_keepdim(self.0, dim, 1)
    }

    /// `Tensor::log_sum_exp`: [`ops::logsumexp`].
    pub fn log_sum_exp<D: Dims>(&self, sum_dims: D) -> Result<Tensor> {
        ops::logsumexp(self.0, sum_dims)
    }

    /// `Tensor::norm`, the Euclidean norm of all elements: [`ops::norm_l2`] over all dims.
    pub fn norm(&self) -> Result<Tensor> {
        ops::norm_l2(self.0, self.all_dims())
    }
}
