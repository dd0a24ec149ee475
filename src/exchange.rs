//! What is exchanged within clusters, checked: the op, the dtype, and where the vectors lie.

use candle_core::{DType, Layout, Shape};

use crate::error::{Error, Result};
use crate::tuning::MAX_CLUSTER_BLOCKS;

/// How [`cluster_allreduce`](crate::ops::cluster_allreduce) combines two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClusterCombine {
    /// Their sum; integers wrap around.
    Add,
    /// The larger one; NaN if either is one, and +0.0 is larger than -0.0.
    Max,
    /// The smaller one; NaN if either is one, and -0.0 is smaller than +0.0.
    Min,
}

impl ClusterCombine {
    /// Every combine.
    pub const ALL: [ClusterCombine; 3] = [Self::Add, Self::Max, Self::Min];
}

/// What the ranks of a cluster do with each other's vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExchangeOp {
    /// Combine them in the order of the ranks; each rank gets a copy.
    Reduce(ClusterCombine),
    /// Put them one after the other in the order of the ranks; each rank gets a copy.
    Gather,
}

impl ExchangeOp {
    /// The name that errors and candle's graph show.
    pub const fn name(self) -> &'static str {
        match self {
            ExchangeOp::Reduce(_) => "cluster-allreduce",
            ExchangeOp::Gather => "cluster-allgather",
        }
    }
}

/// An exchange on a tensor of shape `[clusters, ranks, width]`, with everything checked.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    pub op: ExchangeOp,
    pub dtype: DType,
    pub clusters: usize,
    pub ranks: usize,
    pub width: usize,
    /// Elements before the first one of the input.
    pub offset: usize,
    /// Elements from one cluster, rank and value of the input to the next.
    pub strides: [usize; 3],
    /// Elements of the result.
    pub output_len: usize,
}

impl Exchange {
    /// Checks an exchange for a device with clusters of up to `max_cluster` blocks.
    pub fn new(op: ExchangeOp, input: &Layout, dtype: DType, max_cluster: usize) -> Result<Self> {
        let shape = input.shape();
        let (&[clusters, ranks, width], &[s0, s1, s2]) = (input.dims(), input.stride()) else {
            return Err(Error::NotClusters {
                op: op.name(),
                shape: shape.clone(),
            });
        };
        if !matches!(dtype, DType::F32 | DType::I32 | DType::U32) {
            return Err(Error::UnsupportedDType {
                op: op.name(),
                dtype,
                shape: shape.clone(),
                supported: "f32, i32, u32",
            });
        }
        let limit = max_cluster.min(MAX_CLUSTER_BLOCKS);
        if !(1..=limit).contains(&ranks) {
            return Err(Error::ClusterSize {
                op: op.name(),
                size: ranks,
                limit,
                shape: shape.clone(),
            });
        }
        let mut exchange = Exchange {
            op,
            dtype,
            clusters,
            ranks,
            width,
            offset: input.start_offset(),
            strides: [s0, s1, s2],
            output_len: 0,
        };
        let dims = exchange.output_dims();
        // A broadcast input may have far more elements than memory.
        let bytes = dims.iter().try_fold(dtype.size_in_bytes(), |product, dim| {
            product.checked_mul(*dim)
        });
        match bytes {
            Some(bytes) if bytes <= isize::MAX as usize => {
                exchange.output_len = bytes / dtype.size_in_bytes();
                Ok(exchange)
            }
            _ => Err(Error::ResultTooLarge {
                op: op.name(),
                shape: shape.clone(),
            }),
        }
    }

    fn output_dims(&self) -> [usize; 3] {
        [self.clusters, self.ranks, self.rank_len()]
    }

    /// The shape of the result.
    pub fn output_shape(&self) -> Shape {
        Shape::from(self.output_dims().to_vec())
    }

    /// Elements that each rank gets.
    pub fn rank_len(&self) -> usize {
        match self.op {
            ExchangeOp::Reduce(_) => self.width,
            // Sixteen ranks of more elements than that have no result (see `new`).
            ExchangeOp::Gather => self.width.saturating_mul(self.ranks),
        }
    }

    /// True where there is nothing to exchange.
    pub fn is_empty(&self) -> bool {
        self.output_len == 0
    }

    /// Where a value of the input is in its storage.
    pub fn position(&self, cluster: usize, rank: usize, i: usize) -> usize {
        let [s0, s1, s2] = self.strides;
        self.offset + cluster * s0 + rank * s1 + i * s2
    }
}

/// What the tests of the kernels vary: several exchanges in one launch, and blocks that come late. See
/// `rw_cluster_params` in `cuda/abi.h`.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trial {
    /// Exchanges of the same vectors, varied by their number; at least one.
    pub repeats: u32,
    /// One slot with a tail sync, in place of two in turn.
    pub single_slot: bool,
    /// A rank that waits before it begins.
    pub late_rank: Option<usize>,
    /// A rank that waits before it leaves.
    pub lingering_rank: Option<usize>,
    /// How long those wait.
    pub spin_cycles: u32,
}

impl Trial {
    /// A plain exchange.
    pub const NONE: Trial = Trial {
        repeats: 1,
        single_slot: false,
        late_rank: None,
        lingering_rank: None,
        spin_cycles: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_smaller_clusters_says_which_it_has() {
        let input = Layout::contiguous((3, 8, 5));
        let of = |max_cluster| Exchange::new(ExchangeOp::Gather, &input, DType::F32, max_cluster);
        assert_eq!(of(8).unwrap().output_len, 3 * 8 * 40);
        assert!(of(64).is_ok());
        for limit in [1, 4, 7] {
            match of(limit) {
                Err(Error::ClusterSize {
                    size: 8, limit: l, ..
                }) => assert_eq!(l, limit),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn results_that_no_memory_holds_are_errors() {
        let input = Layout::new(Shape::from((1 << 50, 16, 1 << 10)), vec![0, 0, 0], 0);
        for op in [ExchangeOp::Gather, ExchangeOp::Reduce(ClusterCombine::Add)] {
            let refused = Exchange::new(op, &input, DType::I32, 16);
            assert!(matches!(refused, Err(Error::ResultTooLarge { .. })));
        }
    }
}
