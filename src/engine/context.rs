//! [`Context`]: how a row is walked; and the four verbs of a body.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::element::{Element, Output};
use super::isa::Isa;
use super::op::{Held, Partials, ReduceOp, States};
use super::reducer::{Reducer, SerialReducer, SplitReducer};
use super::row::sealed::{Map, Parts};
use super::row::Source;
use super::tile::{Tile, LANES};
use super::walk::{emit_segment, fold_segment, load_side, segment_len, EmitSegment, FoldSegment};

/// How a row is walked, opaque to the body: by one worker, or by several that each take segments
/// of it. A body passes it on, and reads no more of it than the four numbers below.
///
/// Sealed: the engine makes contexts, bodies are generic over them.
pub trait Context: sealed::Walk {
    /// The axis that is walked, of a tensor of rows: 1.
    #[inline(always)]
    fn axis(&self) -> usize {
        1
    }

    /// How many output rows a worker has in hand at a time: 1.
    #[inline(always)]
    fn emit_tile_width(&self) -> usize {
        1
    }

    /// Values per tile: [`LANES`], on every instruction set, so that bits do not depend on it.
    #[inline(always)]
    fn simd_width(&self) -> usize {
        LANES
    }

    /// Lanes per state: [`LANES`].
    #[inline(always)]
    fn accumulator_width(&self) -> usize {
        LANES
    }
}

/// Walks the row with no state: `tile_fn` maps each tile to the results at its positions, which are
/// rounded to the output's type and written. For passes that emit a row, like softmax's last.
///
/// All of the output is written if it is as wide as the row; else nothing is, and `tile_fn` is not
/// called: results of a reduction are for [`once`] to write.
///
/// For speed mark the closure `#[inline(always)]`.
#[inline(always)]
pub fn reduce<S, C, F>(source: &mut S, ctx: C, tile_fn: F)
where
    S: Source,
    S::Output: Output<<S::Element as Element>::Acc>,
    C: Context,
    F: Fn(
            &Tile<<S::Element as Element>::Acc>,
        ) -> [<S::Element as Element>::Acc; LANES]
        + Sync,
{
    let (parts, output, written) = source.parts_and_output();
    if parts.input.len() == output.len() {
        *written = output.len();
        ctx.emit(parts, output, tile_fn);
    }
}

/// Walks the row, folding each tile into `state` with `tile_fn`; `state` is one [`ReduceOp`] or a
/// tuple of up to four. Iteration only: [`pjoin`] makes the row's states of what it returns.
///
/// The walk starts from `state`, usually the identity. `tile_fn` runs on several workers, on copies
/// of the identity, where the row is split. For speed mark the closure `#[inline(always)]`.
#[inline(always)]
pub fn reduce_into<S, C, M, F>(source: &mut S, ctx: C, state: M, tile_fn: F) -> M::Partials
where
    S: Source,
    C: Context,
    M: States,
    F: Fn(&mut M, &Tile<<S::Element as Element>::Acc>) + Sync,
{
    ctx.fold(source.parts(), state, tile_fn)
}

/// Joins what the participants of the row hold of one state: the row's state.
#[inline(always)]
pub fn pjoin<M, C>(partials: Partials<M>, ctx: C) -> M
where
    M: ReduceOp<1, Single = M>,
    C: Context,
{
    match &partials.0 {
        Held::One(state) => M::join_parallel(std::slice::from_ref(state), &ctx.reducer()),
        Held::Many(states) => M::join_parallel(states, &ctx.reducer()),
    }
}

/// Runs `emit` exactly once for the row and writes the results that it returns as the leading
/// elements of the row's output; those that the output has no room for are dropped.
#[inline(always)]
pub fn once<S, C, R>(source: &mut S, _ctx: C, emit: impl FnOnce() -> R)
where
    S: Source,
    C: Context,
    R: IntoIterator<Item = S::Output>,
{
    source.write(emit());
}

/// Values of a side input, a vector as long as the row, at the positions of `tile`. Fill (zeros)
/// where the tile is not live.
#[inline(always)]
pub fn load<C, T, A>(ctx: C, side: &[T], tile: &Tile<A>) -> [T::Acc; LANES]
where
    C: Context,
    T: Element,
    A: Copy,
{
    load_side(ctx.isa(), side, tile)
}

/// A number rounded to an output's type, as the one result that [`once`] writes.
#[inline(always)]
pub fn round<C, U, A>(ctx: C, value: A) -> [U; 1]
where
    C: Context,
    U: Output<A>,
{
    U::narrow(ctx.isa(), &[value])
}

pub(crate) mod sealed {
    use super::*;

    /// The walks behind a context.
    pub trait Walk: Copy + Send + Sync {
        type Isa: Isa;
        type Reducer: Reducer;

