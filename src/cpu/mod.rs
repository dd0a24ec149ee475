//! The ops on the CPU: bodies on the [`engine`](crate::engine), one family per file.
//!
//! The `COST` of each body is its time beside that of a sum, for (512, 1000) f32 on one thread: sum
//! 34 us, max 49, argmax 153, rms norm 183, layer norm 271, logsumexp 253, softmax 456 (with the
//! first touch of their results, where these are rows; 2026-11-29, 2-core x86-64 VM).

mod beside;
pub(crate) mod cluster;
mod extrema;
mod loss;
mod moments;
mod norm;
mod norm_gradient;
mod reduce;
mod soft_cap;
mod softmax;
mod squares;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use candle_core::{CpuStorage, Error, Result, WithDType};

use crate::engine::isa::{with_best_isa, Isa};
use crate::engine::{self, Context, Element, Float, Output, ReduceOp, Row, RowBody, Starts, Tile};
use crate::problem::{check_dtype, Op, OperandKind, Problem, RowResult, Rows};
use extrema::{Largest, LargestMagnitude, Smallest};

/// A dtype: what candle stores, the engine folds and emits.
trait Stored: WithDType + Element<Acc: Canonical> + Output<Self::Acc> {
    /// What sums and products of it are: `i64` of an integer.
    type Total: WithDType + Output<Self::Acc>;
}

/// A float dtype.
trait Dtype: Stored<Acc = Self::Accumulator, Total = Self> + Element<Acc = Self::Accumulator> {
    /// `f32` for the types up to 32 bits, else `f64`.
    type Accumulator: norm::Range
        + Canonical
        + Element<Acc = Self::Accumulator>
        + Output<Self::Accumulator>;
}

macro_rules! dtypes {
    (floats: $($float:ty: $acc:ty),+; integers: $($integer:ty),+) => {
        $(
            impl Stored for $float {
                type Total = $float;
            }

            impl Dtype for $float {
                type Accumulator = $acc;
            }
        )+
        $(
            impl Stored for $integer {
                type Total = i64;
            }
        )+
    };
}

dtypes!(
    floats: half::f16: f32, half::bf16: f32, f32: f32, f64: f64;
    integers: u8, u32, i16, i32, i64
);

/// A number as the result that it is.
trait Canonical: Copy {
    /// The number itself; a NaN with the same bits whatever NaN made it.
    fn canonical(self) -> Self;
}

macro_rules! canonical {
    ($($t:ty: $value:ident => $canonical:expr;)+) => {$(
        impl Canonical for $t {
            #[inline(always)]
            fn canonical(self) -> Self {
                let $value = self;
                $canonical
            }
        }
    )+};
}

canonical!(
    f32: v => if v.is_nan() { f32::NAN } else { v };
    f64: v => if v.is_nan() { f64::NAN } else { v };
    i32: v => v;
    u32: v => v;
    i64: v => v;
);

/// A body without options for elements `T`.
macro_rules! plain_body {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        pub(super) struct $name<T>(std::marker::PhantomData<fn(T)>);

        impl<T> $name<T> {
            pub(super) fn new() -> Self {
                $name(std::marker::PhantomData)
            }
        }
    };
}
use plain_body;

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

/// Runs a problem that is not empty on `x`, with its operands in the order of [`Op::operands`].
///
/// # Errors
/// Where a storage is not of the problem's dtype or ends before the problem's last element, and
/// where there is no memory for the result.
pub(crate) fn run(
    problem: &Problem,
    x: &CpuStorage,
    operands: &[Option<&CpuStorage>],
) -> Result<Vec<CpuStorage>> {
    with_best_isa!(run_on, problem, x, operands)
}

