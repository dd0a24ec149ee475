//! Exchanges within clusters, as the kernels do them: the ranks in their order, one NaN for all.

use candle_core::{CpuStorage, Result, WithDType};

use super::Canonical;
use crate::engine::parallel::{for_each, Chunks};
use crate::exchange::{ClusterCombine, Exchange, ExchangeOp};

/// A value of 32 bits and the ways to combine two of them.
trait Word: WithDType + Canonical + Default {
    fn plus(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
}

impl Word for f32 {
    fn plus(self, other: Self) -> Self {
        self + other
    }

    // Of two zeros, the one that the GPU's instruction takes.
    fn larger(self, other: Self) -> Self {
        if self == other {
            f32::from_bits(self.to_bits() & other.to_bits())
        } else if other > self || other.is_nan() {
            other
        } else {
            self
        }
    }

    fn smaller(self, other: Self) -> Self {
        -(-self).larger(-other)
    }
}

macro_rules! integer_words {
    ($($t:ty),+) => {$(
        impl Word for $t {
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn larger(self, other: Self) -> Self {
                Ord::max(self, other)
            }
            fn smaller(self, other: Self) -> Self {
                Ord::min(self, other)
            }
        }
    )+};
}

integer_words!(i32, u32);

/// Runs an exchange on `x`.
///
/// # Errors
/// Where the storage is not of the exchange's dtype or ends before its last element, and where there is
/// no memory for the result.
pub(crate) fn run(exchange: &Exchange, x: &CpuStorage) -> Result<CpuStorage> {
    match x {
        CpuStorage::F32(x) => run_words(exchange, x),
        CpuStorage::I32(x) => run_words(exchange, x),
        CpuStorage::U32(x) => run_words(exchange, x),
        _ => candle_core::bail!(
            "{}: the storage does not hold {:?}",
            exchange.op.name(),
            exchange.dtype
        ),
    }
}

fn run_words<T: Word>(exchange: &Exchange, x: &[T]) -> Result<CpuStorage> {
    let mut y = Vec::new();
    if exchange.is_empty() {
        return Ok(T::to_cpu_storage_owned(y));
    }
    check_extent(exchange, x.len())?;
    if let Err(err) = y.try_reserve_exact(exchange.output_len) {
        candle_core::bail!(
            "{}: no memory for the result of shape {:?}: {err}",
            exchange.op.name(),
            exchange.output_shape()
        );
    }
    y.resize(exchange.output_len, T::default());
    let clusters = Chunks::new(&mut y, exchange.output_len / exchange.clusters);
    for_each(clusters.count(), &|cluster| {
        // SAFETY: `for_each` calls with each number once.
        let ranks = unsafe { clusters.take(cluster) };
        let (first, copies) = ranks.split_at_mut(exchange.rank_len());
        match exchange.op {
            ExchangeOp::Reduce(ClusterCombine::Add) => reduce(exchange, x, cluster, first, T::plus),
            ExchangeOp::Reduce(ClusterCombine::Max) => {
                reduce(exchange, x, cluster, first, T::larger)
            }
            ExchangeOp::Reduce(ClusterCombine::Min) => {
                reduce(exchange, x, cluster, first, T::smaller)
            }
            ExchangeOp::Gather => gather(exchange, x, cluster, first),
        }
        for copy in copies.chunks_exact_mut(first.len()) {
            copy.copy_from_slice(first);
        }
    });
    Ok(T::to_cpu_storage_owned(y))
}

fn reduce<T: Word>(
    exchange: &Exchange,
    x: &[T],
    cluster: usize,
    y: &mut [T],
    combine: impl Fn(T, T) -> T,
) {
    gather(exchange, x, cluster, &mut *y);
    for rank in 1..exchange.ranks {
        for (i, y) in y.iter_mut().enumerate() {
            *y = combine(*y, x[exchange.position(cluster, rank, i)]);
        }
    }
    for y in y {
        *y = y.canonical();
    }
}

/// As many vectors of a cluster as `y` has room for.
fn gather<T: Word>(exchange: &Exchange, x: &[T], cluster: usize, y: &mut [T]) {
    for (rank, y) in y.chunks_exact_mut(exchange.width).enumerate() {
        for (i, y) in y.iter_mut().enumerate() {
            *y = x[exchange.position(cluster, rank, i)];
        }
    }
}

/// The last value must lie in a storage of `len` elements.
fn check_extent(exchange: &Exchange, len: usize) -> Result<()> {
    let dims = [exchange.clusters, exchange.ranks, exchange.width];
    let last = dims
        .iter()
        .zip(exchange.strides)
        .try_fold(exchange.offset, |at, (dim, stride)| {
            at.checked_add(dim.checked_sub(1)?.checked_mul(stride)?)
        });
    match last {
        Some(last) if last < len => Ok(()),
        _ => candle_core::bail!(
            "{}: the vectors reach outside of a storage of {len} elements",
            exchange.op.name()
        ),
    }
}