        fn isa(self) -> Self::Isa;
        fn reducer(self) -> Self::Reducer;

        fn fold<T, M, S, F>(self, parts: Parts<'_, T, M>, state: S, tile_fn: F) -> S::Partials
        where
            T: Element,
            M: Map<T::Acc>,
            S: States,
            F: Fn(&mut S, &Tile<T::Acc>) + Sync;

        fn emit<T, M, U, F>(
            self,
            parts: Parts<'_, T, M>,
            output: &mut [MaybeUninit<U>],
            tile_fn: F,
        ) where
            T: Element,
            M: Map<T::Acc>,
            U: Output<T::Acc>,
            F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync;
    }
}

use sealed::Walk;

/// One worker walks the row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Serial<I>(pub I);

impl<I: Isa> Context for Serial<I> {}

impl<I: Isa> Walk for Serial<I> {
    type Isa = I;
    type Reducer = SerialReducer;

    #[inline(always)]
    fn isa(self) -> I {
        self.0
    }

    #[inline(always)]
    fn reducer(self) -> SerialReducer {
        SerialReducer
    }

    #[inline(always)]
    fn fold<T, M, S, F>(self, parts: Parts<'_, T, M>, state: S, tile_fn: F) -> S::Partials
    where
        T: Element,
        M: Map<T::Acc>,
        S: States,
        F: Fn(&mut S, &Tile<T::Acc>) + Sync,
    {
        let segment = segment_len(parts.input.len());
        let mut cascade = super::cascade::Cascade::new();
        let mut first = 0;
        let mut state = state;
        let mut rest = parts;
        loop {
            let part;
            (part, rest) = rest.split(segment);
            let folded = fold_segment(self.0, part, first, state, &tile_fn).reduce();
            if first == 0 && rest.input.is_empty() {
                return S::one(folded);
            }
            cascade.push(folded, S::join_singles);
            if rest.input.is_empty() {
                break;
            }
            first += segment as i64;
            state = S::identity();
        }
        let joined = cascade.finish(S::join_singles);
        S::one(joined.unwrap_or_else(|| S::identity().reduce()))
    }

    #[inline(always)]
    fn emit<T, M, U, F>(self, parts: Parts<'_, T, M>, output: &mut [MaybeUninit<U>], tile_fn: F)
    where
        T: Element,
        M: Map<T::Acc>,
        U: Output<T::Acc>,
        F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync,
    {
        emit_segment(self.0, parts, output, 0, &tile_fn);
    }
}

/// The workers of the current rayon pool walk the row, a segment at a time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split<I>(pub I);

impl<I: Isa> Context for Split<I> {}

/// The segments of a row with their first positions.
fn segments<T: Element, M>(parts: Parts<'_, T, M>) -> Vec<(i64, Parts<'_, T, M>)> {
    let len = segment_len(parts.input.len());
    let mut segments = Vec::with_capacity(parts.input.len().div_ceil(len));
    let mut rest = parts;
    let mut first = 0;
    while !rest.input.is_empty() {
        let part;
        (part, rest) = rest.split(len);
        segments.push((first, part));
        first += len as i64;
    }
    segments
}

impl<I: Isa> Walk for Split<I> {
    type Isa = I;
    type Reducer = SplitReducer;

    #[inline(always)]
    fn isa(self) -> I {
        self.0
    }

    #[inline(always)]
    fn reducer(self) -> SplitReducer {
        SplitReducer
    }

    fn fold<T, M, S, F>(self, parts: Parts<'_, T, M>, state: S, tile_fn: F) -> S::Partials
    where
        T: Element,
        M: Map<T::Acc>,
        S: States,
        F: Fn(&mut S, &Tile<T::Acc>) + Sync,
    {
        let isa = self.0;
        let singles = segments(parts)
            .into_par_iter()
            .map(|(first, parts)| {
                isa.run(FoldSegment {
                    isa,
                    parts,
                    first,
                    state: if first == 0 { state } else { S::identity() },
                    tile_fn: &tile_fn,
                })
            })
            .collect();
        S::many(singles)
    }

    fn emit<T, M, U, F>(self, parts: Parts<'_, T, M>, output: &mut [MaybeUninit<U>], tile_fn: F)
    where
        T: Element,
        M: Map<T::Acc>,
        U: Output<T::Acc>,
        F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync,
    {
        let isa = self.0;
        let len = segment_len(parts.input.len());
        segments(parts)
            .into_par_iter()
            .zip(output.par_chunks_mut(len))
            .for_each(|((first, parts), output)| {
                isa.run(EmitSegment {
                    isa,
                    parts,
                    output,
                    first,
                    tile_fn: &tile_fn,
                });
            });
    }
}
