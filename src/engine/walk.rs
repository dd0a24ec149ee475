//! Walks over part of a row by one worker, and the fixed pattern that they fold in.

use std::mem::MaybeUninit;

use super::cascade::Cascade;
use super::element::{Element, Output};
use super::isa::{Isa, Kernel};
use super::op::States;
use super::row::sealed::{Map, Parts, Stage};
use super::tile::{Tile, LANES};

/// Elements that the lanes fold one after the other before the state is set aside and joined
/// pairwise: 32 per lane, so that rounding errors grow with 32 + log2 of the width and not with the
/// width.
pub(crate) const CHUNK: usize = 32 * LANES;

/// Elements per segment, the unit in which a row is split over workers.
const SEGMENT: usize = 32 * CHUNK;

/// The most segments of a row, so that the states of a long row stay few.
const MAX_SEGMENTS: usize = 256;

/// Where a row of `width` elements is cut into segments. A function of the width alone: this is
/// what makes a row's bits independent of how many workers there are.
pub(crate) fn segment_len(width: usize) -> usize {
    SEGMENT.max(width.div_ceil(MAX_SEGMENTS).next_multiple_of(CHUNK))
}

/// Folds part of a row, whose first element has position `first`, into `state`: chunk by chunk,
/// the chunks' states joined by a cascade.
#[inline(always)]
pub(crate) fn fold_segment<I, T, M, S>(
    isa: I,
    parts: Parts<'_, T, M>,
    first: i64,
    state: S,
    tile_fn: &impl Fn(&mut S, &Tile<T::Acc>),
) -> S
where
    I: Isa,
    T: Element,
    M: Map<T::Acc>,
    S: States,
{
    let (mut chunk, mut rest) = parts.split(CHUNK);
    let mut folded = state;
    for_each_tile(isa, chunk, first, #[inline(always)] |tile| tile_fn(&mut folded, &tile));
    if rest.input.is_empty() {
        return folded;
    }
    let mut cascade = Cascade::new();
    cascade.push(folded, S::join);
    let mut first = first;
    while !rest.input.is_empty() {
        first += CHUNK as i64;
        (chunk, rest) = rest.split(CHUNK);
        let mut folded = S::identity();
        for_each_tile(isa, chunk, first, #[inline(always)] |tile| tile_fn(&mut folded, &tile));
        cascade.push(folded, S::join);
    }
    cascade.finish(S::join).unwrap_or(state)
}

/// Writes what `tile_fn` makes of each tile of part of a row to all of `output`, which is as long.
#[inline(always)]
pub(crate) fn emit_segment<I, T, M, U>(
    isa: I,
    parts: Parts<'_, T, M>,
    output: &mut [MaybeUninit<U>],
    first: i64,
    tile_fn: &impl Fn(&Tile<T::Acc>) -> [T::Acc; LANES],
) where
    I: Isa,
    T: Element,
    M: Map<T::Acc>,
    U: Output<T::Acc>,
{
    let mut rest = output;
    for_each_tile(isa, parts, first, #[inline(always)] |tile| {
        let values = U::narrow(isa, &tile_fn(&tile));
        let (room, tail) = split_tile(std::mem::take(&mut rest));
        rest = tail;
        match room.first_chunk_mut::<LANES>() {
            Some(room) => *room = values.map(MaybeUninit::new),
            None => copy_partial(room, &values.map(MaybeUninit::new)),
        }
    });
}

/// Calls `visit` with each tile of part of a row.
#[inline(always)]
fn for_each_tile<I, T, M>(
    isa: I,
    parts: Parts<'_, T, M>,
    first: i64,
    mut visit: impl FnMut(Tile<T::Acc>),
) where
    I: Isa,
    T: Element,
    M: Map<T::Acc>,
{
    if !M::MAPS {
        return tiles(isa, parts.input, first, visit);
    }
    let map = parts.map;
    match parts.stage {
        Stage::Off => tiles(isa, parts.input, first, #[inline(always)] |tile| {
            visit(tile.with(map.map(&tile)));
        }),
        Stage::Fill(buffer) => {
            let mut rest = buffer;
            tiles(isa, parts.input, first, #[inline(always)] |tile| {
                let values = map.map(&tile);
                let (room, tail) = split_tile(std::mem::take(&mut rest));
                rest = tail;
                match room.first_chunk_mut::<LANES>() {
                    Some(room) => *room = values,
                    None => copy_partial(room, &values),
                }
                visit(tile.with(values));
            });
        }
        Stage::Read(buffer) => tiles(isa, buffer, first, visit),
    }
}

