//! The product.

use crate::engine::number::Number;
use crate::engine::{ReduceOp, Tile, LANES};

/// The product. Identity 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prod<T, const W: usize = LANES>([T; W]);

impl<T: Number> Prod<T, 1> {
    /// The product.
    #[inline(always)]
    pub fn value(self) -> T {
        self.0[0]
    }
}

impl<T: Number, const W: usize> ReduceOp<W> for Prod<T, W> {
    type Value = T;
    type Single = Prod<T, 1>;

    #[inline(always)]
    fn identity() -> Self {
        Prod([T::ONE; W])
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
        self.0[lane] = self.0[lane].mul(value);
    }
    #[inline(always)]
    fn accumulate(&mut self, tile: &Tile<T, W>) {
        for (product, value) in self.0.iter_mut().zip(tile.filled(T::ONE)) {
            *product = product.mul(value);
        }
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let mut products = self.0;
        for (product, other) in products.iter_mut().zip(other.0) {
            *product = product.mul(other);
        }
        Prod(products)
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> Prod<T, 1> {
        Prod([self.0[lane]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::monoids::laws;

    #[test]
    fn laws_hold_up_to_rounding() {
        let values: Vec<f64> = laws::values(70).iter().map(|v| 1.0 + v / 8.0).collect();
        laws::check::<Prod<f64>>(&values, |a, b| {
            laws::close(a.value(), b.value(), b.value().abs(), 2.0 * 70.0)
        });
        let integers: Vec<i64> = (0..70).map(|k| 2 * k - 31).collect();
        laws::check::<Prod<i64>>(&integers, |a, b| a == b);
    }
}
