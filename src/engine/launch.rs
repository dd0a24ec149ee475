//! The driver: runs a body over rows, on one worker or many.

use std::collections::TryReserveError;
use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::context::{Context, Serial, Split};
use super::element::Element;
use super::isa::{with_best_isa, Isa, Kernel};
use super::row::Row;
use super::scratch::Scratch;
use super::walk::segment_len;

/// Elements below which one thread does all: handing work to another costs some 10 microseconds.
const PARALLEL_MIN: usize = 1 << 15;

/// Elements per task: enough that a task outweighs its hand-over, few enough to balance.
const TASK: usize = 1 << 14;

/// What is computed for one row: one function over all contexts, which never sees threads or cuts.
///
/// Mark `run` `#[inline(always)]`: it is compiled into the code of each instruction set.
pub trait RowBody: Sync {
    /// Element type of the input.
    type Element: Element;
    /// Element type of the output.
    type Output: Copy + Default + Send + Sync + 'static;

    /// How many results a row of `width` elements has: `width` for a body that emits a row.
    fn output_width(&self, width: usize) -> usize;

    /// Computes one row. Results that it does not write are `Output::default()`.
    fn run<C: Context>(&self, row: &mut Row<'_, Self::Element, Self::Output>, ctx: C);
}

/// The input or the output of a launch does not have the length that its rows ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("launch: {argument} of {rows} rows of width {width} has {got} elements, expected {expected}")]
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
    launch_uninit(body, &input, output);
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
pub(crate) fn launch_vec<B: RowBody>(
    body: &B,
    input: &Input<'_, B::Element>,
) -> Result<Vec<B::Output>, TryReserveError> {
    let len = input.rows.saturating_mul(body.output_width(input.width));
    let mut output = Vec::new();
    output.try_reserve_exact(len)?;
    launch_uninit(body, input, &mut output.spare_capacity_mut()[..len]);
    // SAFETY: the capacity is at least `len`, and `launch_uninit` has initialised the first `len`
    // elements.
    unsafe { output.set_len(len) };
    Ok(output)
}

/// Runs `body` over all rows and initialises all of `output`, which is `input.rows` times
/// [`RowBody::output_width`] long.
pub(crate) fn launch_uninit<B: RowBody>(
    body: &B,
    input: &Input<'_, B::Element>,
    output: &mut [MaybeUninit<B::Output>],
) {
    with_best_isa!(launch_on, body, input, output)
}

/// [`launch_uninit`] for one instruction set.
pub(crate) fn launch_on<I: Isa, B: RowBody>(
    isa: I,
    body: &B,
    input: &Input<'_, B::Element>,
    output: &mut [MaybeUninit<B::Output>],
) {
    let per_row = body.output_width(input.width);
    if per_row == 0 || input.rows == 0 {
        return;
    }
    let threads = rayon::current_num_threads();
    let elements = input.rows.saturating_mul(input.width);
    if threads == 1 || elements < PARALLEL_MIN {
        isa.run(Rows {
            ctx: Serial(isa),
            body,
            input,
            first: 0,
            output,
        });
    } else if input.rows < 4 * threads && input.width >= 2 * segment_len(input.width) {
        isa.run(Rows {
            ctx: Split(isa),
            body,
            input,
            first: 0,
            output,
        });
    } else {
        let rows_per_task = (TASK / input.width.max(1)).max(1);
        output
            .par_chunks_mut(rows_per_task * per_row)
            .enumerate()
            .for_each(|(task, output)| {
                isa.run(Rows {
                    ctx: Serial(isa),
                    body,
                    input,
                    first: task * rows_per_task,
                    output,
                });
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

impl<C: Context, B: RowBody> Kernel for Rows<'_, C, B> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let mut scratch = Scratch::take();
        let per_row = self.body.output_width(self.input.width).max(1);
        for (i, output) in self.output.chunks_exact_mut(per_row).enumerate() {
            let input = self.input.row(self.first + i);
            let mut row = Row::new(input, output, &mut scratch);
            self.body.run(&mut row, self.ctx);
            row.complete();
        }
        Scratch::give_back(scratch);
    }
}
