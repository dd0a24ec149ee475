//! The ops on the CPU: bodies on the [`engine`](crate::engine), one family per file.
//!
//! The `COST` of each body is its time beside that of a sum, for (512, 1000) f32 on one thread: sum
//! 34 us, max 49, argmax 153, rms norm 183, layer norm 271, logsumexp 253, softmax 456 (with the
//! first touch of their results, where these are rows; 2026-11-29, 2-core x86-64 VM).

mod norm;
mod reduce;
mod softmax;
#[cfg(test)]
mod tests;

use candle_core::{CpuStorage, Error, Result, WithDType};

use crate::engine::isa::{with_best_isa, Isa};
use crate::engine::{self, Context, Element, Float, Output, ReduceOp, Row, RowBody, Starts, Tile};
use crate::problem::{Op, Problem, RowResult};

/// A float dtype: what candle stores, the engine folds and emits.
trait Dtype: WithDType + Element<Acc = Self::Accumulator> + Output<Self::Accumulator> {
    /// `f32` for the types up to 32 bits, else `f64`.
    type Accumulator: norm::Range + Float + Element<Acc = Self::Accumulator>;
}

impl Dtype for half::f16 {
    type Accumulator = f32;
}
impl Dtype for half::bf16 {
    type Accumulator = f32;
}
impl Dtype for f32 {
    type Accumulator = f32;
}
impl Dtype for f64 {
    type Accumulator = f64;
}

/// A walk and the join of what it leaves: the state of what `map` makes of the row's tiles.
#[inline(always)]
fn fold<T, U, C, M>(
    row: &mut Row<'_, T, U>,
    ctx: C,
    state: M,
    map: impl Fn(&Tile<T::Acc>) -> Tile<M::Value> + Sync,
) -> M::Single
where
    T: Element,
    U: Copy + Default + Send,
    C: Context,
    M: ReduceOp,
{
    let partials = engine::reduce_into(
        row,
        ctx,
        state,
        #[inline(always)]
        |state: &mut M, x| state.accumulate(&map(x)),
    );
    engine::pjoin(partials, ctx)
}

/// Runs a problem on `x`, with its side inputs in the order of [`Op::sides`].
///
/// # Errors
/// Where a storage is not of the problem's dtype or ends before the problem's last element, and
/// where there is no memory for the result.
pub(crate) fn run(problem: &Problem, x: &CpuStorage, sides: &[&CpuStorage]) -> Result<CpuStorage> {
    with_best_isa!(run_on, problem, x, sides)
}

/// [`run`] with one instruction set.
fn run_on<I: Isa>(
    isa: I,
    problem: &Problem,
    x: &CpuStorage,
    sides: &[&CpuStorage],
) -> Result<CpuStorage> {
    match x {
        CpuStorage::F16(x) => run_t(isa, problem, x, sides),
        CpuStorage::BF16(x) => run_t(isa, problem, x, sides),
        CpuStorage::F32(x) => run_t(isa, problem, x, sides),
        CpuStorage::F64(x) => run_t(isa, problem, x, sides),
        _ => Err(unsupported(problem)),
    }
}

fn unsupported(problem: &Problem) -> Error {
    crate::Error::UnsupportedDType {
        op: problem.op.name(),
        dtype: problem.dtype,
        shape: problem.shape.clone(),
        supported: "f16, bf16, f32, f64",
    }
    .into()
}

fn run_t<I: Isa, T: Dtype>(
    isa: I,
    problem: &Problem,
    x: &[T],
    sides: &[&CpuStorage],
) -> Result<CpuStorage> {
    if problem.width == 0 {
        return empty_axis::<T>(problem);
    }
    check_extent(problem, x.len())?;
    let side = |i| side::<T>(problem, sides, i);
    let launch = Launch { isa, problem, x };
    match problem.op {
        Op::Sum => launch.run(&reduce::Sum::new()),
        Op::Max => launch.run(&reduce::Max::new()),
        Op::ArgMax => launch.run(&reduce::ArgMax::new()),
        Op::LogSumExp => launch.run(&softmax::LogSumExp::new()),
        Op::Softmax => launch.run(&softmax::Softmax::new()),
        Op::LogSoftmax => launch.run(&softmax::LogSoftmax::new()),
        Op::RmsNorm { eps } => launch.run(&norm::RmsNorm {
            weight: side(0)?,
            eps,
        }),
        Op::LayerNorm { eps } => launch.run(&norm::LayerNorm {
            weight: side(0)?,
            bias: side(1)?,
            eps,
        }),
    }
}

