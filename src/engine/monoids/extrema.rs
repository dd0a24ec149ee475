//! Largest and smallest values. A NaN wins, whatever else is in the row.

use crate::engine::number::{self, Number};
use crate::engine::{ReduceOp, Reducer, Tile, LANES};

macro_rules! extremum {
    ($(#[$doc:meta])* $name:ident, $pick:path, $identity:ident, $reducer:ident, $of:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name<T, const W: usize = LANES>([T; W]);

        impl<T: Number> $name<T, 1> {
            /// The value.
            #[inline(always)]
            pub fn value(self) -> T {
                self.0[0]
            }
        }

        impl<T: Number, const W: usize> ReduceOp<W> for $name<T, W> {
            type Value = T;
            type Single = $name<T, 1>;

            #[inline(always)]
            fn identity() -> Self {
                $name([T::$identity; W])
            }
            #[inline(always)]
            fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
                let of: fn(T) -> T = $of;
                self.0[lane] = $pick(self.0[lane], of(value));
            }
            #[inline(always)]
            fn accumulate(&mut self, tile: &Tile<T, W>) {
                let of: fn(T) -> T = $of;
                for (best, value) in self.0.iter_mut().zip(tile.filled(T::$identity)) {
                    // The identity of AbsMax, 0, is its own magnitude; the others map nothing.
                    *best = $pick(*best, of(value));
                }
            }
            #[inline(always)]
            fn join(self, other: Self) -> Self {
                let mut best = self.0;
                for (best, other) in best.iter_mut().zip(other.0) {
                    *best = $pick(*best, other);
                }
                $name(best)
            }
            #[inline(always)]
            fn lane(&self, lane: usize) -> $name<T, 1> {
                $name([self.0[lane]])
            }
            #[inline(always)]
            fn join_parallel<R: Reducer>(
                states: &[$name<T, 1>],
                reducer: &R,
            ) -> $name<T, 1> {
                $name([reducer.$reducer(states.iter().map(|state| state.value()))])
            }
        }
    };
}

extremum!(
    /// The largest value. Identity -inf (the lowest integer), so that a row of -inf gives -inf.
    Max, number::max, LOWEST, max, |v| v
);
extremum!(
    /// The smallest value. Identity +inf (the highest integer).
    Min, number::min, HIGHEST, min, |v| v
);
extremum!(
    /// The largest magnitude. Identity 0.
    AbsMax, number::max, ZERO, max, T::abs
);

/// The smallest and the largest value in one walk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MinMax<T, const W: usize = LANES> {
    min: Min<T, W>,
    max: Max<T, W>,
}

impl<T: Number> MinMax<T, 1> {
    /// The smallest value.
    #[inline(always)]
    pub fn min(self) -> T {
        self.min.value()
    }

    /// The largest value.
    #[inline(always)]
    pub fn max(self) -> T {
        self.max.value()
    }
}

impl<T: Number, const W: usize> ReduceOp<W> for MinMax<T, W> {
    type Value = T;
    type Single = MinMax<T, 1>;

    #[inline(always)]
    fn identity() -> Self {
        MinMax {
            min: Min::identity(),
            max: Max::identity(),
        }
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: T, position: i64) {
        self.min.accumulate_lane(lane, value, position);
        self.max.accumulate_lane(lane, value, position);
    }
    #[inline(always)]
    fn accumulate(&mut self, tile: &Tile<T, W>) {
        self.min.accumulate(tile);
        self.max.accumulate(tile);
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        MinMax {
            min: self.min.join(other.min),
            max: self.max.join(other.max),
        }
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> MinMax<T, 1> {
        MinMax {
            min: self.min.lane(lane),
            max: self.max.lane(lane),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::monoids::laws;

    /// Equal, or both NaN.
    fn same(a: f64, b: f64) -> bool {
        a == b || (a.is_nan() && b.is_nan())
    }

    #[test]
    fn laws_hold_exactly_with_nan_and_infinities() {
        let mut rows = vec![laws::values(70), vec![f64::NEG_INFINITY; 40], vec![f64::INFINITY; 40]];
        for at in [0, 33, 69] {
            let mut row = laws::values(70);
            row[at] = f64::NAN;
            rows.push(row);
        }
        for row in &rows {
            laws::check::<Max<f64>>(row, |a, b| same(a.value(), b.value()));
            laws::check::<Min<f64>>(row, |a, b| same(a.value(), b.value()));
            laws::check::<AbsMax<f64>>(row, |a, b| same(a.value(), b.value()));
            laws::check::<MinMax<f64>>(row, |a, b| same(a.min(), b.min()) && same(a.max(), b.max()));
        }
        let integers: Vec<i64> = (0..70).map(|k| (k * 37) % 101 - 50).collect();
        laws::check::<Max<i64>>(&integers, |a, b| a == b);
        laws::check::<Max<i64>>(&[i64::MIN; 3], |a, b| a == b);
        laws::check::<MinMax<i64>>(&integers, |a, b| a == b);
    }

    #[test]
    fn values_are_those_of_a_plain_loop() {
        let row = laws::values(70);
        let mut state = MinMax::<f64, 1>::identity();
        let mut abs = AbsMax::<f64, 1>::identity();
        for v in &row {
            state.accumulate_lane(0, *v, 0);
            abs.accumulate_lane(0, *v, 0);
        }
        assert_eq!(state.max(), row.iter().copied().fold(f64::MIN, f64::max));
        assert_eq!(state.min(), row.iter().copied().fold(f64::MAX, f64::min));
        assert_eq!(abs.value(), state.max().max(-state.min()));
    }
}