/// [`run`] with one instruction set.
fn run_on<I: Isa>(
    isa: I,
    problem: &Problem,
    x: &CpuStorage,
    operands: &[Option<&CpuStorage>],
) -> Result<Vec<CpuStorage>> {
    if matches!(
        problem.op,
        Op::CrossEntropy(_)
            | Op::CrossEntropyWithGradient(_)
            | Op::CrossEntropyGradient(_)
            | Op::TargetWeights { .. }
    ) {
        return match x {
            CpuStorage::F16(x) => loss::run(isa, problem, x, operands),
            CpuStorage::BF16(x) => loss::run(isa, problem, x, operands),
            CpuStorage::F32(x) => loss::run(isa, problem, x, operands),
            CpuStorage::F64(x) => loss::run(isa, problem, x, operands),
            _ => Err(unsupported(problem)),
        };
    }
    match x {
        _ if problem.op.takes_integers() => Ok(vec![run_any_dtype(isa, problem, x)?]),
        CpuStorage::F16(x) => run_float(isa, problem, x, operands),
        CpuStorage::BF16(x) => run_float(isa, problem, x, operands),
        CpuStorage::F32(x) => run_float(isa, problem, x, operands),
        CpuStorage::F64(x) => run_float(isa, problem, x, operands),
        _ => Err(unsupported(problem)),
    }
}

/// [`run`] of an op without operands and with one result, without a list of these.
pub(crate) fn run_alone(problem: &Problem, x: &CpuStorage) -> Result<CpuStorage> {
    if problem.op.takes_integers() {
        return with_best_isa!(run_any_dtype, problem, x);
    }
    match run(problem, x, &[])?.pop() {
        Some(result) => Ok(result),
        None => Err(unsupported(problem)),
    }
}

/// The ops that take all dtypes.
fn run_any_dtype<I: Isa>(isa: I, problem: &Problem, x: &CpuStorage) -> Result<CpuStorage> {
    match x {
        CpuStorage::F16(x) => run_any(isa, problem, x),
        CpuStorage::BF16(x) => run_any(isa, problem, x),
        CpuStorage::F32(x) => run_any(isa, problem, x),
        CpuStorage::F64(x) => run_any(isa, problem, x),
        CpuStorage::U8(x) => run_any(isa, problem, x),
        CpuStorage::U32(x) => run_any(isa, problem, x),
        CpuStorage::I16(x) => run_any(isa, problem, x),
        CpuStorage::I32(x) => run_any(isa, problem, x),
        CpuStorage::I64(x) => run_any(isa, problem, x),
        _ => Err(unsupported(problem)),
    }
}

fn unsupported(problem: &Problem) -> Error {
    match check_dtype(problem.op, problem.dtype, &problem.shape) {
        Err(err) => err.into(),
        Ok(()) => Error::Msg(format!("{}: no kernel", problem.op.name())).bt(),
    }
}

/// The ops that take integers as well as floats.
fn run_any<I: Isa, T: Stored>(isa: I, problem: &Problem, x: &[T]) -> Result<CpuStorage> {
    let launch = Launch::new(isa, problem, x)?;
    match problem.op {
        Op::Sum => launch.fold::<reduce::Sum>(),
        Op::Prod => launch.fold::<reduce::Prod>(),
        Op::Max => launch.fold::<reduce::Extreme<Largest>>(),
        Op::Min => launch.fold::<reduce::Extreme<Smallest>>(),
        Op::MinMax => launch.fold::<reduce::BothEnds>(),
        Op::ArgMax => launch.run(&extrema::Arg::<T, Largest>::new()),
        Op::ArgMin => launch.run(&extrema::Arg::<T, Smallest>::new()),
        Op::Any => launch.fold::<reduce::Any>(),
        Op::All => launch.fold::<reduce::All>(),
        _ => Err(unsupported(problem)),
    }
}

