//! Handing numbered tasks to the workers of the current rayon pool.
//!
//! The tasks are behind a `dyn` call, one per task of thousands of elements: rayon's machinery is
//! compiled once, and not for each op, dtype and instruction set.

use std::marker::PhantomData;

use rayon::prelude::*;

/// Calls `task` once with each number below `tasks`, on all workers of the current pool.
pub(crate) fn for_each(tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    (0..tasks).into_par_iter().for_each(task);
}

/// A slice cut into chunks of `len`, the last maybe shorter, for tasks that each take one.
pub(crate) struct Chunks<'a, T> {
    start: *mut T,
    total: usize,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Chunks` gives out `&mut` chunks of the slice that it borrows, to several threads, which
// is sending parts of that `&mut [T]` to them: sound for `T: Send`, given the contract of `take`.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    /// Cuts `slice` into chunks of `len`, which is taken as 1 if it is 0.
    pub(crate) fn new(slice: &'a mut [T], len: usize) -> Self {
        Chunks {
            start: slice.as_mut_ptr(),
            total: slice.len(),
            len: len.max(1),
            slice: PhantomData,
        }
    }

    /// How many chunks there are.
    pub(crate) fn count(&self) -> usize {
        self.total.div_ceil(self.len)
    }

    /// Chunk `index`; empty where there is none.
    ///
    /// # Safety
    /// No index may be taken twice.
    #[allow(clippy::mut_from_ref, reason = "chunks are disjoint and taken once")]
    pub(crate) unsafe fn take(&self, index: usize) -> &'a mut [T] {
        let begin = index.saturating_mul(self.len).min(self.total);
        let end = begin.saturating_add(self.len).min(self.total);
        // SAFETY: `begin <= end <= total`, so the range lies in the slice, which `self` borrows
        // mutably for 'a. Ranges of different indices are disjoint, and the caller takes none twice.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(begin), end - begin) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_is_visited_once() {
        for (total, len) in [(0, 4), (1, 4), (4, 4), (5, 4), (1000, 7), (3, 0)] {
            let mut values = vec![0u32; total];
            let chunks = Chunks::new(&mut values, len);
            assert_eq!(chunks.count(), total.div_ceil(len.max(1)));
            for_each(chunks.count(), &|i| {
                // SAFETY: `for_each` calls with each number once.
                for (j, value) in unsafe { chunks.take(i) }.iter_mut().enumerate() {
                    *value += (i * len.max(1) + j) as u32 + 1;
                }
            });
            // SAFETY: the index is past the last chunk and has not been taken.
            assert!(unsafe { chunks.take(total + 1) }.is_empty());
            assert!(values.iter().enumerate().all(|(i, v)| *v == i as u32 + 1));
        }
    }
}
