//! [`Context`]: how a row is walked; and the four verbs of a body.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::cascade::cascade;
use super::element::{Element, Output};
use super::isa::Isa;
use super::monoids::Sum;
use super::op::{Held, Partials, ReduceOp, States};
use super::parallel::{self, Chunks};
use super::reducer::{SerialReducer, SplitReducer};
use super::row::{AccOf, Row, Source, Staged};
use super::tile::{Tile, LANES};
use super::walk::{
    emit_tiles, load_side, map_tiles, same, segment_len, sum_chunk, EmitSegment, FoldSegment,
    SumSegment, PAIRED, SHORT,
};

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
    S::Output: Output<AccOf<S>>,
    C: Context,
    F: Fn(&Tile<AccOf<S>>) -> [AccOf<S>; LANES] + Sync,
{
    let parts = source.parts();
    if parts.input.len() == parts.output.len() {
        ctx.emit(parts.input, parts.output, &tile_fn);
        *parts.written = parts.input.len();
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
    F: Fn(&mut M, &Tile<AccOf<S>>) + Sync,
{
    let input = source.parts().input;
    // Nothing is kept: as many places as the row has, without size and so without memory.
    let kept = &mut vec![(); input.len()];
    ctx.fold(
        input,
        kept,
        state,
        #[inline(always)]
        |state: &mut M, tile: &Tile<AccOf<S>>| {
            tile_fn(state, tile);
            [(); LANES]
        },
    )
}

/// The sum of the row's values as they are: [`reduce_into`] with a [`Sum`], but that two states fold the
/// tiles in turn in rows from 256 elements on, and faster.
#[inline(always)]
pub fn sum<S, C>(source: &mut S, ctx: C) -> Partials<Sum<AccOf<S>, 1>>
where
    S: Source,
    C: Context,
{
    ctx.sum(source.parts().input)
}

/// [`reduce_into`] that also keeps what `tile_fn` returns for each tile, on chip where the row fits:
/// later walks go over the [`Staged`] values in the row's stead. For what is costly to compute and
/// used twice, like the exponentials of a softmax.
#[inline(always)]
pub fn stage_into<'r, T, U, C, M, F>(
    row: &'r mut Row<'_, T, U>,
    ctx: C,
    state: M,
    tile_fn: F,
) -> (M::Partials, Staged<'r, T::Acc, U>)
where
    T: Element,
    U: Copy + Default + Send,
    C: Context,
    M: States,
    F: Fn(&mut M, &Tile<T::Acc>) -> [T::Acc; LANES] + Sync,
{
    let (input, scratch) = row.input_and_scratch();
    let partials = ctx.fold(input, scratch, state, tile_fn);
    (partials, row.staged())
}

/// Joins what the participants of the row hold of one state: the row's state.
#[inline(always)]
pub fn pjoin<M, C>(partials: Partials<M>, ctx: C) -> M
where
    M: ReduceOp<1, Single = M>,
    C: Context,
{
    ctx.pjoin(&partials)
}

/// Runs `emit` exactly once for the row and writes the results that it returns as the leading
/// elements of the row's output; those that the output has no room for are dropped.
#[inline(always)]
pub fn once<S, C, R>(source: &mut S, ctx: C, emit: impl FnOnce() -> R)
where
    S: Source,
    C: Context,
    R: IntoIterator<Item = S::Output>,
{
    let parts = source.parts();
    let mut count = 0;
    for (slot, value) in parts.output.iter_mut().zip(ctx.once(emit)) {
        slot.write(value);
        count += 1;
    }
    *parts.written = count.max(*parts.written);
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

        fn isa(self) -> Self::Isa;

        fn once<R>(self, emit: impl FnOnce() -> R) -> R;

        fn pjoin<M: ReduceOp<1, Single = M>>(self, partials: &Partials<M>) -> M;

        /// Folds all of `input`, and keeps what `tile_fn` makes of it in `kept`, which is as long.
        fn fold<T, K, S, F>(self, input: &[T], kept: &mut [K], state: S, tile_fn: F) -> S::Partials
        where
            T: Element,
            K: Copy + Send,
            S: States,
            F: Fn(&mut S, &Tile<T::Acc>) -> [K; LANES] + Sync;

        /// The sum of all of `input`.
        fn sum<T: Element>(self, input: &[T]) -> Partials<Sum<T::Acc, 1>>;

        fn emit<T, U, F>(self, input: &[T], output: &mut [MaybeUninit<U>], tile_fn: &F)
        where
            T: Element,
            U: Output<T::Acc>,
            F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync;
    }
}

/// Who walks a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workers {
    /// The thread that runs the body.
    One,
    /// All threads of the current rayon pool, a segment at a time.
    Pool,
}

/// The context of the CPU: of rows of at most [`SHORT`] elements, or of longer ones.
///
/// A short row is walked in the loop over rows, where the call of a kernel would cost as much as the
/// walk. A longer one is walked by kernels. Two types, so that in the loop over short rows nothing is
/// prepared for a call: with both in one loop, every state and closure was written to memory (layer
/// norm of (65536, 32) f32 on one thread: 2.40 ms, now 2.19; 2026-11-30, 2-core x86-64 VM). Who walks
/// is a value and not a type, so that the walks of a body are compiled once for both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu<I, const IS_SHORT: bool> {
    pub isa: I,
    pub workers: Workers,
}

impl<I: Isa, const IS_SHORT: bool> Context for Cpu<I, IS_SHORT> {}

