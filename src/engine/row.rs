//! [`Row`]: what a body works on; and [`Staged`], a row computed once for several walks.

use std::mem::MaybeUninit;

use super::element::Element;
use super::tile::{Tile, LANES};

/// A row is staged in scratch memory up to this many bytes; a longer one is computed anew in each
/// walk. Half of the 2 MiB second-level cache, so that input and output rows find room beside it.
const STAGE_BYTES: usize = 1 << 20;

/// One row: its input and its output.
///
/// A body folds it with [`reduce_into`](super::reduce_into), writes a row of results with
/// [`reduce`](super::reduce) and single results with [`once`](super::once). It has no access to
/// elements otherwise, so it cannot depend on who walks which part.
#[derive(Debug)]
pub struct Row<'a, T: Element, U> {
    input: &'a [T],
    output: &'a mut [MaybeUninit<U>],
    /// How many leading elements of the output have been written.
    written: usize,
    scratch: &'a mut Vec<T::Acc>,
}

impl<'a, T: Element, U: Copy> Row<'a, T, U> {
    pub(crate) fn new(
        input: &'a [T],
        output: &'a mut [MaybeUninit<U>],
        scratch: &'a mut Vec<T::Acc>,
    ) -> Self {
        Row {
            input,
            output,
            written: 0,
            scratch,
        }
    }

    /// The length of the axis: how many elements the row has.
    #[inline(always)]
    pub fn axis_size(&self) -> usize {
        self.input.len()
    }

    /// The row with `f` applied to each tile, computed in the first walk over it and kept in the
    /// cache for later ones: for a value that is costly to compute and that two walks need, like
    /// the exponentials of a softmax.
    ///
    /// Rows too long for the cache are computed anew in each walk, with the same result, so `f`
    /// must depend on its tile alone. For speed mark the closure `#[inline(always)]`.
    #[inline(always)]
    pub fn stage<F>(&mut self, f: F) -> Staged<'_, 'a, T, U, F>
    where
        F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync,
    {
        let len = self.input.len();
        let staged = len <= STAGE_BYTES / size_of::<T::Acc>();
        if staged && self.scratch.len() < len {
            self.scratch.resize(len, T::Acc::default());
        }
        Staged {
            map: Mapped(f),
            state: if staged { State::Empty } else { State::Recompute },
            row: self,
        }
    }

    /// Writes the leading results of the row.
    #[inline(always)]
    pub(crate) fn write(&mut self, values: impl IntoIterator<Item = U>) {
        let mut written = 0;
        for (slot, value) in self.output.iter_mut().zip(values) {
            slot.write(value);
            written += 1;
        }
        self.written = self.written.max(written);
    }

    /// Writes `U::default()` where the body has written nothing, so that all of the output is
    /// initialised.
    #[inline(always)]
    pub(crate) fn complete(self)
    where
        U: Default,
    {
        if let Some(rest) = self.output.get_mut(self.written..) {
            for slot in rest {
                slot.write(U::default());
            }
        }
    }
}

/// A row computed once for several walks: see [`Row::stage`].
#[derive(Debug)]
pub struct Staged<'r, 'a, T: Element, U, F> {
    row: &'r mut Row<'a, T, U>,
    map: Mapped<F>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Recompute,
    Empty,
    Filled,
}

/// What a walk goes over: a [`Row`], or a [`Staged`] one. Sealed.
pub trait Source: sealed::Parted {}

impl<T: Element, U: Copy + Send> Source for Row<'_, T, U> {}

impl<T, U, F> Source for Staged<'_, '_, T, U, F>
where
    T: Element,
    U: Copy + Send,
    F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync,
{
}

pub(crate) mod sealed {
    use super::*;

    /// The parts of a source that a walk needs, apart from each other.
    pub trait Parted {
        type Element: Element;
        type Output: Copy + Send;
        type Map: Map<<Self::Element as Element>::Acc>;

        /// What to read.
        fn parts(&mut self) -> Parts<'_, Self::Element, Self::Map>;
        /// What to read, and where to write: all of it, the caller promises.
        #[allow(clippy::type_complexity, reason = "a pair of slices, named by the line above")]
        fn parts_and_output(
            &mut self,
        ) -> (
            Parts<'_, Self::Element, Self::Map>,
            &mut [MaybeUninit<Self::Output>],
            &mut usize,
        );
        /// The row behind it.
        fn write(&mut self, values: impl IntoIterator<Item = Self::Output>);
    }

