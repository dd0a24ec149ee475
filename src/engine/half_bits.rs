//! Conversions of f16 and bf16 by integer arithmetic on their bits: without branches, for lanes.

/// f16 bits to f32, exactly. A signalling NaN stays as it is.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let bits = bits as u32;
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    // Normal: the exponent's bias grows from 15 to 127. Inf and NaN: the exponent becomes all ones.
    let rebias = if magnitude >= 0x7c00 { 224 << 23 } else { 112 << 23 };
    let normal = (magnitude << 13) + rebias;
    // Subnormal (and zero): the mantissa is an integer in units of 2^-24.
    let subnormal = (magnitude as i32 as f32 * f32::from_bits(103 << 23)).to_bits();
    let magnitude = if magnitude < 0x0400 { subnormal } else { normal };
    f32::from_bits(sign | magnitude)
}

/// f32 to the nearest f16, ties to even; a NaN becomes a quiet one.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: rebias, then round at bit 13 to nearest even. A carry moves on into the
    // exponent, as far as infinity. Wraps, unused, for smaller ones.
    let odd = (magnitude >> 13) & 1;
    let rounded = magnitude.wrapping_sub(112 << 23).wrapping_add(0x0fff + odd) >> 13;
    // Subnormal results: adding 0.5 puts the unit of the sum's mantissa, 2^-24, at that of f16's
    // subnormals, so that the addition rounds in the right place.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(126 << 23);
    let finite = if magnitude < 113 << 23 { small } else { rounded };
    // 65520, the first value that rounds to infinity.
    let finite = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    let result = if magnitude > 0x7f80_0000 { 0x7e00 } else { finite };
    (sign | result) as u16
}

/// bf16 bits to f32, exactly.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// f32 to the nearest bf16, ties to even; a NaN becomes a quiet one.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let odd = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + odd) >> 16;
    let quiet = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_converts_as_in_software() {
        for bits in 0..=u16::MAX {
            let want = half::bf16::from_bits(bits);
            let wide = bf16_to_f32(bits);
            assert!(wide == want.to_f32() || (wide.is_nan() && want.is_nan()));
            for low in [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits((bits as u32) << 16 | low);
                let (got, want) = (f32_to_bf16(value), half::bf16::from_f32(value));
                assert!(
                    got == want.to_bits()
                        || (want.is_nan() && half::bf16::from_bits(got).is_nan()),
                    "{value:e}"
                );
            }
        }
    }
}
