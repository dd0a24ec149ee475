// Every instruction that C++ has no name for: the hand-written PTX of the library sits here and
// nowhere else, one named function each.
#pragma once

#include "core.cuh"

namespace rowwise {

// ---------------------------------------------------------------- threads

RW_DEVICE int lane_id() {
    return static_cast<int>(threadIdx.x) & (kWarpSize - 1);
}

RW_DEVICE void sync_warp() {
    __syncwarp();
}

RW_DEVICE void sync_block() {
    __syncthreads();
}

RW_DEVICE u32 shuffle_xor(u32 word, int lane_mask) {
    return __shfl_xor_sync(0xffffffffu, word, lane_mask);
}

// ---------------------------------------------------------------- bits

RW_DEVICE float bits_to_float(u32 bits) {
    return __uint_as_float(bits);
}

RW_DEVICE u32 float_to_bits(float value) {
    return __float_as_uint(value);
}

// ---------------------------------------------------------------- global memory

// A register image of one widest access.
struct alignas(16) Word4 {
    u32 word[4];
};

// Reads 16 aligned bytes that no later access is expected to want: a row of the input is read once.
RW_DEVICE Word4 load_streaming(const void* address) {
    Word4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(address));
    return v;
}

// Reads 16 aligned bytes that other rows read too: weights stay in the caches.
RW_DEVICE Word4 load_shared_by_rows(const void* address) {
    Word4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(address));
    return v;
}

// Writes 16 aligned bytes that this kernel does not read again.
RW_DEVICE void store_streaming(void* address, const Word4& v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.word[0]),
                 "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3])
                 : "memory");
}

// ---------------------------------------------------------------- conversions

RW_DEVICE float f16_bits_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Two floats rounded to nearest even, `low` in the low half of the word.
RW_DEVICE u32 floats_to_f16x2(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

RW_DEVICE u32 floats_to_bf16x2(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// ---------------------------------------------------------------- arithmetic

// The larger one; NaN if either is NaN. fmaxf would drop the NaN.
RW_DEVICE float max_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}

RW_DEVICE double max_nan(double a, double b) {
    return a != a ? a : (b != b ? b : (a > b ? a : b));
}

// 2^x for x in [-0.5, 0.5], or below where the result still is a normal number: relative error
// below 2^-22.5 (PTX ISA, ex2.approx). The flushing form: its argument never gives a subnormal.
RW_DEVICE float exp2_reduced(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace rowwise