/// The other ops.
fn run_float<I: Isa, T: Dtype<Accumulator: WithDType>>(
    isa: I,
    problem: &Problem,
    x: &[T],
    operands: &[Option<&CpuStorage>],
) -> Result<Vec<CpuStorage>> {
    let launch = Launch::new(isa, problem, x)?;
    let one = match problem.op {
        Op::AddRmsNorm { eps } => {
            return norm::add_norm(&launch, Op::RmsNorm { eps }, operands);
        }
        Op::AddLayerNorm { eps } => {
            return norm::add_norm(&launch, Op::LayerNorm { eps }, operands);
        }
        Op::RmsNormGradient { eps, sums } => {
            return norm_gradient::run::<_, _, false>(
                &launch,
                norm::Divisor::Root { eps },
                sums,
                operands,
            );
        }
        Op::LayerNormGradient { eps, sums } => {
            return norm_gradient::run::<_, _, true>(
                &launch,
                norm::Divisor::Root { eps },
                sums,
                operands,
            );
        }
        Op::Mean => launch.run(&moments::Mean::new()),
        Op::AbsMax => launch.fold::<reduce::Extreme<LargestMagnitude>>(),
        Op::NormL1 => launch.fold::<reduce::NormL1>(),
        Op::NormL2 => launch.run(&squares::NormL2::new()),
        Op::MeanOfSquares => launch.run(&squares::MeanOfSquares::new()),
        Op::Var { correction } => launch.run(&moments::Spread::variance(correction)),
        Op::Std { correction } => launch.run(&moments::Spread::deviation(correction)),
        Op::LogSumExp => launch.run(&softmax::LogSumExp::new()),
        Op::Softmax => launch.run(&softmax::Softmax::new()),
        Op::LogSoftmax => launch.run(&softmax::LogSoftmax::new()),
        Op::SoftmaxWith { log, logits } => launch.run(&softmax::With {
            rules: softmax::Rules::new(problem, operands, 0, logits)?,
            log,
        }),
        Op::SoftmaxWithGradient {
            log,
            logits,
            of_logits,
        } => return softmax::gradient_with(&launch, operands, log, logits, of_logits),
        Op::SoftmaxGradient { log } => launch.run(&softmax::Gradient {
            gradient: OperandRows::required(problem, operands, 0)?,
            log,
        }),
        Op::L2NormalizeGradient { eps } => {
            return norm_gradient::run::<_, _, false>(
                &launch,
                norm::Divisor::Length { eps },
                false,
                operands,
            );
        }
        Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::L2Normalize { .. } => {
            let sides = [
                side::<T>(problem, operands, 0)?,
                side::<T>(problem, operands, 1)?,
            ];
            norm::norm(&launch, &sides)
        }
        _ => Err(unsupported(problem)),
    };
    Ok(vec![one?])
}

/// The last element of the last row must lie in the storage.
fn check_extent(problem: &Problem, len: usize) -> Result<()> {
    if problem.rows == 0 || reaches(&problem.input, problem.rows, problem.width, len) {
        return Ok(());
    }
    candle_core::bail!(
        "{}: the rows of shape {:?} reach outside of a storage of {len} elements",
        problem.op.name(),
        problem.shape
    )
}

/// True where the view is of `rows` rows of `width` elements that all lie in a storage of `len`.
fn reaches(view: &Rows, rows: usize, width: usize, len: usize) -> bool {
    let last = view
        .sizes
        .iter()
        .zip(view.strides)
        .try_fold(view.offset, |at, (size, stride)| {
            at.checked_add(size.checked_sub(1)?.checked_mul(stride)?)
        });
    let end = last.and_then(|last| last.checked_add(width));
    end.is_some_and(|end| end <= len) && view.count() == rows
}

/// An operand that has a value, a vector or a row for every row.
struct OperandRows<'a, T> {
    elements: &'a [T],
    rows: Rows,
    /// Elements that a row has in memory: 1 where it repeats one value.
    stored: usize,
}

