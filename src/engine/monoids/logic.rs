//! Any, all, and the count of values that are not zero. A NaN is not zero.

use crate::engine::number::Number;
use crate::engine::{ReduceOp, LANES};

macro_rules! logical {
    ($(#[$doc:meta])* $name:ident, $identity:literal, $op:tt) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct $name<T, const W: usize = LANES> {
            holds: [bool; W],
            of: std::marker::PhantomData<T>,
        }

        impl<T> $name<T, 1> {
            /// The answer.
            #[inline(always)]
            pub fn value(self) -> bool {
                self.holds[0]
            }
        }

        impl<T: Number, const W: usize> ReduceOp<W> for $name<T, W> {
            type Value = T;
            type Single = $name<T, 1>;

            #[inline(always)]
            fn identity() -> Self {
                $name {
                    holds: [$identity; W],
                    of: std::marker::PhantomData,
                }
            }
            #[inline(always)]
            fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
                self.holds[lane] $op value != T::ZERO;
            }
            #[inline(always)]
            fn join(self, other: Self) -> Self {
                let mut joined = self;
                for (holds, other) in joined.holds.iter_mut().zip(other.holds) {
                    *holds $op other;
                }
                joined
            }
            #[inline(always)]
            fn lane(&self, lane: usize) -> $name<T, 1> {
                $name {
                    holds: [self.holds[lane]],
                    of: std::marker::PhantomData,
                }
            }
        }
    };
}

logical!(
    /// True where some value is not zero. Identity false.
    Any, false, |=
);
logical!(
    /// True where no value is zero. Identity true.
    All, true, &=
);

/// How many values are not zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Count<T, const W: usize = LANES> {
    count: [i64; W],
    of: std::marker::PhantomData<T>,
}

impl<T> Count<T, 1> {
    /// The count.
    #[inline(always)]
    pub fn value(self) -> i64 {
        self.count[0]
    }
}

impl<T: Number, const W: usize> ReduceOp<W> for Count<T, W> {
    type Value = T;
    type Single = Count<T, 1>;

    #[inline(always)]
    fn identity() -> Self {
        Count {
            count: [0; W],
            of: std::marker::PhantomData,
        }
    }
    #[inline(always)]
    fn accumulate_lane(&mut self, lane: usize, value: T, _: i64) {
        self.count[lane] += i64::from(value != T::ZERO);
    }
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let mut joined = self;
        for (count, other) in joined.count.iter_mut().zip(other.count) {
            *count += other;
        }
        joined
    }
    #[inline(always)]
    fn lane(&self, lane: usize) -> Count<T, 1> {
        Count {
            count: [self.count[lane]],
            of: std::marker::PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::monoids::laws;

    #[test]
    fn laws_hold_exactly() {
        for zero_every in [1, 2, 7, 1000] {
            let row: Vec<f64> = (0..70)
                .map(|k| if k % zero_every == 0 { 0.0 } else { f64::NAN })
                .collect();
            laws::check::<Any<f64>>(&row, |a, b| a.value() == b.value());
            laws::check::<All<f64>>(&row, |a, b| a.value() == b.value());
            laws::check::<Count<f64>>(&row, |a, b| a.value() == b.value());
        }
    }

    #[test]
    fn nothing_is_not_any_and_is_all() {
        assert!(!Any::<f32, 1>::identity().value());
        assert!(All::<f32, 1>::identity().value());
        let mut all = All::<f32, 1>::identity();
        all.accumulate_lane(0, -0.0, 0);
        assert!(!all.value(), "-0.0 is zero");
    }
}
