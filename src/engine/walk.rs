//! Walks over part of a row by one worker, and the fixed pattern that they fold in.

use std::mem::MaybeUninit;

use super::cascade::Cascade;
use super::element::{Element, Output};
use super::isa::{Isa, Kernel};
use super::monoids::Sum;
use super::op::{ReduceOp, States};
use super::tile::{copy_short, Tile, LANES};

/// Tiles that a lane folds one after the other before its state is set aside and joined pairwise, so
/// that rounding errors grow with 32 + log2 of the width and not with the width.
const CHAIN: usize = 32;

/// The longest row that is walked as one chain of tiles, inline in the loop over rows.
pub(crate) const SHORT: usize = CHAIN * LANES;

/// The shortest row that is summed up by two states in turn, as longer ones are folded: with them come
/// loads of whole cache lines ([`Isa::sum_pairs_f32`]). Sum of (512, 1000) f32 that begin 32 bytes into a
/// line, on one thread: 30.1 us, now 26.3 (2026-11-30, 2-core x86-64 VM).
pub(crate) const PAIRED: usize = 256;

/// Elements of a longer row that two states fold side by side, tile by tile in turn, before they are
/// joined and set aside. The additions to one state wait for each other: a loop of AVX-512 additions
/// over 4096 f32 in L1 takes 176 ns with one state of 32 lanes and 106 with two (2026-11-30, 2-core
/// x86-64 VM).
pub(crate) const CHUNK: usize = 2 * SHORT;

/// Elements per segment, the unit in which a row is split over workers: some 2 to 30 microseconds of
/// one worker's time. With an eighth of it, collapsing the lanes of each shows: the same sum takes
/// 1.33 ms (2026-11-29, 2-core x86-64 VM).
const SEGMENT: usize = 16 * CHUNK;

/// The most segments of a row, so that the states of a long row stay few.
const MAX_SEGMENTS: usize = 256;

/// Where a row of `width` elements is cut into segments. A function of the width alone: this is
/// what makes a row's bits independent of how many workers there are.
pub(crate) fn segment_len(width: usize) -> usize {
    SEGMENT.max(width.div_ceil(MAX_SEGMENTS).next_multiple_of(CHUNK))
}

/// Calls `visit` with the tiles of `elements`, the first of which has position `first`, and writes
/// what it makes of each, wrapped, to the same places of `room`, which is as long. The last tile may
/// be partial.
///
/// The partial tile has a call of its own: with one for both, every full tile would carry a choice
/// between live values and fill, of which the compiler makes vectors of two lanes (layer norm of
/// (512, 1000) f32 on one thread: 543 us, now 337; 2026-11-29, 2-core x86-64 VM).
#[inline(always)]
pub(crate) fn map_tiles<const PREFETCHES: bool, I: Isa, T: Element, V: Copy, R>(
    isa: I,
    elements: &[T],
    room: &mut [R],
    first: i64,
    mut visit: impl FnMut(&Tile<T::Acc>) -> [V; LANES],
    wrap: impl Fn(V) -> R + Copy,
) {
    let (tiles, rest) = elements.as_chunks::<LANES>();
    let (places, rest_places) = room.as_chunks_mut::<LANES>();
    let mut first = first;
    for (tile, place) in tiles.iter().zip(places) {
        if PREFETCHES {
            prefetch(tile);
        }
        let values = visit(&Tile::new(T::widen(isa, tile), first, LANES));
        for (to, from) in place.iter_mut().zip(values) {
            *to = wrap(from);
        }
        first += LANES as i64;
    }
    if !rest.is_empty() {
        let values = visit(&Tile::new(T::widen_partial(isa, rest), first, rest.len()));
        copy_short(&values, rest_places, wrap);
    }
}

/// What [`map_tiles`] wraps values in that stay as they are.
#[inline(always)]
pub(crate) fn same<V>(value: V) -> V {
    value
}

