//! The driver: runs a body over rows, on one worker or many.

use std::collections::TryReserveError;
use std::mem::MaybeUninit;

use super::context::{Context, Cpu, Workers};
use super::element::Element;
use super::isa::{with_best_isa, Isa, Kernel};
use super::pages;
use super::parallel::{self, Chunks};
use super::row::Row;
use super::scratch::Scratch;
use super::walk::{segment_len, SHORT};

/// Cost, in elements of a sum, below which one thread does all. Handing work over and waiting for it
/// takes 5 to 10 microseconds, and longer on a busy machine: the sum of (8, 4096) f32 takes 2.1 us on
/// one thread and 6.6 on two, of (64, 4096) 15 and 37, of (128, 4096), which is this, 41 and 52; a
/// softmax of (64, 4096) takes 222 and 128 (2026-11-29, 2-core x86-64 VM, both cores shared with
/// other work, which only two threads wait for).
const PARALLEL_MIN: usize = 1 << 19;

/// Cost per task, in elements of a sum: some 4 microseconds, enough to outweigh a hand-over within
/// the pool, few enough to balance.
const TASK: usize = 1 << 16;

/// What is computed for one row: one function over all contexts, which never sees threads or cuts.
///
pub trait RowBody: Sync {
    /// Element type of the input.
    type Element: Element;
    /// Element type of the output.
    type Output: Copy + Default + Send + Sync + 'static;

    /// What an element costs, in elements of a sum (some 60 picoseconds): decides from what size on
    /// several threads pay.
    const COST: usize = 4;

    /// How many results a row of `width` elements has: `width` for a body that emits a row.
    fn output_width(&self, width: usize) -> usize;

    /// Computes one row. Mark it `#[inline(always)]`: it is compiled into the code of each
    /// instruction set.
    /// Results that it does not write are `Output::default()`.
    fn run<C: Context>(&self, row: &mut Row<'_, Self::Element, Self::Output>, ctx: C);
}

/// The input or the output of a launch does not have the length that its rows ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "launch: {argument} of {rows} rows of width {width} has {got} elements, expected {expected}"
)]
pub struct LaunchError {
    /// Which slice: "input" or "output".
    pub argument: &'static str,
    /// How many rows were asked for.
    pub rows: usize,
    /// Elements per input row.
    pub width: usize,
    /// The length that the slice has.
    pub got: usize,
    /// The length that it needs.
    pub expected: usize,
}

/// Runs `body` over `rows` contiguous rows of `width` elements of `input`, one worker per row, or
/// all workers of the current rayon pool on one row after the other where rows are few and long.
///
/// `output` receives [`RowBody::output_width`] results per row. The bits of a row's results depend
/// on the body, the row and its width alone: not on the number of threads or rows, nor on the
/// instruction set.
///
/// # Errors
/// A [`LaunchError`] where `input` or `output` has another length; nothing has run then.
pub fn launch<B: RowBody>(
    body: &B,
    rows: usize,
    width: usize,
    input: &[B::Element],
    output: &mut [B::Output],
) -> Result<(), LaunchError> {
    let check = |argument, got, per_row: usize| {
        let expected = rows.saturating_mul(per_row);
        if got == expected {
            return Ok(());
        }
        Err(LaunchError {
            argument,
            rows,
            width,
            got,
            expected,
        })
    };
    check("input", input.len(), width)?;
    check("output", output.len(), body.output_width(width))?;
    // SAFETY: `MaybeUninit<T>` has the layout of `T`, the slice stays borrowed as long as before,
    // and nothing but initialised values is ever written through it: `Row` writes values only.
    let output = unsafe {
        std::slice::from_raw_parts_mut(output.as_mut_ptr().cast::<MaybeUninit<_>>(), output.len())
    };
    let input = Input {
        elements: input,
        rows,
        width,
        starts: Starts::Stride {
            offset: 0,
            stride: width,
        },
    };
    with_best_isa!(launch_on, body, &input, output);
    Ok(())
}

/// The rows of an input.
pub(crate) struct Input<'a, T> {
    pub elements: &'a [T],
    pub rows: usize,
    pub width: usize,
    pub starts: Starts<'a>,
}

/// Where rows begin.
pub(crate) enum Starts<'a> {
    /// At a fixed distance from each other.
    Stride { offset: usize, stride: usize },
    /// Wherever the function says.
    At(&'a (dyn Fn(usize) -> usize + Sync)),
}

