// The element types of tensors, the type that each accumulates in, and conversion between the two.
#pragma once

#include "intrinsics.cuh"

namespace rowwise {

// Storage only: arithmetic happens in the accumulator type.
struct alignas(2) f16 {
    u16 bits;
};

struct alignas(2) bf16 {
    u16 bits;
};

// Half types accumulate in f32, f32 in f32, f64 in f64; integers narrower than 32 bits are handled as
// 32-bit ones.
template <class T>
struct Accumulator {
    using type = T;
};
template <>
struct Accumulator<f16> {
    using type = float;
};
template <>
struct Accumulator<bf16> {
    using type = float;
};
template <>
struct Accumulator<u8> {
    using type = i32;
};
template <>
struct Accumulator<i16> {
    using type = i32;
};
template <class T>
using accum_t = typename Accumulator<T>::type;

template <class T>
constexpr bool kIsF16 = false;
template <>
inline constexpr bool kIsF16<f16> = true;

// The integer types that elements may have.
template <class T>
constexpr bool kIsInteger = false;
template <>
inline constexpr bool kIsInteger<u8> = true;
template <>
inline constexpr bool kIsInteger<i16> = true;
template <>
inline constexpr bool kIsInteger<i32> = true;
template <>
inline constexpr bool kIsInteger<i64> = true;

RW_DEVICE float widen(f16 value) {
    return f16_bits_to_float(value.bits);
}
RW_DEVICE float widen(bf16 value) {
    return bits_to_float(static_cast<u32>(value.bits) << 16);
}
template <class T>
RW_DEVICE accum_t<T> widen(T value) {
    return value;
}

// The larger one of each pair of elements of two words; NaN where either is NaN, and of zeros +0.
RW_DEVICE u32 max_nan_pair(f16, u32 a, u32 b) {
    return max_nan_f16x2(a, b);
}
RW_DEVICE u32 max_nan_pair(bf16, u32 a, u32 b) {
    return max_nan_bf16x2(a, b);
}

// How many elements of T one widest access holds.
template <class T>
constexpr int kVectorElements = kVectorBytes / static_cast<int>(sizeof(T));

// One widest access of T's, in registers. Element access goes through the words, so that the
// compiler keeps them there.
template <class T>
struct Vector {
    static constexpr int kElements = kVectorElements<T>;
    Word4 raw;

    RW_DEVICE accum_t<T> get(int i) const;
    // Rounded to nearest even. For float types: integers are read, not written.
    RW_DEVICE void set(const accum_t<T> (&values)[kElements]);
};

template <>
RW_DEVICE float Vector<f16>::get(int i) const {
    return f16_bits_to_float(static_cast<u16>(raw.word[i / 2] >> (16 * (i % 2))));
}
template <>
RW_DEVICE float Vector<bf16>::get(int i) const {
    const u32 word = raw.word[i / 2];
    return bits_to_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
}
template <>
RW_DEVICE float Vector<float>::get(int i) const {
    return bits_to_float(raw.word[i]);
}
template <>
RW_DEVICE double Vector<double>::get(int i) const {
    return __hiloint2double(static_cast<int>(raw.word[2 * i + 1]), static_cast<int>(raw.word[2 * i]));
}

template <>
RW_DEVICE i32 Vector<u8>::get(int i) const {
    return static_cast<u8>(raw.word[i / 4] >> (8 * (i % 4)));
}
template <>
RW_DEVICE i32 Vector<i16>::get(int i) const {
    return static_cast<i16>(raw.word[i / 2] >> (16 * (i % 2)));
}
template <>
RW_DEVICE i32 Vector<i32>::get(int i) const {
    return static_cast<i32>(raw.word[i]);
}
template <>
RW_DEVICE i64 Vector<i64>::get(int i) const {
    return static_cast<i64>(static_cast<u64>(raw.word[2 * i + 1]) << 32 | raw.word[2 * i]);
}

template <>
RW_DEVICE void Vector<f16>::set(const float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        raw.word[i] = floats_to_f16x2(values[2 * i], values[2 * i + 1]);
    }
}
template <>
RW_DEVICE void Vector<bf16>::set(const float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        raw.word[i] = floats_to_bf16x2(values[2 * i], values[2 * i + 1]);
    }
}
template <>
RW_DEVICE void Vector<float>::set(const float (&values)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        raw.word[i] = float_to_bits(values[i]);
    }
}
template <>
RW_DEVICE void Vector<double>::set(const double (&values)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        raw.word[2 * i] = static_cast<u32>(__double2loint(values[i]));
        raw.word[2 * i + 1] = static_cast<u32>(__double2hiint(values[i]));
    }
}

// The bits of an element.
template <class T>
RW_DEVICE u64 element_bits(T value) {
    u64 bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
}

// One element of a vector as it is stored, for accesses that a whole vector would overrun. By
// shifts and masks, which keep the vector in registers.
template <class T>
RW_DEVICE T element(const Vector<T>& v, int i) {
    constexpr int kPerWord = sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1;
    u64 bits;
    if constexpr (sizeof(T) == 8) {
        bits = static_cast<u64>(v.raw.word[2 * i + 1]) << 32 | v.raw.word[2 * i];
    } else {
        bits = v.raw.word[i / kPerWord] >> (8 * sizeof(T) * (i % kPerWord));
    }
    T out;
    __builtin_memcpy(&out, &bits, sizeof(T));
    return out;
}

// Puts stored elements into a vector, for the same reason.
template <class T>
RW_DEVICE void put_element(Vector<T>& v, int i, T value) {
    const u64 bits = element_bits(value);
    if constexpr (sizeof(T) == 8) {
        v.raw.word[2 * i] = static_cast<u32>(bits);
        v.raw.word[2 * i + 1] = static_cast<u32>(bits >> 32);
    } else if constexpr (sizeof(T) == 4) {
        v.raw.word[i] = static_cast<u32>(bits);
    } else {
        constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
        constexpr u32 kMask = (1u << (8 * sizeof(T))) - 1;
        const int shift = 8 * static_cast<int>(sizeof(T)) * (i % kPerWord);
        v.raw.word[i / kPerWord] =
            (v.raw.word[i / kPerWord] & ~(kMask << shift)) | static_cast<u32>(bits) << shift;
    }
}

}  // namespace rowwise