/// Reductions over an axis without elements, and row ops that emit nothing.
fn empty_axis<T: Dtype>(problem: &Problem) -> Result<CpuStorage> {
    let len = problem.output_len();
    Ok(match (problem.op.result(), problem.op.empty_value()) {
        (RowResult::Scalar, Some(value)) => T::to_cpu_storage_owned(vec![T::from_f64(value); len]),
        (RowResult::Scalar, None) => {
            return Err(crate::Error::EmptyAxis {
                op: problem.op.name(),
                dim: problem.shape.rank().saturating_sub(1),
                shape: problem.shape.clone(),
            }
            .into())
        }
        (RowResult::Row, _) => T::to_cpu_storage_owned(Vec::new()),
    })
}

/// The last element of the last row must lie in the storage.
fn check_extent(problem: &Problem, len: usize) -> Result<()> {
    if problem.rows == 0 {
        return Ok(());
    }
    let view = &problem.input;
    let last = view
        .sizes
        .iter()
        .zip(view.strides)
        .try_fold(view.offset, |at, (size, stride)| {
            at.checked_add(size.checked_sub(1)?.checked_mul(stride)?)
        });
    match last.and_then(|last| last.checked_add(problem.width)) {
        Some(end) if end <= len && view.count() == problem.rows => Ok(()),
        _ => candle_core::bail!(
            "{}: the rows of shape {:?} reach outside of a storage of {len} elements",
            problem.op.name(),
            problem.shape
        ),
    }
}

/// A side input: a vector as long as the row.
fn side<'a, T: Dtype>(
    problem: &Problem,
    sides: &[&'a CpuStorage],
    index: usize,
) -> Result<&'a [T]> {
    let storage = match sides.get(index) {
        Some(storage) => storage.as_slice::<T>()?,
        None => &[],
    };
    let start = problem.sides.get(index).copied().unwrap_or(0);
    let vector = start
        .checked_add(problem.width)
        .and_then(|end| storage.get(start..end));
    match vector {
        Some(vector) => Ok(vector),
        None => candle_core::bail!(
            "{}: {} of {} elements at {start} reaches outside of its storage of {} (input of shape {:?})",
            problem.op.name(),
            problem.op.sides().get(index).unwrap_or(&"a side input"),
            problem.width,
            storage.len(),
            problem.shape
        ),
    }
}

/// A checked problem with its input.
struct Launch<'a, I, T> {
    isa: I,
    problem: &'a Problem,
    x: &'a [T],
}

impl<I: Isa, T: Dtype> Launch<'_, I, T> {
    fn run<B>(&self, body: &B) -> Result<CpuStorage>
    where
        B: RowBody<Element = T>,
        B::Output: WithDType,
    {
        let view = self.problem.input;
        let start = |row| view.start(row);
        let input = engine::Input {
            elements: self.x,
            rows: self.problem.rows,
            width: self.problem.width,
            starts: if view.is_single_stride() {
                Starts::Stride {
                    offset: view.offset,
                    stride: view.strides[view.strides.len() - 1],
                }
            } else {
                Starts::At(&start)
            },
        };
        match engine::launch_vec(self.isa, body, &input) {
            Ok(output) => Ok(B::Output::to_cpu_storage_owned(output)),
            Err(err) => candle_core::bail!(
                "{}: no memory for the result of shape {:?}: {err}",
                self.problem.op.name(),
                self.problem.output_shape()
            ),
        }
    }
}
