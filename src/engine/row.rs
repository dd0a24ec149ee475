//! [`Row`]: what a body works on; and [`Staged`], what a walk has kept of a row for later ones.

use std::mem::MaybeUninit;

use super::element::Element;
use super::number::Number;

/// One row: its input and its output.
///
/// A body folds it with [`reduce_into`](super::reduce_into) and
/// [`stage_into`](super::stage_into), writes a row of results with [`reduce`](super::reduce) and
/// single results with [`once`](super::once). It has no access to elements otherwise, so it cannot
/// depend on who walks which part.
#[derive(Debug)]
pub struct Row<'a, T: Element, U> {
    index: usize,
    input: &'a [T],
    output: &'a mut [MaybeUninit<U>],
    /// How many leading elements of the output have been written.
    written: usize,
    scratch: &'a mut Vec<T::Acc>,
}

impl<'a, T: Element, U: Copy + Default + Send> Row<'a, T, U> {
    pub(crate) fn new(
        index: usize,
        input: &'a [T],
        output: &'a mut [MaybeUninit<U>],
        scratch: &'a mut Vec<T::Acc>,
    ) -> Self {
        Row {
            index,
            input,
            output,
            written: 0,
            scratch,
        }
    }

    /// Which row of the launch it is: where its part of other operands is found. What is computed from
    /// those may depend on it in no other way.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The length of the axis: how many elements the row has.
    #[inline(always)]
    pub fn axis_size(&self) -> usize {
        self.input.len()
    }

    /// The same row for a function that is not inlined, as rare paths are not: the address of a row that is
    /// handed to one keeps it in memory for all rows (mean of (4096, 64) f32: 25.1 us, now 18.8; 2026-11-30,
    /// 2-core x86-64 VM).
    #[inline(always)]
    pub(crate) fn again(&mut self) -> Row<'_, T, U> {
        Row {
            index: self.index,
            input: self.input,
            output: self.output,
            written: self.written,
            scratch: self.scratch,
        }
    }

    /// The input, and scratch memory of the same length.
    #[inline(always)]
    pub(crate) fn input_and_scratch(&mut self) -> (&[T], &mut [T::Acc]) {
        let len = self.input.len();
        if self.scratch.len() < len {
            self.scratch.resize(len, T::Acc::ZERO);
        }
        (self.input, &mut self.scratch[..len])
    }

    /// The row as the scratch memory now holds it.
    #[inline(always)]
    pub(crate) fn staged(&mut self) -> Staged<'_, T::Acc, U> {
        let len = self.input.len().min(self.scratch.len());
        Staged {
            values: &self.scratch[..len],
            output: self.output,
            written: &mut self.written,
        }
    }

    /// Writes `U::default()` where the body has written nothing, so that all of the output is
    /// initialised.
    #[inline(always)]
    pub(crate) fn complete(self) {
        if let Some(rest) = self.output.get_mut(self.written..) {
            for slot in rest {
                slot.write(U::default());
            }
        }
    }
}

/// What a walk has kept of a row, in the row's stead for later walks: see
/// [`stage_into`](super::stage_into).
#[derive(Debug)]
pub struct Staged<'r, A, U> {
    values: &'r [A],
    output: &'r mut [MaybeUninit<U>],
    written: &'r mut usize,
}

/// What a walk goes over: a [`Row`], or what is [`Staged`] of one. Sealed.
pub trait Source: sealed::Parted {}

impl<T: Element, U: Copy + Default + Send> Source for Row<'_, T, U> {}

impl<A: Element<Acc = A>, U: Copy + Default + Send> Source for Staged<'_, A, U> {}

/// What the elements of a source accumulate in.
pub type AccOf<S> = <<S as sealed::Parted>::Element as Element>::Acc;

pub(crate) mod sealed {
    use super::*;

    /// A source taken apart: what to read, where to write, and the count of what is written, which
    /// whoever writes keeps.
    #[derive(Debug)]
    pub struct Parts<'p, T, U> {
        pub input: &'p [T],
        pub output: &'p mut [MaybeUninit<U>],
        pub written: &'p mut usize,
    }

    pub trait Parted {
        type Element: Element;
        type Output: Copy + Default + Send;

        fn parts(&mut self) -> Parts<'_, Self::Element, Self::Output>;
    }
}

impl<T: Element, U: Copy + Default + Send> sealed::Parted for Row<'_, T, U> {
    type Element = T;
    type Output = U;

    #[inline(always)]
    fn parts(&mut self) -> sealed::Parts<'_, T, U> {
        sealed::Parts {
            input: self.input,
            output: self.output,
            written: &mut self.written,
        }
    }
}

impl<A: Element<Acc = A>, U: Copy + Default + Send> sealed::Parted for Staged<'_, A, U> {
    type Element = A;
    type Output = U;

    #[inline(always)]
    fn parts(&mut self) -> sealed::Parts<'_, A, U> {
        sealed::Parts {
            input: self.values,
            output: self.output,
            written: self.written,
        }
    }
}