impl<T> Input<'_, T> {
    /// Where the first row begins, and how far it is from each row to the next, where that is a fixed
    /// distance and all rows lie in the input.
    fn strided(&self) -> Option<(usize, usize)> {
        let Starts::Stride { offset, stride } = self.starts else {
            return None;
        };
        let last = self.rows.checked_sub(1)?.checked_mul(stride)?;
        let end = last.checked_add(offset)?.checked_add(self.width)?;
        (end <= self.elements.len()).then_some((offset, stride))
    }

    /// A row; empty where it would lie outside of the input, which callers rule out.
    #[inline(always)]
    fn row(&self, row: usize) -> &[T] {
        let start = match self.starts {
            Starts::Stride { offset, stride } => offset + row * stride,
            Starts::At(start) => start(row),
        };
        self.elements.get(start..start + self.width).unwrap_or(&[])
    }
}

/// Runs `body` over all rows into a new vector of `input.rows` times [`RowBody::output_width`]
/// results.
pub(crate) fn launch_vec<I: Isa, B: RowBody>(
    isa: I,
    body: &B,
    input: &Input<'_, B::Element>,
) -> Result<Vec<B::Output>, TryReserveError> {
    let len = input.rows.saturating_mul(body.output_width(input.width));
    let mut output = Vec::new();
    let size = size_of::<B::Output>().max(1);
    output.try_reserve_exact(pages::room_for(len.saturating_mul(size)) / size)?;
    pages::advise(output.spare_capacity_mut());
    let room = &mut output.spare_capacity_mut()[..len];
    launch_on(isa, body, input, room);
    // SAFETY: the capacity is at least `len`, and `launch_on` has initialised the first `len`
    // elements.
    unsafe { output.set_len(len) };
    Ok(output)
}

/// Runs `body` over all rows and initialises all of `output`, which is `input.rows` times
/// [`RowBody::output_width`] long.
fn launch_on<I: Isa, B: RowBody>(
    isa: I,
    body: &B,
    input: &Input<'_, B::Element>,
    output: &mut [MaybeUninit<B::Output>],
) {
    let per_row = body.output_width(input.width);
    if per_row == 0 || input.rows == 0 {
        return;
    }
    let run = |workers, first, output: &mut [_]| {
        if input.width <= SHORT {
            let ctx = Cpu::<I, true> { isa, workers };
            isa.run(Rows::new(ctx, body, input, first, output));
        } else {
            let ctx = Cpu::<I, false> { isa, workers };
            isa.run(Rows::new(ctx, body, input, first, output));
        }
    };
    let row_cost = input.width.saturating_mul(B::COST);
    let is_small = row_cost.saturating_mul(input.rows) < PARALLEL_MIN;
    // Not asked where it does not matter: the answer takes longer than the sum of a short row.
    let threads = if is_small {
        1
    } else {
        rayon::current_num_threads()
    };
    let split_row = input.rows < 4 * threads && input.width >= 2 * segment_len(input.width);
    if threads == 1 {
        run(Workers::One, 0, output);
    } else if split_row {
        run(Workers::Pool, 0, output);
    } else {
        let rows_per_task = (TASK / row_cost.max(1)).max(1);
        let chunks = Chunks::new(output, rows_per_task.saturating_mul(per_row));
        parallel::for_each(chunks.count(), &|task| {
            // SAFETY: `for_each` calls with each number once.
            let output = unsafe { chunks.take(task) };
            run(Workers::One, task * rows_per_task, output);
        });
    }
}

/// A body over neighbouring rows, as work for an instruction set.
struct Rows<'a, C, B: RowBody> {
    ctx: C,
    body: &'a B,
    input: &'a Input<'a, B::Element>,
    first: usize,
    output: &'a mut [MaybeUninit<B::Output>],
}

impl<'a, C: Context, B: RowBody> Rows<'a, C, B> {
    fn new(
        ctx: C,
        body: &'a B,
        input: &'a Input<'a, B::Element>,
        first: usize,
        output: &'a mut [MaybeUninit<B::Output>],
    ) -> Self {
        Rows {
            ctx,
            body,
            input,
            first,
            output,
        }
    }
}

