//! Exchanges within clusters: what the device library's `cluster_allreduce` and `cluster_allgather` do, as
//! ops of tensors.

use candle_core::{CpuStorage, CudaStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::gradient;
use super::reduce::sum_keepdim;
use crate::exchange::{ClusterCombine, Exchange, ExchangeOp, Trial};
use crate::problem::{is_float, Op};
use crate::tuning::MAX_CLUSTER_BLOCKS;

/// The vectors of all ranks of a cluster, combined; each rank gets its own copy.
///
/// `y[c, r] = x[c, 0] + ... + x[c, ranks - 1]` for every rank `r` (or the larger or smaller of them, by
/// `combine`), from the left in the order of the ranks. On a GPU a rank is a block of a thread block
/// cluster, and the exchange goes through the shared memory of the cluster.
///
/// - `x`: `[clusters, ranks, width]`, any strides; f32, i32 or u32. 1 to 16 ranks, or as many as the
///   device's clusters have blocks.
/// - Returns the shape and dtype of `x`, contiguous.
/// - A NaN in any rank gives NaN. Sums of integers wrap around. Of zeros, +0.0 is the largest and
///   -0.0 the smallest.
/// - Gradient: that of a sum or extremum over the ranks ([`sum`](super::sum), [`max`](super::max),
///   [`min`](super::min)) for the gradients of all copies, added up. None for integers, whose result
///   is part of no graph.
/// - The bits are the same in every rank, on every device, and on the CPU.
///
/// # Errors
/// `x` has not three dims, or another dtype, or there are no clusters of so many ranks.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_rowwise::ops::{cluster_allreduce, ClusterCombine};
/// // One cluster of three ranks.
/// let x = Tensor::new(&[[[1f32, 7.], [2., 8.], [3., 6.]]], &Device::Cpu)?;
/// let y = cluster_allreduce(&x, ClusterCombine::Add)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[6., 21.], [6., 21.], [6., 21.]]]);
/// let y = cluster_allreduce(&x, ClusterCombine::Max)?;
/// assert_eq!(y.to_vec3::<f32>()?, [[[3., 8.], [3., 8.], [3., 8.]]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cluster_allreduce(x: &Tensor, combine: ClusterCombine) -> Result<Tensor> {
    apply(ExchangeOp::Reduce(combine), x, Trial::NONE)
}

/// The vectors of all ranks of a cluster, one after the other; each rank gets its own copy.
///
/// `y[c, r, s * width + i] = x[c, s, i]` for every rank `r`. See [`cluster_allreduce`] for what a rank is.
///
/// - `x`: `[clusters, ranks, width]`, any strides; f32, i32 or u32. 1 to 16 ranks, or as many as the
///   device's clusters have blocks.
/// - Returns `[clusters, ranks, ranks * width]` of the dtype of `x`, contiguous. Bits are copied as they
///   are.
/// - Gradient: the sum of those of all copies. None for integers, whose result is part of no graph.
///
/// # Errors
/// As [`cluster_allreduce`].
///
/// ```
/// use candle_core::{Device, Tensor};
/// let x = Tensor::new(&[[[1u32, 2], [3, 4]]], &Device::Cpu)?;
/// let y = candle_rowwise::ops::cluster_allgather(&x)?;
/// assert_eq!(y.to_vec3::<u32>()?, [[[1, 2, 3, 4], [1, 2, 3, 4]]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn cluster_allgather(x: &Tensor) -> Result<Tensor> {
    apply(ExchangeOp::Gather, x, Trial::NONE)
}

/// For tests of the kernels: [`cluster_allreduce`], or [`cluster_allgather`] without a combine, with
/// several exchanges in one launch and blocks that come late.
#[doc(hidden)]
pub fn cluster_trial(x: &Tensor, combine: Option<ClusterCombine>, trial: Trial) -> Result<Tensor> {
    let op = combine.map_or(ExchangeOp::Gather, ExchangeOp::Reduce);
    apply(op, &x.detach(), trial)
}

fn apply(op: ExchangeOp, x: &Tensor, trial: Trial) -> Result<Tensor> {
    let this = RunExchange { op, trial };
    if is_float(x.dtype()) && trial == Trial::NONE {
        x.apply_op1(this)
    } else {
        x.apply_op1_no_bwd(&this)
    }
}

/// An exchange as candle runs and differentiates it.
struct RunExchange {
    op: ExchangeOp,
    trial: Trial,
}

impl CustomOp1 for RunExchange {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        if self.trial != Trial::NONE {
            candle_core::bail!("{}: trials are of kernels", self.op.name())
        }
        let exchange = Exchange::new(self.op, layout, x.dtype(), MAX_CLUSTER_BLOCKS)?;
        let y = crate::cpu::cluster::run(&exchange, x)?;
        Ok((y, exchange.output_shape()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        use candle_core::backend::{BackendDevice, BackendStorage};
        let limits = crate::cuda::limits(x.device())?.in_force();
        let exchange = Exchange::new(self.op, layout, x.dtype(), limits.max_cluster)?;
        let shape = exchange.output_shape();
        let y = if exchange.is_empty() {
            x.device().zeros_impl(&shape, exchange.dtype)?
        } else {
            crate::cuda::cluster::run(&exchange, &self.trial, &limits, x)?
        };
        Ok((y, shape))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        crate::custom_op::without_cuda(self.op.name())
    }

    fn bwd(&self, x: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        // Of what all copies are copies of.
        let grad = sum_keepdim(grad, 1)?;
        let combine = match self.op {
            ExchangeOp::Gather => return grad.reshape(x.shape()).map(Some),
            ExchangeOp::Reduce(ClusterCombine::Add) => Op::Sum,
            ExchangeOp::Reduce(ClusterCombine::Max) => Op::Max,
            ExchangeOp::Reduce(ClusterCombine::Min) => Op::Min,
        };
        // As of a reduction over the ranks.
        let last = |t: &Tensor| t.transpose(1, 2);
        let res = res.narrow(1, 0, 1)?;
        let grads = gradient(combine, &last(x)?, &[], &last(&res)?, &last(&grad)?)?;
        let dx = grads.into_iter().next().flatten();
        dx.map(|dx| last(&dx)).transpose()
    }
}