/// Folds the elements, the first of which has position `first`, into `state`, and keeps what
/// `tile_fn` makes of each tile in `kept`: chunk by chunk, the chunks' states joined by a cascade.
#[inline(always)]
fn fold<I: Isa, T: Element, K: Copy, S: States>(
    isa: I,
    elements: &[T],
    kept: &mut [K],
    first: i64,
    state: S,
    tile_fn: &impl Fn(&mut S, &Tile<T::Acc>) -> [K; LANES],
) -> S {
    let mut cascade = Cascade::new();
    let (mut rest, mut room, mut first, mut even) = (elements, kept, first, state);
    loop {
        let (chunk, tail) = rest.split_at(rest.len().min(CHUNK));
        let (places, tail_room) = room.split_at_mut(chunk.len().min(room.len()));
        let (pairs, rest_of_chunk) = chunk.as_chunks::<{ 2 * LANES }>();
        let (pair_places, rest_places) = places.as_chunks_mut::<{ 2 * LANES }>();
        let mut odd = S::identity();
        for (pair, places) in pairs.iter().zip(pair_places) {
            prefetch(pair);
            let (tiles, _) = pair.as_chunks::<LANES>();
            let (places, _) = places.as_chunks_mut::<LANES>();
            places[0] = tile_fn(
                &mut even,
                &Tile::new(T::widen(isa, &tiles[0]), first, LANES),
            );
            first += LANES as i64;
            places[1] = tile_fn(&mut odd, &Tile::new(T::widen(isa, &tiles[1]), first, LANES));
            first += LANES as i64;
        }
        even = even.join(odd);
        map_tiles::<false, _, _, _, _>(
            isa,
            rest_of_chunk,
            rest_places,
            first,
            #[inline(always)]
            |tile| tile_fn(&mut even, tile),
            same,
        );
        if tail.is_empty() {
            return cascade.finish_with(even, S::join);
        }
        cascade.push(even, S::join);
        even = S::identity();
        (rest, room) = (tail, tail_room);
    }
}

/// Bytes ahead of the elements at hand that are asked for. A vector that lies in two cache lines, as
/// those of a large allocation do, waits for both; and of what comes from beyond L2 too little is under
/// way. Sums on one thread, without, 2048 and 4096 bytes ahead: (4096, 64) f32, in L2, 22.0, 17.2 and
/// 17.2 us; (4096, 4096) f32 2.71, 2.68 and 2.55 ms, and with 8192 2.52, where (512, 1000) was slower
/// again (2026-11-30, 2-core x86-64 VM).
const PREFETCH: usize = 4096;

/// Asks for the elements [`PREFETCH`] bytes after these to be brought near.
#[inline(always)]
pub(crate) fn prefetch<T, const N: usize>(elements: &[T; N]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of_val(elements)).step_by(64) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        let ahead = elements.as_ptr().cast::<i8>().wrapping_add(PREFETCH + line);
        // SAFETY: SSE is part of x86-64, and a prefetch reads nothing: it may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead) };
    }
}

/// A segment of a row as work for an instruction set: folded, collapsed to one lane. What `tile_fn`
/// makes of each tile is written to `kept`, which is as long as the input.
pub(crate) struct FoldSegment<'v, I, T, K, S, F> {
    pub isa: I,
    pub input: &'v [T],
    pub kept: &'v mut [K],
    pub first: i64,
    pub state: S,
    pub tile_fn: &'v F,
}

impl<I, T, K, S, F> Kernel for FoldSegment<'_, I, T, K, S, F>
where
    I: Isa,
    T: Element,
    K: Copy,
    S: States,
    F: Fn(&mut S, &Tile<T::Acc>) -> [K; LANES],
{
    type Output = S::Singles;

    #[inline(always)]
    fn call(self) -> S::Singles {
        fold(
            self.isa,
            self.input,
            self.kept,
            self.first,
            self.state,
            self.tile_fn,
        )
        .reduce()
    }
}

