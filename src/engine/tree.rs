//! Joining the lanes of a state into one.

use super::number::Number;
use super::tile::LANES;

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

/// Values on cache lines of their own, so that no vector of them is stored across two: in the sum of
/// (65536, 32) f32 a third of the time was spent on two such stores a row (2026-11-30, 2-core x86-64
/// VM).
#[repr(align(64))]
struct Aligned<T>(T);

/// Passes the lanes of a folded state through memory.
///
/// The stores of neighbouring lanes are where the compiler begins to make vectors, and without them
/// it begins at the tree that joins the lanes, which ends in vectors of two lanes all through the walk
/// (sum of (512, 1000) f32 on one thread: 63 us, now 34; 2026-11-29, 2-core x86-64 VM).
#[inline(always)]
pub(crate) fn through_memory<T>(lanes: T) -> T {
    std::hint::black_box(Aligned(lanes)).0
}

/// The first steps of [`tree`], those that join whole vectors: from `W` lanes down to `H`, both powers
/// of two, which go through memory.
#[inline(always)]
fn tree_down_to<T: Number, const W: usize, const H: usize>(
    lanes: [T; W],
    join: impl Fn(T, T) -> T,
) -> [T; H] {
    let mut lanes = lanes;
    let mut left = W;
    while left > H {
        left /= 2;
        for lane in 0..left {
            lanes[lane] = join(lanes[lane], lanes[lane + left]);
        }
    }
    let mut last = [T::ZERO; H];
    for (last, lane) in last.iter_mut().zip(lanes) {
        *last = lane;
    }
    through_memory(last)
}

/// Trees of the joins that most monoids are made of, with the bits of [`tree`].
///
/// The first steps join whole vectors, in registers; the last ones go through memory. For `f32` on
/// x86-64 these are written in SSE2, which every x86-64 has: of [`tree`] the compiler makes one scalar
/// operation per lane, which for a row of 32 is most of the work (max of (65536, 32) f32 on one
/// thread: 1.10 ms, now 0.69; 2026-11-29, 2-core x86-64 VM).
pub trait Tree: Sized + Copy {
    #[doc(hidden)]
    fn tree_sum<const W: usize>(lanes: [Self; W]) -> Self;
    #[doc(hidden)]
    fn tree_max<const W: usize>(lanes: [Self; W]) -> Self;
    #[doc(hidden)]
    fn tree_min<const W: usize>(lanes: [Self; W]) -> Self;
}

/// [`tree`], which for as many lanes as a tile has goes down to `H` of them in registers.
#[inline(always)]
fn plain_tree<T: Number, const W: usize, const H: usize>(
    lanes: [T; W],
    join: impl Fn(T, T) -> T + Copy,
) -> T {
    if const { W == LANES } {
        tree(tree_down_to::<T, W, H>(lanes, join), join)
    } else {
        tree(lanes, join)
    }
}

macro_rules! plain_trees {
    ($($t:ident),+) => {$(
        impl Tree for $t {
            #[inline(always)]
            fn tree_sum<const W: usize>(lanes: [Self; W]) -> Self {
                plain_tree::<_, W, 8>(lanes, Number::add)
            }
            #[inline(always)]
            fn tree_max<const W: usize>(lanes: [Self; W]) -> Self {
                plain_tree::<_, W, 8>(lanes, super::number::max)
            }
            #[inline(always)]
            fn tree_min<const W: usize>(lanes: [Self; W]) -> Self {
                plain_tree::<_, W, 8>(lanes, super::number::min)
            }
        }
    )+};
}

plain_trees!(f64, i64);
#[cfg(not(target_arch = "x86_64"))]
plain_trees!(f32);

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use super::{tree, tree_down_to, Number, Tree, LANES};
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

    /// The tree over 16 lanes, four at a time.
    #[inline(always)]
    fn tree_by_four(lanes: &[f32; 16], join: impl Fn(__m128, __m128) -> __m128) -> f32 {
        // SAFETY: see above.
        let mut fours = [unsafe { _mm_setzero_ps() }; 4];
        for (four, lanes) in fours.iter_mut().zip(lanes.chunks_exact(4)) {
            // SAFETY: the chunk is four floats, and the unaligned load asks for no alignment.
            *four = unsafe { _mm_loadu_ps(lanes.as_ptr()) };
        }
        let four = join(join(fours[0], fours[2]), join(fours[1], fours[3]));
        // SAFETY: see above.
        unsafe {
            let two = join(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(join(two, _mm_shuffle_ps::<0b01>(two, two)))
        }
    }

    /// [`tree`], which for as many lanes as a tile has is done in vectors: `join` and `join_four` are
    /// the same.
    #[inline(always)]
    fn vector_tree<const W: usize>(
        lanes: [f32; W],
        join: impl Fn(f32, f32) -> f32 + Copy,
        join_four: impl Fn(__m128, __m128) -> __m128,
    ) -> f32 {
        if const { W == LANES } {
            tree_by_four(&tree_down_to::<_, W, 16>(lanes, join), join_four)
        } else {
            tree(lanes, join)
        }
    }

    impl Tree for f32 {
        #[inline(always)]
        fn tree_sum<const W: usize>(lanes: [f32; W]) -> f32 {
            vector_tree(lanes, Number::add, add)
        }
        #[inline(always)]
        fn tree_max<const W: usize>(lanes: [f32; W]) -> f32 {
            vector_tree(lanes, number::max, max)
        }
        #[inline(always)]
        fn tree_min<const W: usize>(lanes: [f32; W]) -> f32 {
            vector_tree(lanes, number::min, min)
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
            let wide = lanes.map(f64::from);
            let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            assert!(same(f64::tree_sum(wide), tree(wide, f64::add)));
            assert!(same(f64::tree_max(wide), tree(wide, number::max)));
            assert!(same(f64::tree_min(wide), tree(wide, number::min)));
        }
    }

    #[test]
    fn trees_in_vectors_have_the_bits_of_the_plain_tree() {
        check::<1>();
        check::<3>();
        check::<4>();
        check::<8>();
        check::<LANES>();
        check::<64>();
    }

    #[test]
    fn every_lane_is_joined_once() {
        assert_eq!(tree([1], |a, b| a + b), 1);
        assert_eq!(tree([1, 10, 100], |a, b| a + b), 111);
        assert_eq!(tree([1, 10, 100, 1000, 10000], |a, b| a + b), 11111);
    }
}
