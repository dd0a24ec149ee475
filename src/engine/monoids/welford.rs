//! Mean and variance in one walk.

use crate::engine::number::Float;
use crate::engine::{ReduceOp, LANES};

/// Count, mean and sum of squared deviations, updated value by value (Welford 1962) and joined by
/// the formula of Chan, Golub and LeVeque (1983).
///
/// The squares are taken of deviations, never of the values, so nothing cancels. A two-pass
/// variance with corrected mean, as this crate's layer norm takes it, is more accurate still where
/// a row can be walked twice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Welford<T, const W: usize = LANES> {
    count: [T; W],
    mean: [T; W],
    squares: [T; W],
}

impl<T: Float> Welford<T, 1> {
    /// How many values there were; exact up to 2^24 per lane in `f32`.
    #[inline(always)]
    pub fn count(self) -> T {
        self.count[0]
    }

    /// The mean; NaN of no values.
    #[inline(always)]
    pub fn mean(self) -> T {
        if self.count[0] == T::ZERO {
            T::NAN
        } else {
            self.mean[0]
        }
    }

    /// The variance with `correction` taken off the count: 0 for that of a population, 1 for the
    /// unbiased one of a sample. NaN where nothing is left of the count.
    #[inline(always)]
    pub fn variance(self, correction: T) -> T {
        let degrees = self.count[0].sub(correction);
        if degrees > T::ZERO {
            self.squares[0].div(degrees)
        } else {
            T::NAN
        }
    }
}

impl<T: Float, const W: usize> ReduceOp<W> for Welford<T, W> {
    type Value = T;
    type Single = Welford<T, 1>;

    #[inline(always)]
    fn identity() -> Self {
        Welford {
            count: [T::ZERO; W],
            mean: [T::ZERO; W],
            squares: [T::ZERO; W],
        }
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
        let count = self.count[lane].add(T::ONE);
        let delta = value.sub(self.mean[lane]);
        let mean = self.mean[lane].add(delta.div(count));
        self.count[lane] = count;
        self.mean[lane] = mean;
        self.squares[lane] = delta.mul_add(value.sub(mean), self.squares[lane]);
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let mut joined = self;
        for lane in 0..W {
            let count = self.count[lane].add(other.count[lane]);
            let delta = other.mean[lane].sub(self.mean[lane]);
            let share = if other.count[lane] == T::ZERO {
                T::ZERO
            } else {
                other.count[lane].div(count)
            };
            // A side without values has mean 0, which is not one to move by or to measure from.
            let both = (self.count[lane] > T::ZERO) & (other.count[lane] > T::ZERO);
            let shift = if both { delta.mul(share) } else { T::ZERO };
            joined.count[lane] = count;
            joined.mean[lane] = if self.count[lane] == T::ZERO {
                other.mean[lane]
            } else {
                self.mean[lane].add(shift)
            };
            let between = if both {
                delta.mul(shift).mul(self.count[lane])
            } else {
                T::ZERO
            };
            joined.squares[lane] = self.squares[lane].add(other.squares[lane]).add(between);
        }
        joined
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> Welford<T, 1> {
        Welford {
            count: [self.count[lane]],
            mean: [self.mean[lane]],
            squares: [self.squares[lane]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::monoids::laws;

    #[test]
    fn laws_hold_up_to_rounding() {
        let values: Vec<f64> = laws::values(70).iter().map(|v| v + 100.0).collect();
        laws::check::<Welford<f64>>(&values, |a, b| {
            a.count() == b.count()
                && laws::close(a.mean(), b.mean(), 100.0, 70.0)
                && laws::close(
                    a.variance(0.0),
                    b.variance(0.0),
                    10.0 + 100.0,
                    2.0 * 70.0,
                )
        });
    }

    #[test]
    fn mean_and_variance_of_a_known_row() {
        let mut state = Welford::<f64, 1>::identity();
        for v in [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0] {
            state.accumulate_lane(0, v, 0);
        }
        assert_eq!(state.mean(), 5.0);
        assert_eq!(state.variance(0.0), 4.0);
        assert_eq!(state.variance(1.0), 32.0 / 7.0);
        assert!(Welford::<f64, 1>::identity().mean().is_nan());
        assert!(Welford::<f64, 1>::identity().variance(0.0).is_nan());
    }
}
