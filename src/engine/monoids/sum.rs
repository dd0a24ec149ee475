//! Sums of values and of squares.

use crate::engine::number::{Float, Number};
use crate::engine::{ReduceOp, Reducer, Tile, LANES};

/// The sum. Identity -0.0, so that the sum of one value is that value, sign of zero included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sum<T, const W: usize = LANES>([T; W]);

impl<T: Number> Sum<T, 1> {
    /// The state of one value.
    #[inline(always)]
    pub fn of(value: T) -> Self {
        Sum([value])
    }

    /// The sum.
    #[inline(always)]
    pub fn value(self) -> T {
        self.0[0]
    }
}

impl<T, const W: usize> Sum<T, W> {
    /// The state that holds these sums.
    #[inline(always)]
    pub(crate) fn of_lanes(lanes: [T; W]) -> Self {
        Sum(lanes)
    }
}

impl<T: Number, const W: usize> ReduceOp<W> for Sum<T, W> {
    type Value = T;
    type Single = Sum<T, 1>;

    #[inline(always)]
    fn identity() -> Self {
        Sum([T::ADD_IDENTITY; W])
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
        self.0[lane] = self.0[lane].add(value);
    }
    #[inline(always)]
    fn accumulate(&mut self, tile: &Tile<T, W>) {
        for (sum, value) in self.0.iter_mut().zip(tile.filled(T::ADD_IDENTITY)) {
            *sum = sum.add(value);
        }
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let mut sums = self.0;
        for (sum, other) in sums.iter_mut().zip(other.0) {
            *sum = sum.add(other);
        }
        Sum(sums)
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> Sum<T, 1> {
        Sum([self.0[lane]])
    }
    #[inline(always)]
    fn reduce(self) -> Sum<T, 1> {
        Sum([T::tree_sum(self.0)])
    }
    #[inline(always)]
    fn join_parallel<R: Reducer>(states: &[Sum<T, 1>], reducer: &R) -> Sum<T, 1> {
        Sum::of(reducer.sum(states.iter().map(|state| state.value())))
    }
}

/// The sum of squares, each square added by a fused multiply-add.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumOfSquares<T, const W: usize = LANES>([T; W]);

impl<T: Float> SumOfSquares<T, 1> {
    /// The sum of squares: 0 of no values, infinite where it is beyond the type.
    #[inline(always)]
    pub fn value(self) -> T {
        self.0[0]
    }
}

impl<T: Float, const W: usize> ReduceOp<W> for SumOfSquares<T, W> {
    type Value = T;
    type Single = SumOfSquares<T, 1>;

    #[inline(always)]
    fn identity() -> Self {
        SumOfSquares([T::ZERO; W])
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
        self.0[lane] = value.mul_add(value, self.0[lane]);
    }
    #[inline(always)]
    fn accumulate(&mut self, tile: &Tile<T, W>) {
        for (sum, value) in self.0.iter_mut().zip(tile.filled(T::ZERO)) {
            *sum = value.mul_add(value, *sum);
        }
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let mut sums = self.0;
        for (sum, other) in sums.iter_mut().zip(other.0) {
            *sum = sum.add(other);
        }
        SumOfSquares(sums)
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> SumOfSquares<T, 1> {
        SumOfSquares([self.0[lane]])
    }
    #[inline(always)]
    fn reduce(self) -> SumOfSquares<T, 1> {
        SumOfSquares([T::tree_sum(self.0)])
    }
    #[inline(always)]
    fn join_parallel<R: Reducer>(states: &[SumOfSquares<T, 1>], reducer: &R) -> SumOfSquares<T, 1> {
        SumOfSquares([reducer.sum(states.iter().map(|state| state.value()))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::monoids::laws;

    #[test]
    fn laws_hold_up_to_rounding() {
        let values = laws::values(70);
        laws::check::<Sum<f64>>(&values, |a, b| {
            laws::close(a.value(), b.value(), 3.3 * 70.0, 70.0)
        });
        laws::check::<SumOfSquares<f64>>(&values, |a, b| {
            laws::close(a.value(), b.value(), 11.0 * 70.0, 70.0)
        });
        let integers: Vec<i64> = (0..70).map(|k| k * k - 900).collect();
        laws::check::<Sum<i64>>(&integers, |a, b| a == b);
    }

    #[test]
    fn a_sum_of_one_value_is_that_value() {
        for value in [0.0f32, -0.0, 1e-45, f32::INFINITY] {
            let mut sum = Sum::<f32, 1>::identity();
            sum.accumulate_lane(0, value, 0);
            assert_eq!(sum.value().to_bits(), value.to_bits());
        }
    }
}
