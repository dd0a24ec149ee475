//! The unit that a walk hands to a body: a few neighbouring values of a row.

/// Values per tile, and lanes per accumulator, on every CPU.
///
/// One number for all instruction sets, so that a row folds the same way, and gives the same bits,
/// on AVX2 and on AVX-512. 32 `f32` are two AVX-512 or four AVX2 registers: enough independent
/// additions to hide their latency, few enough that a short row does not pay for lanes that it
/// cannot fill. With 64, the sum of (65536, 32) f32 takes 3.26 ms on one thread instead of 0.47,
/// and that of (512, 4096) 0.29 ms instead of 0.30 (2026-11-29, 2-core x86-64 VM).
pub const LANES: usize = 32;

/// `W` neighbouring values of a row with their positions along the axis.
///
/// The last tile of a row may be partial: then only the first [`live`](Tile::live) values are the
/// row's, and the others are fill that no result may depend on. [`ReduceOp::accumulate`] leaves
/// them out by itself, and a walk that emits drops them.
///
/// [`ReduceOp::accumulate`]: super::ReduceOp::accumulate
#[derive(Debug, Clone, Copy)]
pub struct Tile<A, const W: usize = LANES> {
    values: [A; W],
    first: i64,
    live: usize,
}

impl<A: Copy, const W: usize> Tile<A, W> {
    /// A tile whose first value lies at position `first` and whose first `live` values are the
    /// row's. `live` is taken as `W` where it is larger.
    #[inline(always)]
    pub fn new(values: [A; W], first: i64, live: usize) -> Self {
        Tile {
            values,
            first,
            live: if live < W { live } else { W },
        }
    }

    /// All `W` values; those from [`live`](Tile::live) on are fill.
    #[inline(always)]
    pub fn values(&self) -> [A; W] {
        self.values
    }

    /// The values, with `fill` in the place of those that are not the row's.
    #[inline(always)]
    pub fn filled(&self, fill: A) -> [A; W] {
        let mut values = self.values;
        if self.live != W {
            for (value, live) in values.iter_mut().zip(live_lanes::<W>(self.live)) {
                *value = if *live != 0 { *value } else { fill };
            }
        }
        values
    }

    /// The position of the first value along the axis; the others follow it one by one.
    #[inline(always)]
    pub fn first(&self) -> i64 {
        self.first
    }

    /// The position of the value in `lane`.
    #[inline(always)]
    pub fn position(&self, lane: usize) -> i64 {
        self.first + lane as i64
    }

    /// The positions of all lanes.
    #[inline(always)]
    pub fn positions(&self) -> [i64; W] {
        let mut positions = [0; W];
        for (lane, position) in positions.iter_mut().enumerate() {
            *position = self.first + lane as i64;
        }
        positions
    }

    /// How many values, counted from the first, are the row's.
    #[inline(always)]
    pub fn live(&self) -> usize {
        self.live
    }

    /// True where all `W` values are the row's.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.live == W
    }

    /// The tile with `f` applied to each value.
    #[inline(always)]
    pub fn map<B: Copy + Default>(&self, f: impl Fn(A) -> B) -> Tile<B, W> {
        let mut values = [B::default(); W];
        for (to, from) in values.iter_mut().zip(self.values) {
            *to = f(from);
        }
        self.with(values)
    }

    /// The values combined with others, lane by lane.
    #[inline(always)]
    pub fn zip<B: Copy>(&self, others: &[B; W], f: impl Fn(A, B) -> A) -> [A; W] {
        let mut values = self.values;
        for (value, other) in values.iter_mut().zip(others) {
            *value = f(*value, *other);
        }
        values
    }

    /// Other values at the same positions.
    #[inline(always)]
    pub fn with<B: Copy>(&self, values: [B; W]) -> Tile<B, W> {
        Tile {
            values,
            first: self.first,
            live: self.live,
        }
    }
}

/// For each of `W` lanes a nonzero word if it is among the first `live`.
///
/// A window of a table, so that the compiler sees one vector of words to test and not `W`
/// comparisons.
#[inline(always)]
fn live_lanes<const W: usize>(live: usize) -> &'static [u32] {
    struct Table<const W: usize>;
    impl<const W: usize> Table<W> {
        const ROWS: &'static [[u32; W]; 2] = &[[u32::MAX; W], [0; W]];
    }
    let table = Table::<W>::ROWS.as_flattened();
    let dead = W - live.min(W);
    &table[dead..dead + W]
}

/// Copies fewer than `LANES` elements: in steps of known length, each one a single move, where a
/// copy of unknown length is a call.
#[inline(always)]
pub(crate) fn copy_short<T: Copy, R>(from: &[T], to: &mut [R], wrap: impl Fn(T) -> R) {
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
pub(crate) fn copy_partial<T: Copy + Default>(elements: &[T]) -> [T; LANES] {
    let mut tile = [T::default(); LANES];
    copy_short(elements, &mut tile, |value| value);
    tile
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_tile_says_which_values_are_the_rows() {
        let tile = Tile::<f32, 4>::new([1.0, 2.0, 9.0, 9.0], 40, 2);
        assert!(!tile.is_full());
        assert_eq!(tile.live(), 2);
        assert_eq!(tile.position(1), 41);
        assert_eq!(tile.filled(0.0), [1.0, 2.0, 0.0, 0.0]);
        assert_eq!(tile.map(|v| v * 2.0).filled(-1.0), [2.0, 4.0, -1.0, -1.0]);
    }

    #[test]
    fn no_more_lanes_are_live_than_there_are() {
        let tile = Tile::<f32, 4>::new([1.0; 4], 0, 9);
        assert!(tile.is_full());
        assert_eq!(tile.live(), 4);
    }

    #[test]
    fn short_copies_move_every_element_and_no_more() {
        let from: [u16; LANES] = std::array::from_fn(|i| i as u16 + 1);
        for len in 0..LANES {
            let tile = copy_partial(&from[..len]);
            assert_eq!(tile[..len], from[..len]);
            assert!(tile[len..].iter().all(|v| *v == 0));
            let mut to = vec![99; len + 1];
            let room = &mut to[..len];
            copy_short(&from, room, |value| value);
            assert_eq!(to[..len], from[..len]);
            assert_eq!(to[len], 99);
        }
    }
}
