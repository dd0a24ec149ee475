//! Walks over part of a row by one worker, and the fixed pattern that they fold in.

use std::mem::MaybeUninit;

use super::cascade::Cascade;
use super::element::{Element, Output};
use super::isa::{Isa, Kernel};
use super::op::States;
use super::tile::{Tile, LANES};

/// Elements that the lanes fold one after the other before the state is set aside and joined
/// pairwise: 32 per lane, so that rounding errors grow with 32 + log2 of the width and not with the
/// width. Chunks of 8 per lane are no slower (sum of (8, 1048576) f32 on one thread: 1.29 ms, with 32
/// 1.25; 2026-11-29, 2-core x86-64 VM), but rows of up to a chunk are walked inline.
pub(crate) const CHUNK: usize = 32 * LANES;

/// Elements per segment, the unit in which a row is split over workers: some 2 to 30 microseconds of
/// one worker's time. With an eighth of it, collapsing the lanes of each shows: the same sum takes
/// 1.33 ms (2026-11-29, 2-core x86-64 VM).
const SEGMENT: usize = 32 * CHUNK;

/// The most segments of a row, so that the states of a long row stay few.
const MAX_SEGMENTS: usize = 256;

/// Where a row of `width` elements is cut into segments. A function of the width alone: this is
/// what makes a row's bits independent of how many workers there are.
pub(crate) fn segment_len(width: usize) -> usize {
    SEGMENT.max(width.div_ceil(MAX_SEGMENTS).next_multiple_of(CHUNK))
}

/// Calls `visit` with the tiles of `elements`, the first of which has position `first`; the last
/// tile may be partial.
///
/// The partial tile has a call of its own: with one for both, every full tile would carry a choice
/// between live values and fill, of which the compiler makes vectors of two lanes (layer norm of
/// (512, 1000) f32 on one thread: 543 us, now 337; 2026-11-29, 2-core x86-64 VM).
#[inline(always)]
pub(crate) fn for_each_tile<I: Isa, T: Element>(
    isa: I,
    elements: &[T],
    first: i64,
    mut visit: impl FnMut(&Tile<T::Acc>),
) {
    let mut rest = elements;
    let mut first = first;
    while let Some((tile, tail)) = rest.split_first_chunk::<LANES>() {
        visit(&Tile::new(T::widen(isa, tile), first, LANES));
        first += LANES as i64;
        rest = tail;
    }
    if !rest.is_empty() {
        let tile = load_partial(rest);
        visit(&Tile::new(T::widen(isa, &tile), first, rest.len()));
    }
}

/// Folds the elements, the first of which has position `first`, into `state`: chunk by chunk, the
/// chunks' states joined by a cascade.
#[inline(always)]
fn fold<I: Isa, T: Element, S: States>(
    isa: I,
    elements: &[T],
    first: i64,
    state: S,
    mut tile_fn: impl FnMut(&mut S, &Tile<T::Acc>),
) -> S {
    let mut cascade = Cascade::new();
    let (mut rest, mut first, mut state) = (elements, first, state);
    loop {
        let chunk;
        (chunk, rest) = rest.split_at(rest.len().min(CHUNK));
        for_each_tile(
            isa,
            chunk,
            first,
            #[inline(always)]
            |tile| tile_fn(&mut state, tile),
        );
        if rest.is_empty() {
            // A row of one chunk, the common case, has nothing to join.
            return cascade.finish_with(state, S::join);
        }
        cascade.push(state, S::join);
        first += CHUNK as i64;
        state = S::identity();
    }
}

/// Collapses the lanes of a state that a walk has folded.
///
/// The lanes pass through memory: the stores of neighbouring lanes are where the compiler begins to
/// make vectors, and without them it begins at the tree that joins the lanes, which ends in vectors
/// of two lanes all through the walk (sum of (512, 1000) f32 on one thread: 63 us, now 34;
/// 2026-11-29, 2-core x86-64 VM).
#[inline(always)]
pub(crate) fn collapse<S: States>(state: S) -> S::Singles {
    std::hint::black_box(state).reduce()
}