impl<'a, T: WithDType> OperandRows<'a, T> {
    /// Operand `index` of a problem; `None` where it was left out.
    fn of(
        problem: &Problem,
        operands: &[Option<&'a CpuStorage>],
        index: usize,
    ) -> Result<Option<Self>> {
        let view = problem.operands.get(index).copied().flatten();
        let (Some(view), Some(Some(storage))) = (view, operands.get(index)) else {
            return Ok(None);
        };
        let elements = storage.as_slice::<T>()?;
        let operand = &problem.op.operands()[index];
        let stored = match operand.kind {
            OperandKind::Values => 1,
            OperandKind::Rows if view.rows.axis_stride == 0 => 1,
            OperandKind::Rows => problem.width,
            OperandKind::Vector => problem.op.vector_len(problem.width),
        };
        if !reaches(&view.rows, problem.rows, stored, elements.len()) {
            candle_core::bail!(
                "{}: {} reaches outside of its storage of {} elements (input of shape {:?})",
                problem.op.name(),
                operand.name,
                elements.len(),
                problem.shape
            );
        }
        Ok(Some(OperandRows {
            elements,
            rows: view.rows,
            stored,
        }))
    }

    /// The same of one that must be there.
    fn required(
        problem: &Problem,
        operands: &[Option<&'a CpuStorage>],
        index: usize,
    ) -> Result<Self> {
        match Self::of(problem, operands, index)? {
            Some(operand) => Ok(operand),
            None => candle_core::bail!(
                "{}: operand {index} is missing (input of shape {:?})",
                problem.op.name(),
                problem.shape
            ),
        }
    }
}

impl<'a, T> OperandRows<'a, T> {
    /// What row `index` reads: a row, or the one value that stands for all of it.
    #[inline(always)]
    fn row(&self, index: usize) -> &'a [T] {
        let start = self.rows.start(index);
        self.elements.get(start..start + self.stored).unwrap_or(&[])
    }
}

/// An operand that all rows share, if it is there: a vector as long as the row, in what is computed in.
fn side<'a, T: Dtype<Accumulator: WithDType>>(
    problem: &Problem,
    operands: &[Option<&'a CpuStorage>],
    index: usize,
) -> Result<Option<Cow<'a, [T::Accumulator]>>> {
    let Some(view) = problem.operands.get(index).copied().flatten() else {
        return Ok(None);
    };
    if view.dtype == T::Accumulator::DTYPE {
        let side = OperandRows::<T::Accumulator>::required(problem, operands, index)?;
        return Ok(Some(Cow::Borrowed(side.row(0))));
    }
    let side = OperandRows::<T>::required(problem, operands, index)?;
    let wide = |v: &T| <T::Accumulator as Float>::from_f64(v.to_f64());
    Ok(Some(side.row(0).iter().map(wide).collect()))
}

/// A checked problem with its input.
struct Launch<'a, I, T> {
    isa: I,
    problem: &'a Problem,
    x: &'a [T],
}

impl<'a, I: Isa, T: Stored> Launch<'a, I, T> {
    fn new(isa: I, problem: &'a Problem, x: &'a [T]) -> Result<Self> {
        check_extent(problem, x.len())?;
        Ok(Launch { isa, problem, x })
    }

    fn fold<F: reduce::Fold<T>>(&self) -> Result<CpuStorage> {
        self.run(&reduce::Folded::<T, F>::new())
    }

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
            Ok(output) if self.problem.op.result() == RowResult::Pair => {
                Ok(B::Output::to_cpu_storage_owned(planes(&output)))
            }
            Ok(output) => Ok(B::Output::to_cpu_storage_owned(output)),
            Err(err) => candle_core::bail!(
                "{}: no memory for the result of shape {:?}: {err}",
                self.problem.op.name(),
                self.problem.output_shape()
            ),
        }
    }
}

/// Two results per row as two planes: the first ones of all rows, then the second ones.
fn planes<U: Copy>(pairs: &[U]) -> Vec<U> {
    let plane = |i| pairs.iter().skip(i).step_by(2);
    plane(0).chain(plane(1)).copied().collect()
}
