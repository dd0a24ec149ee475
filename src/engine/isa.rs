//! Instruction sets: code written once over lanes, compiled for each, picked at run time.
//!
//! The lanes are plain arrays that the compiler makes vectors of. Only the conversions of f16,
//! which it has no pattern for, are written for an instruction set. No step differs in its result
//! from one instruction set to the other, so a row has the same bits on all that fuse a
//! multiply-add in hardware or in software, that is on all.

use super::half_bits;

/// Work to be compiled for an instruction set. `call` must be `#[inline(always)]`, and what it
/// calls in its loops inlined too: the instruction set is a property of the function that all of
/// it ends up in.
pub trait Kernel {
    /// What it makes.
    type Output;
    /// Does the work.
    fn call(self) -> Self::Output;
}

/// f16 values per conversion.
pub const HALVES: usize = 16;

/// An instruction set that the machine has.
pub trait Isa: Copy + Send + Sync + 'static {
    /// Runs work compiled for it.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;
    /// f16 bits to f32, exactly.
    fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES];
    /// f32 to the nearest f16, ties to even.
    fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES];
}

/// What the compiler's target has: SSE2 on x86-64, NEON on AArch64.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

impl Isa for Portable {
    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.call()
    }
    #[inline(always)]
    fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES] {
        bits.map(half_bits::f16_to_f32)
    }
    #[inline(always)]
    fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES] {
        values.map(half_bits::f32_to_f16)
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Isa, Kernel, HALVES};
    use std::arch::x86_64::*;

    /// AVX2 with FMA and F16C. A value of it exists only where the machine has them.
    #[derive(Debug, Clone, Copy)]
    pub struct Avx2(());

    impl Avx2 {
        /// `None` where the machine lacks it.
        pub fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c"))
            .then_some(Avx2(()))
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.call()
    }

    impl Isa for Avx2 {
        #[inline(always)]
        fn run<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: `detect`, the only way to a value of `Avx2`, found the features.
            unsafe { run_avx2(kernel) }
        }
        #[inline(always)]
        fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES] {
            let mut wide = [0.0; HALVES];
            for (narrow, wide) in bits.chunks_exact(8).zip(wide.chunks_exact_mut(8)) {
                // SAFETY: the chunks are 8 elements long, 16 and 32 bytes, and the unaligned forms
                // ask for no alignment. `detect` found F16C and AVX.
                unsafe {
                    let halves = _mm_loadu_si128(narrow.as_ptr().cast());
                    _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(halves));
                }
            }
            wide
        }
        #[inline(always)]
        fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES] {
            let mut bits = [0; HALVES];
            for (wide, narrow) in values.chunks_exact(8).zip(bits.chunks_exact_mut(8)) {
                // SAFETY: as in `widen_f16`.
                unsafe {
                    let floats = _mm256_loadu_ps(wide.as_ptr());
                    let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats);
                    _mm_storeu_si128(narrow.as_mut_ptr().cast(), halves);
                }
            }
            bits
        }
    }

    /// AVX-512 F, BW, DQ and VL. A value of it exists only where the machine has them.
    #[derive(Debug, Clone, Copy)]
    pub struct Avx512(());

    impl Avx512 {
        /// `None` where the machine lacks it.
        pub fn detect() -> Option<Self> {
            (is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && Avx2::detect().is_some())
            .then_some(Avx512(()))
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.call()
    }

    impl Isa for Avx512 {
        #[inline(always)]
        fn run<K: Kernel>(self, kernel: K) -> K::Output {
            // SAFETY: `detect`, the only way to a value of `Avx512`, found the features.
            unsafe { run_avx512(kernel) }
        }
        #[inline(always)]
        fn widen_f16(self, bits: &[u16; HALVES]) -> [f32; HALVES] {
            let mut wide = [0.0; HALVES];
            // SAFETY: 16 halves are 32 bytes and 16 floats 64, and the unaligned forms ask for no
            // alignment. `detect` found AVX-512 F.
            unsafe {
                let halves = _mm256_loadu_si256(bits.as_ptr().cast());
                _mm512_storeu_ps(wide.as_mut_ptr(), _mm512_cvtph_ps(halves));
            }
            wide
        }
        #[inline(always)]
        fn narrow_f16(self, values: &[f32; HALVES]) -> [u16; HALVES] {
            let mut bits = [0; HALVES];
            // SAFETY: as in `widen_f16`.
            unsafe {
                let floats = _mm512_loadu_ps(values.as_ptr());
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats);
                _mm256_storeu_si256(bits.as_mut_ptr().cast(), halves);
            }
            bits
        }
    }
}

/// Calls `$f($isa, ...)` with the best instruction set of the machine.
macro_rules! with_best_isa {
    ($f:expr $(, $arg:expr)*) => {{
        #[cfg(target_arch = "x86_64")]
        {
            use $crate::engine::isa::{Avx2, Avx512, Portable};
            match (Avx512::detect(), Avx2::detect()) {
                (Some(isa), _) => $f(isa $(, $arg)*),
                (None, Some(isa)) => $f(isa $(, $arg)*),
                (None, None) => $f(Portable $(, $arg)*),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            $f($crate::engine::isa::Portable $(, $arg)*)
        }
    }};
}
pub(crate) use with_best_isa;

#[cfg(test)]
mod tests {
    use super::*;

    fn check_conversions(isa: impl Isa) {
        for block in 0..(65536 / HALVES) {
            let bits: [u16; HALVES] = std::array::from_fn(|i| (block * HALVES + i) as u16);
            let wide = isa.widen_f16(&bits);
            for (bits, wide) in bits.into_iter().zip(wide) {
                let want = half::f16::from_bits(bits).to_f32();
                assert!(wide == want || (wide.is_nan() && want.is_nan()), "{bits:x}");
            }
            let back = isa.narrow_f16(&wide);
            for (bits, back) in bits.into_iter().zip(back) {
                let nan = half::f16::from_bits(bits).is_nan();
                assert!(back == bits || (nan && half::f16::from_bits(back).is_nan()));
            }
        }
        // Between the f16: ties, what overflows, what underflows.
        for step in 0..(1u32 << 18) {
            let value = f32::from_bits(step << 14 | step & 1 | (step & 2) << 12);
            let got = isa.narrow_f16(&[value; HALVES])[3];
            let want = half::f16::from_f32(value);
            assert!(
                got == want.to_bits() || (want.is_nan() && half::f16::from_bits(got).is_nan()),
                "{value:e}"
            );
        }
    }

    #[test]
    fn every_f16_converts_as_in_software() {
        check_conversions(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(isa) = Avx2::detect() {
                check_conversions(isa);
            }
            if let Some(isa) = Avx512::detect() {
                check_conversions(isa);
            }
        }
    }
}