/// Takes room for `values` off the front of `room` and fills it; what is left may be shorter.
#[inline(always)]
pub(crate) fn put<V: Copy, R>(room: &mut &mut [R], values: &[V; LANES], wrap: impl Fn(V) -> R) {
    let all = std::mem::take(room);
    let len = all.len().min(LANES);
    let (head, tail) = all.split_at_mut(len);
    match head.first_chunk_mut::<LANES>() {
        Some(head) => {
            for (to, from) in head.iter_mut().zip(values) {
                *to = wrap(*from);
            }
        }
        None => copy_short(values, head, wrap),
    }
    *room = tail;
}

/// What [`put`] wraps values in that stay as they are.
#[inline(always)]
pub(crate) fn same<V>(value: V) -> V {
    value
}

/// A segment of a row as work for an instruction set: folded, collapsed to one lane.
pub(crate) struct FoldSegment<'v, I, T, S, F> {
    pub isa: I,
    pub input: &'v [T],
    pub first: i64,
    pub state: S,
    pub tile_fn: &'v F,
}

impl<I, T, S, F> Kernel for FoldSegment<'_, I, T, S, F>
where
    I: Isa,
    T: Element,
    S: States,
    F: Fn(&mut S, &Tile<T::Acc>),
{
    type Output = S::Singles;

    #[inline(always)]
    fn call(self) -> S::Singles {
        let tile_fn = self.tile_fn;
        collapse(fold(
            self.isa,
            self.input,
            self.first,
            self.state,
            #[inline(always)]
            |state, tile| (*tile_fn)(state, tile),
        ))
    }
}

/// Likewise, keeping what `tile_fn` makes of each tile in `kept`, which is as long as the input.
pub(crate) struct StageSegment<'v, I, T: Element, S, F> {
    pub isa: I,
    pub input: &'v [T],
    pub kept: &'v mut [T::Acc],
    pub first: i64,
    pub state: S,
    pub tile_fn: &'v F,
}

impl<I, T, S, F> Kernel for StageSegment<'_, I, T, S, F>
where
    I: Isa,
    T: Element,
    S: States,
    F: Fn(&mut S, &Tile<T::Acc>) -> [T::Acc; LANES],
{
    type Output = S::Singles;

    #[inline(always)]
    fn call(self) -> S::Singles {
        let mut room = self.kept;
        let tile_fn = self.tile_fn;
        collapse(fold(
            self.isa,
            self.input,
            self.first,
            self.state,
            #[inline(always)]
            |state, tile| put(&mut room, &(*tile_fn)(state, tile), same),
        ))
    }
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
    let mut room = output;
    for_each_tile(
        isa,
        input,
        first,
        #[inline(always)]
        |tile| {
            let values = U::narrow(isa, &(*tile_fn)(tile));
            put(&mut room, &values, MaybeUninit::new);
        },
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
    let side = usize::try_from(tile.first())
        .ok()
        .and_then(|first| side.get(first..))
        .unwrap_or(&[]);
    match side.first_chunk::<LANES>() {
        Some(full) => T::widen(isa, full),
        None => T::widen(isa, &load_partial(side)),
    }
}

/// Copies fewer than `LANES` elements: in steps of known length, each one a single move, where a
/// copy of unknown length is a call.
#[inline(always)]
fn copy_short<T: Copy, R>(from: &[T], to: &mut [R], wrap: impl Fn(T) -> R) {
    const { assert!(LANES == 32, "the steps below add up to 31") };
    let len = from.len().min(to.len());
    let mut at = 0;
    for step in [16, 8, 4, 2, 1] {
        if len & step != 0 {
            if let (Some(to), Some(from)) = (to.get_mut(at..at + step), from.get(at..at + step)) {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = wrap(*from);
                }
            }
            at += step;
        }
    }
}

/// The elements, fewer than `LANES`, and default ones after them.
#[inline(always)]
fn load_partial<T: Copy + Default>(elements: &[T]) -> [T; LANES] {
    let mut tile = [T::default(); LANES];
    copy_short(elements, &mut tile, same);
    tile
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

    #[test]
    fn short_copies_move_every_element_and_no_more() {
        let from: [u16; LANES] = std::array::from_fn(|i| i as u16 + 1);
        for len in 0..LANES {
            let tile = load_partial(&from[..len]);
            assert_eq!(tile[..len], from[..len]);
            assert!(tile[len..].iter().all(|v| *v == 0));
            let mut to = vec![99; len + 1];
            let mut room = &mut to[..len];
            put(&mut room, &from, same);
            assert!(room.is_empty());
            assert_eq!(to[..len], from[..len]);
            assert_eq!(to[len], 99);
        }
    }
}
