// Words that every header of the device library shares: integer names, function qualifiers, and the
// warp size. No host headers are included here or in any header of this folder, so that all of it
// compiles under NVRTC as well as under nvcc.
#pragma once

#define RW_DEVICE __device__ __forceinline__
#define RW_HOST_DEVICE __host__ __device__ __forceinline__

// Declares a variable in the block's shared memory, and the bytes that the launch asks for: macros,
// since the tests run the library without a GPU (tests/host_run) and have their own.
#ifndef RW_SHARED
#define RW_SHARED(name, ...) __shared__ __align__(16) ::rowwise::same_t<__VA_ARGS__> name
#define RW_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace rowwise {

// The type itself, in a place where `T name[N]` cannot be written.
template <class T>
using same_t = T;

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

// std::remove_const_t and std::is_const_v.
template <class T>
struct Mutable {
    using type = T;
    static constexpr bool kIsConst = false;
};
template <class T>
struct Mutable<const T> {
    using type = T;
    static constexpr bool kIsConst = true;
};

}  // namespace rowwise