impl<I: Isa, const IS_SHORT: bool> Cpu<I, IS_SHORT> {
    /// Folds a row of more than [`SHORT`] elements, segment after segment or many at once.
    #[inline(always)]
    fn fold_long<T, K, S, F>(
        self,
        input: &[T],
        kept: &mut [K],
        state: S,
        tile_fn: &F,
    ) -> S::Partials
    where
        T: Element,
        K: Copy + Send,
        S: States,
        F: Fn(&mut S, &Tile<T::Acc>) -> [K; LANES] + Sync,
    {
        let isa = self.isa;
        let cut = segment_len(input.len());
        if input.len() <= cut {
            return S::one(isa.run(FoldSegment {
                isa,
                input,
                kept,
                first: 0,
                state,
                tile_fn,
            }));
        }
        let kept = Chunks::new(kept, cut);
        let fold_one = |i: usize| {
            isa.run(FoldSegment {
                isa,
                input: &input[i * cut..input.len().min((i + 1) * cut)],
                // SAFETY: `many_segments` calls with each segment's number once.
                kept: unsafe { kept.take(i) },
                first: (i * cut) as i64,
                state: if i == 0 { state } else { S::identity() },
                tile_fn,
            })
        };
        many_segments::<S>(self.workers, input.len().div_ceil(cut), &fold_one)
    }
}

/// The fold of a row of several segments.
#[inline(never)]
fn many_segments<S: States>(
    workers: Workers,
    segments: usize,
    fold_one: &(dyn Fn(usize) -> S::Singles + Sync),
) -> S::Partials {
    match workers {
        Workers::Pool => {
            let singles: Vec<OnceLock<S::Singles>> = vec![OnceLock::new(); segments];
            parallel::for_each(segments, &|i| {
                singles[i].get_or_init(|| fold_one(i));
            });
            S::many(
                singles
                    .into_iter()
                    .filter_map(OnceLock::into_inner)
                    .collect(),
            )
        }
        Workers::One => {
            let joined = cascade((0..segments).map(fold_one), S::join_singles);
            S::one(joined.unwrap_or_else(|| S::identity().reduce()))
        }
    }
}

impl<I: Isa, const IS_SHORT: bool> sealed::Walk for Cpu<I, IS_SHORT> {
    type Isa = I;

    #[inline(always)]
    fn isa(self) -> I {
        self.isa
    }

    #[inline(always)]
    fn once<R>(self, emit: impl FnOnce() -> R) -> R {
        // One flow of control runs the body, whoever walks the row.
        emit()
    }

    #[inline(always)]
    fn pjoin<M: ReduceOp<1, Single = M>>(self, partials: &Partials<M>) -> M {
        match &partials.0 {
            Held::One(state) => M::join_parallel(std::slice::from_ref(state), &SerialReducer),
            Held::Many(states) => M::join_parallel(states, &SplitReducer),
        }
    }

    #[inline(always)]
    fn fold<T, K, S, F>(self, input: &[T], kept: &mut [K], state: S, tile_fn: F) -> S::Partials
    where
        T: Element,
        K: Copy + Send,
        S: States,
        F: Fn(&mut S, &Tile<T::Acc>) -> [K; LANES] + Sync,
    {
        if !IS_SHORT {
            return self.fold_long(input, kept, state, &tile_fn);
        }
        debug_assert!(input.len() <= SHORT, "bits are a function of the width");
        let mut state = state;
        map_tiles::<true, _, _, _, _>(
            self.isa,
            input,
            kept,
            0,
            #[inline(always)]
            |tile| tile_fn(&mut state, tile),
            same,
        );
        S::one(state.reduce())
    }

    #[inline(always)]
    fn sum<T: Element>(self, input: &[T]) -> Partials<Sum<T::Acc, 1>> {
        if IS_SHORT {
            if input.len() >= PAIRED {
                let sum = sum_chunk(self.isa, input);
                return Partials(Held::One(ReduceOp::<LANES>::reduce(sum)));
            }
            return self.fold(
                input,
                &mut vec![(); input.len()],
                <Sum<T::Acc> as ReduceOp>::identity(),
                #[inline(always)]
                |sum: &mut Sum<T::Acc>, tile: &Tile<T::Acc>| {
                    sum.accumulate(tile);
                    [(); LANES]
                },
            );
        }
        let isa = self.isa;
        let cut = segment_len(input.len());
        if input.len() <= cut {
            return Partials(Held::One(isa.run(SumSegment { isa, input })));
        }
        let sum_one = |i: usize| {
            let input = &input[i * cut..input.len().min((i + 1) * cut)];
            isa.run(SumSegment { isa, input })
        };
        many_segments::<Sum<T::Acc>>(self.workers, input.len().div_ceil(cut), &sum_one)
    }

    #[inline(always)]
    fn emit<T, U, F>(self, input: &[T], output: &mut [MaybeUninit<U>], tile_fn: &F)
    where
        T: Element,
        U: Output<T::Acc>,
        F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES] + Sync,
    {
        let isa = self.isa;
        if IS_SHORT {
            return emit_tiles(isa, input, output, 0, tile_fn);
        }
        let cut = match self.workers {
            Workers::One => input.len(),
            Workers::Pool => segment_len(input.len()),
        };
        let output = Chunks::new(output, cut);
        let emit_one = |i: usize| {
            isa.run(EmitSegment {
                isa,
                input: &input[i * cut..input.len().min((i + 1) * cut)],
                // SAFETY: each number is used once, below.
                output: unsafe { output.take(i) },
                first: (i * cut) as i64,
                tile_fn,
            });
        };
        match self.workers {
            Workers::One => emit_one(0),
            Workers::Pool => parallel::for_each(output.count(), &emit_one),
        }
    }
}