    /// What is done to each tile before the body sees it.
    pub trait Map<A>: Sync {
        /// False where it is nothing.
        const MAPS: bool;
        fn map(&self, tile: &Tile<A>) -> [A; LANES];
    }

    /// Nothing.
    #[derive(Debug)]
    pub struct Identity;

    impl<A: Copy> Map<A> for Identity {
        const MAPS: bool = false;
        #[inline(always)]
        fn map(&self, tile: &Tile<A>) -> [A; LANES] {
            tile.values()
        }
    }

    /// A closure.
    #[derive(Debug)]
    pub struct Mapped<F>(pub(super) F);

    impl<A: Copy, F: Fn(&Tile<A>) -> [A; LANES] + Sync> Map<A> for Mapped<F> {
        const MAPS: bool = true;
        #[inline(always)]
        fn map(&self, tile: &Tile<A>) -> [A; LANES] {
            (self.0)(tile)
        }
    }

    /// Part of a row as a walk reads it.
    #[derive(Debug)]
    pub struct Parts<'v, T: Element, M> {
        pub input: &'v [T],
        pub stage: Stage<'v, T::Acc>,
        pub map: &'v M,
    }

    /// What the scratch memory is for in this walk.
    #[derive(Debug)]
    pub enum Stage<'v, A> {
        Off,
        Fill(&'v mut [A]),
        Read(&'v [A]),
    }

    impl<'v, T: Element, M> Parts<'v, T, M> {
        /// The first `len` elements (all, where there are no more), and the rest.
        #[inline(always)]
        pub fn split(self, len: usize) -> (Self, Self) {
            let len = len.min(self.input.len());
            let (input, input_rest) = self.input.split_at(len);
            let (stage, stage_rest) = match self.stage {
                Stage::Off => (Stage::Off, Stage::Off),
                Stage::Fill(buffer) => {
                    let (head, rest) = buffer.split_at_mut(len);
                    (Stage::Fill(head), Stage::Fill(rest))
                }
                Stage::Read(buffer) => {
                    let (head, rest) = buffer.split_at(len);
                    (Stage::Read(head), Stage::Read(rest))
                }
            };
            let map = self.map;
            (
                Parts { input, stage, map },
                Parts {
                    input: input_rest,
                    stage: stage_rest,
                    map,
                },
            )
        }
    }
}

use sealed::{Identity, Mapped, Parted, Parts, Stage};

impl<T: Element, U: Copy + Send> Parted for Row<'_, T, U> {
    type Element = T;
    type Output = U;
    type Map = Identity;

    #[inline(always)]
    fn parts(&mut self) -> Parts<'_, T, Identity> {
        self.parts_and_output().0
    }

    #[inline(always)]
    fn parts_and_output(
        &mut self,
    ) -> (Parts<'_, T, Identity>, &mut [MaybeUninit<U>], &mut usize) {
        let parts = Parts {
            input: self.input,
            stage: Stage::Off,
            map: &Identity,
        };
        (parts, self.output, &mut self.written)
    }

    #[inline(always)]
    fn write(&mut self, values: impl IntoIterator<Item = U>) {
        Row::write(self, values);
    }
}

impl<T, U, F> Parted for Staged<'_, '_, T, U, F>
where
    T: Element,
    U: Copy + Send,
    F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync,
{
    type Element = T;
    type Output = U;
    type Map = Mapped<F>;

    #[inline(always)]
    fn parts(&mut self) -> Parts<'_, T, Mapped<F>> {
        self.parts_and_output().0
    }

    #[inline(always)]
    fn parts_and_output(
        &mut self,
    ) -> (Parts<'_, T, Mapped<F>>, &mut [MaybeUninit<U>], &mut usize) {
        let len = self.row.input.len();
        let scratch = self.row.scratch.get_mut(..len);
        let stage = match (self.state, scratch) {
            (State::Empty, Some(buffer)) => {
                self.state = State::Filled;
                Stage::Fill(buffer)
            }
            (State::Filled, Some(buffer)) => Stage::Read(buffer),
            _ => Stage::Off,
        };
        let parts = Parts {
            input: self.row.input,
            stage,
            map: &self.map,
        };
        (parts, self.row.output, &mut self.row.written)
    }

    #[inline(always)]
    fn write(&mut self, values: impl IntoIterator<Item = U>) {
        self.row.write(values);
    }
}
