//! Where the largest and the smallest value are. The first NaN wins; ties go to the lowest index.

use crate::engine::number::Number;
use crate::engine::{ReduceOp, Tile, LANES};

/// The index of a lane without values: above every index, so that any value at all wins against it.
const NONE: i64 = i64::MAX;

macro_rules! arg_extremum {
    ($(#[$doc:meta])* $name:ident, $beats:tt, $identity:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name<T, const W: usize = LANES> {
            best: [T; W],
            index: [i64; W],
        }

        impl<T: Number> $name<T, 1> {
            /// The index; `None` of no values.
            #[inline(always)]
            pub fn index(self) -> Option<i64> {
                (self.index[0] != NONE).then_some(self.index[0])
            }

            /// The value there; the identity of no values.
            #[inline(always)]
            pub fn value(self) -> T {
                self.best[0]
            }
        }

        impl<T: Number, const W: usize> $name<T, W> {
            /// True where the value at `index` is to take the place of the best in `lane`.
            ///
            /// Written without short cuts, as one mask over lanes.
            #[inline(always)]
            fn wins(&self, lane: usize, value: T, index: i64) -> bool {
                let best = self.best[lane];
                let above = (value $beats best) | (value.is_nan() & !best.is_nan());
                let equal = (value == best) | (value.is_nan() & best.is_nan());
                above | (equal & (index < self.index[lane]))
            }

            #[inline(always)]
            fn take(&mut self, lane: usize, value: T, index: i64) {
                let wins = self.wins(lane, value, index);
                self.best[lane] = if wins { value } else { self.best[lane] };
                self.index[lane] = if wins { index } else { self.index[lane] };
            }
        }

        impl<T: Number, const W: usize> ReduceOp<W> for $name<T, W> {
            type Value = T;
            type Single = $name<T, 1>;

            #[inline(always)]
            fn identity() -> Self {
                $name {
                    best: [T::$identity; W],
                    index: [NONE; W],
                }
            }
            #[inline(always)]
            fn accumulate_lane(&mut self, lane: usize, value: T, position: i64) {
                self.take(lane, value, position);
            }
            #[inline(always)]
            fn accumulate(&mut self, tile: &Tile<T, W>) {
                // Fill has the identity's value and index, which win against nothing.
                let values = tile.filled(T::$identity);
                for lane in 0..W {
                    let index = if lane < tile.live() { tile.position(lane) } else { NONE };
                    self.take(lane, values[lane], index);
                }
            }
            #[inline(always)]
            fn join(self, other: Self) -> Self {
                let mut joined = self;
                for lane in 0..W {
                    joined.take(lane, other.best[lane], other.index[lane]);
                }
                joined
            }
            #[inline(always)]
            fn lane(&self, lane: usize) -> $name<T, 1> {
                $name {
                    best: [self.best[lane]],
                    index: [self.index[lane]],
                }
            }
        }
    };
}

arg_extremum!(
    /// The index of the largest value: of the first NaN if there is one, else of the first of equal
    /// values. -0.0 equals 0.0.
    ArgMax, >, LOWEST
);
arg_extremum!(
    /// The index of the smallest value: of the first NaN if there is one, else of the first of
    /// equal values. -0.0 equals 0.0.
    ArgMin, <, HIGHEST
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::monoids::laws;

    fn arg_max(row: &[f64]) -> Option<i64> {
        let mut state = ArgMax::<f64, 1>::identity();
        for (i, v) in row.iter().enumerate() {
            state.accumulate_lane(0, *v, i as i64);
        }
        state.index()
    }

    #[test]
    fn laws_hold_exactly_with_ties_nan_and_infinities() {
        let mut rows = vec![
            laws::values(70),
            vec![1.0; 70],
            vec![f64::NEG_INFINITY; 40],
            vec![f64::INFINITY; 40],
            vec![f64::NAN; 40],
        ];
        for at in [0, 33, 69] {
            let mut row = laws::values(70);
            row[at] = f64::NAN;
            row[69] = f64::NAN;
            rows.push(row);
        }
        for row in &rows {
            laws::check::<ArgMax<f64>>(row, |a, b| a.index() == b.index());
            laws::check::<ArgMin<f64>>(row, |a, b| a.index() == b.index());
        }
        laws::check::<ArgMax<i64>>(&[i64::MIN; 5], |a, b| a == b);
    }

    #[test]
    fn rulings_on_nan_and_ties() {
        let nan = f64::NAN;
        assert_eq!(arg_max(&[]), None);
        assert_eq!(arg_max(&[3.0, nan, 1.0, 5.0, nan]), Some(1));
        assert_eq!(arg_max(&[f64::INFINITY, nan, f64::NEG_INFINITY]), Some(1));
        assert_eq!(arg_max(&[1.0, 5.0, 5.0, 3.0]), Some(1));
        assert_eq!(arg_max(&[-0.0, 0.0]), Some(0));
        assert_eq!(arg_max(&[0.0, -0.0]), Some(0));
        assert_eq!(arg_max(&[f64::NEG_INFINITY; 4]), Some(0));
    }
}
