//! `log(sum(exp(x)))` in one walk.

use crate::engine::number::{self, Float};
use crate::engine::{ReduceOp, LANES};

/// The largest value so far and the sum of exponentials relative to it (Milakov and Gimelshein,
/// "Online normalizer calculation for softmax", 2018). One exponential per value: of the two, the
/// running maximum and the new value, the larger has exponential 1.
///
/// Rows of -inf give -inf, a +inf gives +inf, a NaN gives NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnlineLogSumExp<T, const W: usize = LANES> {
    max: [T; W],
    sum: [T; W],
}

impl<T: Float> OnlineLogSumExp<T, 1> {
    /// The largest value; -inf of no values, NaN if there is one.
    #[inline(always)]
    pub fn max(self) -> T {
        self.max[0]
    }

    /// The sum of `exp(x - max)`; 0 of no values and of a row of -inf.
    #[inline(always)]
    pub fn sum(self) -> T {
        self.sum[0]
    }

    /// `log(sum(exp(x)))`.
    #[inline(always)]
    pub fn value(self) -> T {
        if self.max[0] == T::LOWEST {
            return T::LOWEST;
        }
        self.max[0].add(self.sum[0].ln())
    }
}

impl<T: Float, const W: usize> OnlineLogSumExp<T, W> {
    /// Joins `sum` exponentials relative to `max` onto a lane.
    #[inline(always)]
    fn add(&mut self, lane: usize, max: T, sum: T) {
        let old = self.max[lane];
        let larger = number::max(old, max);
        // The factor of the side that has the smaller maximum. Where both are equal it is 1, which
        // `inf - inf` would not give; where the larger is -inf both sums are 0.
        let smaller = if max > old { old } else { max };
        let factor = smaller.sub(larger).exp();
        let factor = if smaller == larger { T::ONE } else { factor };
        let (kept, scaled) = if max > old {
            (sum, self.sum[lane])
        } else {
            (self.sum[lane], sum)
        };
        self.max[lane] = larger;
        self.sum[lane] = scaled.mul_add(factor, kept);
    }
}

impl<T: Float, const W: usize> ReduceOp<W> for OnlineLogSumExp<T, W> {
    type Value = T;
    type Single = OnlineLogSumExp<T, 1>;

    #[inline(always)]
    fn identity() -> Self {
        OnlineLogSumExp {
            max: [T::LOWEST; W],
            sum: [T::ZERO; W],
        }
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
        let mass = if value == T::LOWEST { T::ZERO } else { T::ONE };
        self.add(lane, value, mass);
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let mut joined = self;
        for lane in 0..W {
            joined.add(lane, other.max[lane], other.sum[lane]);
        }
        joined
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> OnlineLogSumExp<T, 1> {
        OnlineLogSumExp {
            max: [self.max[lane]],
            sum: [self.sum[lane]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::monoids::laws;

    fn value(row: &[f64]) -> f64 {
        let mut state = OnlineLogSumExp::<f64, 1>::identity();
        for v in row {
            state.accumulate_lane(0, *v, 0);
        }
        state.value()
    }

    #[test]
    fn laws_hold_up_to_rounding_with_infinities_and_nan() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let mut rows = vec![laws::values(70), vec![-inf; 40], vec![inf; 3]];
        for special in [inf, -inf, nan] {
            let mut row = laws::values(70);
            row[0] = special;
            row[34] = special;
            rows.push(row);
        }
        for row in &rows {
            laws::check::<OnlineLogSumExp<f64>>(row, |a, b| {
                laws::close(a.value(), b.value(), 8.0, 3.0 * 70.0)
            });
        }
    }

    #[test]
    fn values_of_known_rows() {
        let inf = f64::INFINITY;
        assert_eq!(value(&[]), -inf);
        assert_eq!(value(&[-inf, -inf]), -inf);
        assert_eq!(value(&[inf, 2.0, 3.0]), inf);
        assert_eq!(value(&[inf, inf]), inf);
        assert!(value(&[inf, f64::NAN]).is_nan());
        assert_eq!(value(&[3.25]), 3.25);
        assert_eq!(value(&[-inf, 3.25, -inf]), 3.25);
        assert!((value(&[-100.0, -100.0]) + 99.306_852_819_440_05).abs() < 1e-13);
    }
}
