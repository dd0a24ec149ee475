// Words that every header of the device library shares: integer names, function qualifiers, and the
// warp size. No host headers are included here or in any header of this folder, so that all of it
// compiles under NVRTC as well as under nvcc.
#pragma once

#define RW_DEVICE __device__ __forceinline__
#define RW_HOST_DEVICE __host__ __device__ __forceinline__

namespace rowwise {

using i8 = signed char;
using u8 = unsigned char;
using i16 = short;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

constexpr int kWarpSize = 32;
// The widest access a thread can make at once.
constexpr int kVectorBytes = 16;

template <class T>
RW_HOST_DEVICE constexpr T min_of(T a, T b) {
    return b < a ? b : a;
}

template <class T>
RW_HOST_DEVICE constexpr T max_of(T a, T b) {
    return a < b ? b : a;
}

// std::conditional_t, which would take a host header.
template <bool Condition, class A, class B>
struct Conditional {
    using type = A;
};
template <class A, class B>
struct Conditional<false, A, B> {
    using type = B;
};
template <bool Condition, class A, class B>
using conditional_t = typename Conditional<Condition, A, B>::type;

}  // namespace rowwise