/// A segment of a row as work for an instruction set: summed up, to the bits that [`FoldSegment`] makes of
/// it with a [`Sum`].
pub(crate) struct SumSegment<'v, I, T> {
    pub isa: I,
    pub input: &'v [T],
}

impl<I: Isa, T: Element> Kernel for SumSegment<'_, I, T> {
    type Output = Sum<T::Acc, 1>;

    #[inline(always)]
    fn call(self) -> Sum<T::Acc, 1> {
        let mut cascade = Cascade::new();
        let mut rest = self.input;
        loop {
            let (chunk, tail) = rest.split_at(rest.len().min(CHUNK));
            let sum = sum_chunk(self.isa, chunk);
            if tail.is_empty() {
                let sum = cascade.finish_with(sum, ReduceOp::<LANES>::join);
                return ReduceOp::<LANES>::reduce(sum);
            }
            cascade.push(sum, ReduceOp::<LANES>::join);
            rest = tail;
        }
    }
}

/// The sum of at most [`CHUNK`] elements.
#[inline(always)]
pub(crate) fn sum_chunk<I: Isa, T: Element>(isa: I, chunk: &[T]) -> Sum<T::Acc> {
    let (pairs, rest) = chunk.as_chunks::<{ 2 * LANES }>();
    let mut sum = T::sum_pairs(isa, pairs);
    map_tiles::<false, _, _, _, _>(
        isa,
        rest,
        &mut vec![(); rest.len()],
        0,
        #[inline(always)]
        |tile| {
            sum.accumulate(tile);
            [(); LANES]
        },
        same,
    );
    sum
}

/// A segment of a row whose results, what `tile_fn` makes of each tile, initialise all of `output`,
/// which is as long as the input.
pub(crate) struct EmitSegment<'v, I, T, U, F> {
    pub isa: I,
    pub input: &'v [T],
    pub output: &'v mut [MaybeUninit<U>],
    pub first: i64,
    pub tile_fn: &'v F,
}

impl<I, T, U, F> Kernel for EmitSegment<'_, I, T, U, F>
where
    I: Isa,
    T: Element,
    U: Output<T::Acc>,
    F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES],
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        emit_tiles(self.isa, self.input, self.output, self.first, self.tile_fn);
    }
}

/// The walk of [`EmitSegment`].
#[inline(always)]
pub(crate) fn emit_tiles<I, T, U, F>(
    isa: I,
    input: &[T],
    output: &mut [MaybeUninit<U>],
    first: i64,
    tile_fn: &F,
) where
    I: Isa,
    T: Element,
    U: Output<T::Acc>,
    F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES],
{
    map_tiles::<false, _, _, _, _>(
        isa,
        input,
        output,
        first,
        #[inline(always)]
        |tile| U::narrow(isa, &(*tile_fn)(tile)),
        MaybeUninit::new,
    );
}

/// Elements of a side input at the positions of a tile, widened; zeros past its end.
#[inline(always)]
pub(crate) fn load_side<I: Isa, T: Element, A>(
    isa: I,
    side: &[T],
    tile: &Tile<A>,
) -> [T::Acc; LANES]
where
    A: Copy,
{
    // A position is never negative, and one past the side's end is no place in it.
    let side = side.get(tile.first() as usize..).unwrap_or(&[]);
    match side.first_chunk::<LANES>() {
        Some(full) => T::widen(isa, full),
        None => T::widen_partial(isa, side),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_chunks_and_at_most_256() {
        for width in [
            1,
            SEGMENT,
            SEGMENT + 1,
            1 << 23,
            (1 << 23) + 1,
            1 << 32,
            1 << 40,
        ] {
            let len = segment_len(width);
            assert_eq!(len % CHUNK, 0);
            assert!(width.div_ceil(len) <= MAX_SEGMENTS, "{width}");
        }
        assert_eq!(segment_len(1000), SEGMENT);
    }
}
