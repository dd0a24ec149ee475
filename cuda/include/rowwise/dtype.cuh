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

// Half types accumulate in f32, f32 in f32, f64 in f64.
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
template <class T>
using accum_t = typename Accumulator<T>::type;

RW_DEVICE float widen(f16 value) {
    return f16_bits_to_float(value.bits);
}
RW_DEVICE float widen(bf16 value) {
    return bits_to_float(static_cast<u32>(value.bits) << 16);
}
RW_DEVICE float widen(float value) {
    return value;
}
RW_DEVICE double widen(double value) {
    return value;
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
    // Elements 2i and 2i+1 (for 8-byte types: element i and nothing), rounded to nearest even.
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

// One element of a vector as it is stored, for accesses that a whole vector would overrun.
template <class T>
RW_DEVICE T element(const Vector<T>& v, int i) {
    T out;
    if constexpr (sizeof(T) == 2) {
        out.bits = static_cast<u16>(v.raw.word[i / 2] >> (16 * (i % 2)));
    } else {
        out = v.get(i);
    }
    return out;
}

// Puts stored elements into a vector, for the same reason.
template <class T>
RW_DEVICE void put_element(Vector<T>& v, int i, T value) {
    if constexpr (sizeof(T) == 2) {
        const int shift = 16 * (i % 2);
        v.raw.word[i / 2] =
            (v.raw.word[i / 2] & ~(0xffffu << shift)) | (static_cast<u32>(value.bits) << shift);
    } else if constexpr (sizeof(T) == 4) {
        v.raw.word[i] = float_to_bits(value);
    } else {
        v.raw.word[2 * i] = static_cast<u32>(__double2loint(value));
        v.raw.word[2 * i + 1] = static_cast<u32>(__double2hiint(value));
    }
}

}  // namespace rowwise
