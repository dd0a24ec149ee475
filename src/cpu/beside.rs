//! Results that a body writes beside the one that its rows are emitted to.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use candle_core::{Error, Result};

use crate::engine::parallel::{self, Chunks};
use crate::engine::{pages, Element, Row};
use crate::problem::Problem;

/// A result with so many values for each row, in the order of the rows, which bodies fill one row at a
/// time while the engine runs them.
pub(super) struct Beside<'a, U> {
    values: *mut MaybeUninit<U>,
    rows: usize,
    per_row: usize,
    memory: PhantomData<&'a mut [MaybeUninit<U>]>,
}

// SAFETY: it gives out parts of memory that it holds by `&mut`, to whoever has the row that a part belongs
// to; see `row`.
unsafe impl<U: Send> Send for Beside<'_, U> {}
unsafe impl<U: Send> Sync for Beside<'_, U> {}

impl<'a, U> Beside<'a, U> {
    /// Memory of `rows` times `per_row` values; `None` if it is of another length.
    pub fn new(values: &'a mut [MaybeUninit<U>], rows: usize, per_row: usize) -> Option<Self> {
        (values.len() == rows.checked_mul(per_row)?).then_some(Beside {
            values: values.as_mut_ptr(),
            rows,
            per_row,
            memory: PhantomData,
        })
    }

    /// The values of a row.
    ///
    /// # Safety
    /// Nothing else that this was called for the same row is alive: a launch runs each row once, so a body
    /// may call it once a run.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row<T: Element, V: Copy + Default + Send>(
        &self,
        row: &Row<'_, T, V>,
    ) -> &mut [MaybeUninit<U>] {
        assert!(row.index() < self.rows);
        // SAFETY: within the memory, whose parts of different rows do not meet; that of this row is
        // borrowed once, says the caller.
        unsafe {
            let start = self.values.add(row.index() * self.per_row);
            std::slice::from_raw_parts_mut(start, self.per_row)
        }
    }
}

/// Runs a body that fills a result of `per_row` values a row beside its own, which is returned with it.
///
/// # Errors
/// Those of `run`, and where there is no memory.
pub(super) fn fill<U, R>(
    problem: &Problem,
    per_row: usize,
    run: impl FnOnce(Beside<'_, U>) -> Result<R>,
) -> Result<(R, Vec<U>)> {
    let len = problem.rows.saturating_mul(per_row);
    let mut values = memory(problem, len)?;
    let room = &mut values.spare_capacity_mut()[..len];
    let room = Beside::new(room, problem.rows, per_row).ok_or_else(|| no_memory(problem, len))?;
    let first = run(room)?;
    // SAFETY: the body has filled every row's part, and the launch runs it for every row.
    unsafe { values.set_len(len) };
    Ok((first, values))
}

/// A result of `len` values that is made in chunks of `chunk`, the last maybe shorter, by all workers:
/// `make` is called with the number of each and its room, all of which it must write.
///
/// # Errors
/// Where there is no memory.
///
/// # Safety
/// `make` initialises the whole room.
pub(super) unsafe fn fill_chunks<U: Send>(
    problem: &Problem,
    len: usize,
    chunk: usize,
    make: impl Fn(usize, &mut [MaybeUninit<U>]) + Sync,
) -> Result<Vec<U>> {
    let mut values = memory(problem, len)?;
    let chunks = Chunks::new(&mut values.spare_capacity_mut()[..len], chunk);
    parallel::for_each(chunks.count(), &|task| {
        // SAFETY: `for_each` calls with each number once.
        make(task, unsafe { chunks.take(task) });
    });
    // SAFETY: the chunks are all of it, and each has been written, says the caller.
    unsafe { values.set_len(len) };
    Ok(values)
}

/// Memory for a result of `len` values, to be filled and then taken for what it is.
fn memory<U>(problem: &Problem, len: usize) -> Result<Vec<U>> {
    let mut values = Vec::new();
    let size = size_of::<U>().max(1);
    values
        .try_reserve_exact(pages::room_for(len.saturating_mul(size)) / size)
        .map_err(|_| no_memory(problem, len))?;
    pages::advise(values.spare_capacity_mut());
    Ok(values)
}

fn no_memory(problem: &Problem, len: usize) -> Error {
    Error::Msg(format!(
        "{}: no memory for {len} numbers beside the result of shape {:?}",
        problem.op.name(),
        problem.output_shape()
    ))
}
