//! Two monoids of the same values as one.

use crate::engine::{ReduceOp, Tile};

/// Folds each value into both `A` and `B`. Pairs nest. For states of different values hand a tuple
/// to [`reduce_into`](crate::engine::reduce_into).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair<A, B> {
    /// The first state.
    pub first: A,
    /// The second state.
    pub second: B,
}

impl<A, B, const W: usize> ReduceOp<W> for Pair<A, B>
where
    A: ReduceOp<W>,
    B: ReduceOp<W, Value = A::Value>,
{
    type Value = A::Value;
    type Single = Pair<A::Single, B::Single>;

    #[inline(always)]
    fn identity() -> Self {
        Pair {
            first: A::identity(),
            second: B::identity(),
        }
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: A::Value, position: i64) {
        self.first.accumulate_lane(lane, value, position);
        self.second.accumulate_lane(lane, value, position);
    }
    #[inline(always)]
    fn accumulate(&mut self, tile: &Tile<A::Value, W>) {
        self.first.accumulate(tile);
        self.second.accumulate(tile);
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        Pair {
            first: self.first.join(other.first),
            second: self.second.join(other.second),
        }
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> Self::Single {
        Pair {
            first: self.first.lane(lane),
            second: self.second.lane(lane),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::monoids::laws;
    use crate::engine::{ArgMin, Max, Pair, Sum};

    #[test]
    fn laws_hold_if_they_hold_for_both() {
        laws::check::<Pair<Max<f64>, Pair<Sum<f64>, ArgMin<f64>>>>(&laws::values(70), |a, b| {
            a.first == b.first
                && laws::close(
                    a.second.first.value(),
                    b.second.first.value(),
                    3.3 * 70.0,
                    70.0,
                )
                && a.second.second == b.second.second
        });
    }
}