/// Calls `visit` with the full tiles of `elements`, and then with what is left, as a partial one.
#[inline(always)]
fn tiles<I: Isa, T: Element>(
    isa: I,
    elements: &[T],
    first: i64,
    mut visit: impl FnMut(Tile<T::Acc>),
) {
    let mut rest = elements;
    let mut first = first;
    while let Some((tile, tail)) = rest.split_first_chunk::<LANES>() {
        visit(Tile::new(T::widen(isa, tile), first, LANES));
        first += LANES as i64;
        rest = tail;
    }
    if !rest.is_empty() {
        let tile = load_partial(rest);
        visit(Tile::new(T::widen(isa, &tile), first, rest.len()));
    }
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

/// The first tile of a slice, all of it where it is shorter, and the rest.
#[inline(always)]
fn split_tile<T>(slice: &mut [T]) -> (&mut [T], &mut [T]) {
    let len = slice.len().min(LANES);
    slice.split_at_mut(len)
}

/// Copies fewer than `LANES` elements: in steps of known length, each one a single move, where a
/// copy of unknown length is a call.
#[inline(always)]
fn copy_short<T: Copy>(from: &[T], to: &mut [T]) {
    const { assert!(LANES == 32, "the steps below add up to 31") };
    let len = from.len().min(to.len());
    let mut at = 0;
    for step in [16, 8, 4, 2, 1] {
        if len & step != 0 {
            if let (Some(to), Some(from)) = (to.get_mut(at..at + step), from.get(at..at + step)) {
                to.copy_from_slice(from);
            }
            at += step;
        }
    }
}

/// The elements, fewer than `LANES`, and default ones after them.
#[inline(always)]
fn load_partial<T: Copy + Default>(elements: &[T]) -> [T; LANES] {
    let mut tile = [T::default(); LANES];
    copy_short(elements, &mut tile);
    tile
}

/// Fills `to`, shorter than `LANES`, with the leading values.
#[inline(always)]
fn copy_partial<T: Copy>(to: &mut [T], values: &[T; LANES]) {
    copy_short(values, to);
}

/// [`fold_segment`], collapsed to one lane, as work for an instruction set.
pub(crate) struct FoldSegment<'v, I, T: Element, M, S, F> {
    pub isa: I,
    pub parts: Parts<'v, T, M>,
    pub first: i64,
    pub state: S,
    pub tile_fn: &'v F,
}

impl<I, T, M, S, F> Kernel for FoldSegment<'_, I, T, M, S, F>
where
    I: Isa,
    T: Element,
    M: Map<T::Acc>,
    S: States,
    F: Fn(&mut S, &Tile<T::Acc>),
{
    type Output = S::Singles;

    #[inline(always)]
    fn call(self) -> S::Singles {
        fold_segment(self.isa, self.parts, self.first, self.state, self.tile_fn).reduce()
    }
}

/// [`emit_segment`] as work for an instruction set.
pub(crate) struct EmitSegment<'v, I, T: Element, M, U, F> {
    pub isa: I,
    pub parts: Parts<'v, T, M>,
    pub output: &'v mut [MaybeUninit<U>],
    pub first: i64,
    pub tile_fn: &'v F,
}

impl<I, T, M, U, F> Kernel for EmitSegment<'_, I, T, M, U, F>
where
    I: Isa,
    T: Element,
    M: Map<T::Acc>,
    U: Output<T::Acc>,
    F: Fn(&Tile<T::Acc>) -> [T::Acc; LANES],
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        emit_segment(self.isa, self.parts, self.output, self.first, self.tile_fn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_whole_chunks_and_at_most_256() {
        for width in [1, SEGMENT, SEGMENT + 1, 1 << 23, (1 << 23) + 1, 1 << 32, 1 << 40] {
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
            copy_partial(&mut to[..len], &from);
            assert_eq!(to[..len], from[..len]);
            assert_eq!(to[len], 99);
        }
    }
}