impl<C: Context, B: RowBody> Kernel for Rows<'_, C, B> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let mut scratch = Scratch::take();
        let per_row = self.body.output_width(self.input.width).max(1);
        let input = self.input;
        let strided = input.strided();
        let (offset, stride) = strided.unwrap_or_default();
        let mut start = offset.wrapping_add(self.first.wrapping_mul(stride));
        // All of it, unless a body has changed its mind about its width.
        let rows = input.rows.saturating_sub(self.first);
        let room = self.output.len().min(rows.saturating_mul(per_row));
        for (i, output) in self.output[..room].chunks_exact_mut(per_row).enumerate() {
            let index = self.first + i;
            let elements = if strided.is_some() {
                // Finding and checking each row's bounds was a sixth of the sum of a row of 64 f32 (of
                // 4096 rows: 26.0 us, now 22.5; 2026-11-30, 2-core x86-64 VM).
                // SAFETY: there is room for no more than `rows` rows, so `index` is below `input.rows`, and
                // `start` is `offset + index * stride`. `strided` has found that the last row, and so each
                // before it, ends within the elements, and that no sum of these overflows.
                unsafe { input.elements.get_unchecked(start..start + input.width) }
            } else {
                input.row(index)
            };
            start = start.wrapping_add(stride);
            let mut row = Row::new(index, elements, output, &mut scratch);
            self.body.run(&mut row, self.ctx);
            row.complete();
        }
        Scratch::give_back(scratch);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::{
        once, pjoin, reduce, reduce_into, stage_into, sum, ArgMin, MinMax, ReduceOp, Sum, Welford,
        LANES,
    };
    use super::*;

    /// Every verb at once: mean, variance, index of the smallest, and the sum of squares that a
    /// staged walk has kept.
    struct Everything {
        emitted: AtomicUsize,
    }

    impl RowBody for Everything {
        type Element = f32;
        type Output = f32;

        fn output_width(&self, _: usize) -> usize {
            4
        }

        #[inline(always)]
        fn run<C: Context>(&self, row: &mut Row<'_, f32, f32>, ctx: C) {
            assert_eq!((ctx.axis(), ctx.emit_tile_width()), (1, 1));
            assert_eq!((ctx.simd_width(), ctx.accumulator_width()), (LANES, LANES));
            let states = (Welford::<f32>::identity(), ArgMin::<f32>::identity());
            let (moments, lowest) = reduce_into(row, ctx, states, |(moments, lowest), x| {
                moments.accumulate(x);
                lowest.accumulate(x);
            });
            let (moments, lowest) = (pjoin(moments, ctx), pjoin(lowest, ctx));
            let (ends, mut squares) = stage_into(row, ctx, MinMax::<f32>::identity(), |ends, x| {
                ends.accumulate(x);
                x.map(|x| x * x).values()
            });
            let _ = pjoin(ends, ctx);
            let sum = reduce_into(&mut squares, ctx, Sum::<f32>::identity(), |sum, x| {
                sum.accumulate(x)
            });
            let sum = pjoin(sum, ctx).value();
            let index = lowest.index().unwrap_or(-1) as f32;
            once(row, ctx, || {
                self.emitted.fetch_add(1, Ordering::Relaxed);
                [moments.mean(), moments.variance(0.0), index, sum]
            });
        }
    }

    /// Writes only the first two of four results.
    struct Half;

    impl RowBody for Half {
        type Element = f32;
        type Output = f32;

        fn output_width(&self, _: usize) -> usize {
            4
        }

        fn run<C: Context>(&self, row: &mut Row<'_, f32, f32>, ctx: C) {
            // The output is not as wide as the row: `reduce` writes nothing.
            reduce(row, ctx, |x| x.values());
            once(row, ctx, || [1.0, 2.0]);
        }
    }

    fn in_pool<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        pool.unwrap().install(f)
    }

    #[test]
    fn a_body_gives_the_same_bits_on_any_number_of_threads_and_emits_once() {
        for (rows, width) in [(1, 1), (3, 31), (700, 1000), (1, 300_001), (5, 150_000)] {
            let x: Vec<f32> = (0..rows * width)
                .map(|k| ((37 * k) % 101) as f32 / 16.0 - 3.0)
                .collect();
            let run = |threads| {
                let body = Everything {
                    emitted: AtomicUsize::new(0),
                };
                let mut y = vec![f32::NAN; 4 * rows];
                in_pool(threads, || launch(&body, rows, width, &x, &mut y)).unwrap();
                assert_eq!(body.emitted.into_inner(), rows);
                y
            };
            let one = run(1);
            for threads in [2, 16] {
                let same = one
                    .iter()
                    .zip(run(threads))
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{rows} {width} {threads}");
            }
            for (x, y) in x.chunks(width).zip(one.chunks(4)) {
                let x: Vec<f64> = x.iter().map(|v| *v as f64).collect();
                let mean = x.iter().sum::<f64>() / width as f64;
                let squares: f64 = x.iter().map(|v| v * v).sum();
                let lowest = x.iter().copied().fold(f64::INFINITY, f64::min);
                assert!((y[0] as f64 - mean).abs() < 1e-5);
                let variance = squares / width as f64 - mean * mean;
                assert!((y[1] as f64 - variance).abs() < 1e-4);
                assert_eq!(x[y[2] as usize], lowest);
                assert!(x[..y[2] as usize].iter().all(|v| *v > lowest));
                // 32 + 5 additions and two per doubling of 293 chunks.
                assert!((y[3] as f64 / squares - 1.0).abs() < 55.0 * 2f64.powi(-24));
            }
        }
    }

    /// The sum, and by way of a walk with a state.
    struct BothSums;

    impl RowBody for BothSums {
        type Element = f32;
        type Output = f32;

        fn output_width(&self, _: usize) -> usize {
            2
        }

        #[inline(always)]
        fn run<C: Context>(&self, row: &mut Row<'_, f32, f32>, ctx: C) {
            let fast = pjoin(sum(row, ctx), ctx).value();
            let plain = reduce_into(row, ctx, Sum::<f32>::identity(), |sum, x| sum.accumulate(x));
            let plain = pjoin(plain, ctx).value();
            once(row, ctx, || [fast, plain]);
        }
    }

    #[test]
    fn the_fast_sum_has_the_same_bits_wherever_a_row_begins_and_those_of_a_plain_walk() {
        for width in [1, 64, 255, 256, 300, 1000, 1025, 2049, 4097, 40_001, 70_033] {
            let row: Vec<f32> = (0..width)
                .map(|k| ((37 * k) % 101) as f32 / 7.0 - 6.0)
                .collect();
            let mut first = None;
            for begin in 0..17 {
                // NaN around the row: none of it is read.
                let mut x = vec![f32::NAN; begin];
                x.extend(&row);
                x.extend([f32::NAN; 80]);
                let mut y = [f32::NAN; 2];
                launch(&BothSums, 1, width, &x[begin..begin + width], &mut y).unwrap();
                let bits = y.map(f32::to_bits);
                assert_eq!(*first.get_or_insert(bits), bits, "{width} from {begin}");
                assert!(
                    bits[0] == bits[1] || (256..=1024).contains(&width),
                    "{width}"
                );
                let exact: f64 = row.iter().map(|v| f64::from(*v)).sum();
                let magnitude: f64 = row.iter().map(|v| f64::from(v.abs())).sum();
                for y in y {
                    assert!((f64::from(y) - exact).abs() <= magnitude * 50.0 * 2f64.powi(-24));
                }
            }
        }
    }

    #[test]
    fn what_a_body_does_not_write_is_default() {
        let mut y = vec![f32::NAN; 8];
        launch(&Half, 2, 3, &[5.0; 6], &mut y).unwrap();
        assert_eq!(y, [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
        let input = Input {
            elements: &[5.0; 6],
            rows: 2,
            width: 3,
            starts: Starts::At(&|row| row * 3),
        };
        let fresh = with_best_isa!(launch_vec, &Half, &input).unwrap();
        assert_eq!(fresh, y);
    }

    #[test]
    fn lengths_that_do_not_fit_are_errors() {
        let mut y = vec![f32::NAN; 8];
        let err = launch(&Half, 2, 3, &[5.0; 7], &mut y).unwrap_err();
        assert_eq!((err.argument, err.got, err.expected), ("input", 7, 6));
        let err = launch(&Half, 3, 3, &[5.0; 9], &mut y).unwrap_err();
        assert_eq!((err.argument, err.got, err.expected), ("output", 8, 12));
        assert!(y.iter().all(|v| v.is_nan()), "nothing has run");
        launch(&Half, 0, 3, &[], &mut []).unwrap();
        let huge = launch(&Half, usize::MAX, 3, &[], &mut []).unwrap_err();
        assert_eq!(huge.expected, usize::MAX);
    }
}
