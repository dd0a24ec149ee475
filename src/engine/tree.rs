//! Joining the lanes of a state into one.

use super::number::Number;

/// Joins lanes: the upper half onto the lower, until one is left.
#[inline(always)]
pub(crate) fn tree<S: Copy, const W: usize>(lanes: [S; W], join: impl Fn(S, S) -> S) -> S {
    const { assert!(W > 0, "there is at least one lane") };
    let mut lanes = lanes;
    let mut left = W;
    while left > 1 {
        let half = left.div_ceil(2);
        for lane in half..left {
            lanes[lane - half] = join(lanes[lane - half], lanes[lane]);
        }
        left = half;
    }
    lanes[0]
}

/// Trees of the joins that most monoids are made of, with the bits of [`tree`].
///
/// For `f32` on x86-64 they are written in SSE2, which every x86-64 has: of [`tree`] the compiler
/// makes one scalar operation per lane, which for a row of 32 is most of the work (max of (65536, 32)
/// f32 on one thread: 1.10 ms, now 0.69; 2026-11-29, 2-core x86-64 VM).
pub trait Tree: Sized + Copy {
    #[doc(hidden)]
    fn tree_sum<const W: usize>(lanes: [Self; W]) -> Self;
    #[doc(hidden)]
    fn tree_max<const W: usize>(lanes: [Self; W]) -> Self;
    #[doc(hidden)]
    fn tree_min<const W: usize>(lanes: [Self; W]) -> Self;
}

macro_rules! plain_trees {
    ($($t:ident),+) => {$(
        impl Tree for $t {
            #[inline(always)]
            fn tree_sum<const W: usize>(lanes: [Self; W]) -> Self {
                tree(lanes, Number::add)
            }
            #[inline(always)]
            fn tree_max<const W: usize>(lanes: [Self; W]) -> Self {
                tree(lanes, super::number::max)
            }
            #[inline(always)]
            fn tree_min<const W: usize>(lanes: [Self; W]) -> Self {
                tree(lanes, super::number::min)
            }
        }
    )+};
}

plain_trees!(f64, i64);
#[cfg(not(target_arch = "x86_64"))]
plain_trees!(f32);

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use super::{tree, Number, Tree};
    use crate::engine::number;
    use std::arch::x86_64::*;

    // SAFETY, for the intrinsics below: SSE and SSE2 are part of x86-64.

    #[inline(always)]
    fn add(a: __m128, b: __m128) -> __m128 {
        // SAFETY: see above.
        unsafe { _mm_add_ps(a, b) }
    }

    /// `b` where `wins`, else `a`.
    #[inline(always)]
    fn select(a: __m128, b: __m128, wins: __m128) -> __m128 {
        // SAFETY: see above.
        unsafe { _mm_or_ps(_mm_and_ps(wins, b), _mm_andnot_ps(wins, a)) }
    }

    /// As [`number::max`].
    #[inline(always)]
    fn max(a: __m128, b: __m128) -> __m128 {
        // SAFETY: see above.
        let wins = unsafe { _mm_or_ps(_mm_cmpgt_ps(b, a), _mm_cmpunord_ps(b, b)) };
        select(a, b, wins)
    }

    /// As [`number::min`].
    #[inline(always)]
    fn min(a: __m128, b: __m128) -> __m128 {
        // SAFETY: see above.
        let wins = unsafe { _mm_or_ps(_mm_cmplt_ps(b, a), _mm_cmpunord_ps(b, b)) };
        select(a, b, wins)
    }

    /// The tree over a power of two of at least four lanes, four at a time.
    #[inline(always)]
    fn tree_by_four<const W: usize>(
        lanes: &[f32; W],
        join: impl Fn(__m128, __m128) -> __m128,
    ) -> f32 {
        // SAFETY: see above.
        let mut fours = [unsafe { _mm_setzero_ps() }; 16];
        for (four, lanes) in fours.iter_mut().zip(lanes.chunks_exact(4)) {
            // SAFETY: the chunk is four floats, and the unaligned load asks for no alignment.
            *four = unsafe { _mm_loadu_ps(lanes.as_ptr()) };
        }
        let mut left = W / 4;
        while left > 1 {
            left /= 2;
            for i in 0..left {
                fours[i] = join(fours[i], fours[i + left]);
            }
        }
        let four = fours[0];
        // SAFETY: see above.
        unsafe {
            let two = join(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(join(two, _mm_shuffle_ps::<0b01>(two, two)))
        }
    }

    /// True where [`tree_by_four`] takes so many lanes.
    const fn by_four(lanes: usize) -> bool {
        lanes >= 4 && lanes <= 64 && lanes.is_power_of_two()
    }

    impl Tree for f32 {
        #[inline(always)]
        fn tree_sum<const W: usize>(lanes: [f32; W]) -> f32 {
            if const { by_four(W) } {
                tree_by_four(&lanes, add)
            } else {
                tree(lanes, Number::add)
            }
        }
        #[inline(always)]
        fn tree_max<const W: usize>(lanes: [f32; W]) -> f32 {
            if const { by_four(W) } {
                tree_by_four(&lanes, max)
            } else {
                tree(lanes, number::max)
            }
        }
        #[inline(always)]
        fn tree_min<const W: usize>(lanes: [f32; W]) -> f32 {
            if const { by_four(W) } {
                tree_by_four(&lanes, min)
            } else {
                tree(lanes, number::min)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::number;

    fn check<const W: usize>() {
        for seed in 0..200u32 {
            let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
            let lanes: [f32; W] = std::array::from_fn(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                match (seed % 5, i as u32 == seed % W as u32) {
                    (1, true) => f32::NAN,
                    (2, true) => f32::NEG_INFINITY,
                    (3, _) if state >> 30 == 0 => -0.0,
                    _ => (state >> 8) as f32 / 1e6 - 8.0,
                }
            });
            let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same(f32::tree_sum(lanes), tree(lanes, f32::add)));
            assert!(same(f32::tree_max(lanes), tree(lanes, number::max)));
            assert!(same(f32::tree_min(lanes), tree(lanes, number::min)));
        }
    }

    #[test]
    fn trees_in_vectors_have_the_bits_of_the_plain_tree() {
        check::<1>();
        check::<3>();
        check::<4>();
        check::<8>();
        check::<32>();
        check::<64>();
    }

    #[test]
    fn every_lane_is_joined_once() {
        assert_eq!(tree([1], |a, b| a + b), 1);
        assert_eq!(tree([1, 10, 100], |a, b| a + b), 111);
        assert_eq!(tree([1, 10, 100, 1000, 10000], |a, b| a + b), 11111);
    }
}
