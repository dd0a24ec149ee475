// The instructions of intrinsics.cuh as the host runs them, under the same names: included there, in
// its namespace. Results that the PTX ISA gives with an error are given without one.
#pragma once

// ---------------------------------------------------------------- global memory

RW_DEVICE Word4 load_streaming(const void* address) {
    host_run::preempt();
    host_run::check_alignment(address, sizeof(Word4));
    return *static_cast<const Word4*>(address);
}

RW_DEVICE Word4 load_shared_by_rows(const void* address) {
    return load_streaming(address);
}

RW_DEVICE void store_streaming(void* address, const Word4& v) {
    host_run::preempt();
    host_run::check_alignment(address, sizeof(Word4));
    *static_cast<Word4*>(address) = v;
}

template <class T>
RW_DEVICE void store_again(T* address, T value) {
    host_run::preempt();
    host_run::writes_again(address, sizeof(T));
    *address = value;
}

RW_DEVICE void copy_async(Word4* to, const void* from) {
    host_run::preempt();
    host_run::check_alignment(to, sizeof(Word4));
    host_run::check_alignment(from, sizeof(Word4));
    host_run::copy_later(to, from);
}

RW_DEVICE void wait_for_copies() {
    host_run::preempt();
    for (host_run::Copy copy; host_run::next_copy(copy);) {
        *static_cast<Word4*>(copy.to) = *static_cast<const Word4*>(copy.from);
    }
}

// ---------------------------------------------------------------- words

RW_DEVICE u32 funnel_right(u32 low, u32 high, int bits) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) >> bits);
}

RW_DEVICE u32 funnel_left(u32 low, u32 high, int bits) {
    return static_cast<u32>((static_cast<u64>(high) << 32 | low) << bits >> 32);
}

// ---------------------------------------------------------------- the grid

RW_DEVICE u32 add_release(u32* counter, u32 value) {
    return atomicAdd(counter, value);
}

RW_DEVICE u32 load_acquire(const u32* counter) {
    host_run::check_alignment(counter, sizeof(u32));
    host_run::poll();
    return *counter;
}

RW_DEVICE u32 load_coherent(const u32* address) {
    host_run::preempt();
    host_run::check_alignment(address, sizeof(u32));
    return *address;
}

// ---------------------------------------------------------------- clusters

RW_DEVICE u32 cluster_rank() {
    return host_run::self(&host_run::Thread::cluster_rank);
}

RW_DEVICE u32 cluster_size() {
    return host_run::self(&host_run::Thread::cluster_size);
}

RW_DEVICE void cluster_arrive_relaxed() {
    host_run::cluster_arrive(false);
}

RW_DEVICE void cluster_wait() {
    host_run::cluster_wait();
}

RW_DEVICE void sync_cluster() {
    host_run::cluster_arrive(true);
    host_run::cluster_wait();
}

RW_DEVICE void store_cluster_word(u32 address, u32 word) {
    host_run::cluster_access(address, &word, true);
}

RW_DEVICE u32 load_cluster_word(u32 address) {
    u32 word;
    host_run::cluster_access(address, &word, false);
    return word;
}

RW_DEVICE u32 cluster_address(const void* address, u32 rank) {
    return host_run::map_address(host_run::shared_address(address), rank);
}

// One word after the other: each is checked as a wider access would be, but for its alignment.
template <class... Words>
RW_DEVICE void load_peer_words(const void* address, u32 rank, Words&... words) {
    host_run::check_alignment(address, sizeof...(Words) * sizeof(u32));
    const char* from = static_cast<const char*>(address);
    ((words = load_cluster_word(cluster_address(from, rank)), from += sizeof(u32)), ...);
}

template <class... Words>
RW_DEVICE void store_peer_words(void* address, u32 rank, Words... words) {
    host_run::check_alignment(address, sizeof...(Words) * sizeof(u32));
    char* to = static_cast<char*>(address);
    ((store_cluster_word(cluster_address(to, rank), words), to += sizeof(u32)), ...);
}

// ---------------------------------------------------------------- time

// The others go on meanwhile, as the seed has it.
RW_DEVICE void spin(i64) {
    host_run::preempt();
}

RW_DEVICE void init_byte_barrier(ByteBarrier* barrier) {
    host_run::barrier_init(host_run::shared_address(barrier), 1);
}

RW_DEVICE void fence_byte_barrier_init() {}

RW_DEVICE void announce_bytes(ByteBarrier* barrier, u32 bytes) {
    host_run::barrier_arrive_expecting(host_run::shared_address(barrier), bytes);
}

RW_DEVICE void wait_for_bytes(ByteBarrier* barrier, u32 parity) {
    host_run::barrier_wait(host_run::shared_address(barrier), parity);
}

RW_DEVICE void push_words(u32 address, u32 barrier, u32 a) {
    const u32 words[] = {a};
    host_run::push(address, barrier, words, 1);
}

RW_DEVICE void push_words(u32 address, u32 barrier, u32 a, u32 b) {
    const u32 words[] = {a, b};
    host_run::push(address, barrier, words, 2);
}

RW_DEVICE void push_words(u32 address, u32 barrier, u32 a, u32 b, u32 c, u32 d) {
    const u32 words[] = {a, b, c, d};
    host_run::push(address, barrier, words, 4);
}

// ---------------------------------------------------------------- conversions

RW_DEVICE float f16_bits_to_float(u16 bits) {
    const int exponent = (bits >> 10) & 0x1f;
    const u32 fraction = bits & 0x3ffu;
    const u32 sign = static_cast<u32>(bits & 0x8000u) << 16;
    if (exponent == 0) {
        // Subnormal: a multiple of 2^-24.
        return bits_to_float(sign | float_to_bits(static_cast<float>(fraction) * 0x1p-24f));
    }
    const u32 widened = exponent == 31 ? 255u : static_cast<u32>(exponent - 15 + 127);
    return bits_to_float(sign | widened << 23 | fraction << 13);
}

// Rounded to nearest even. A NaN becomes the one that the instruction gives.
RW_DEVICE u32 float_to_f16_bits(float value) {
    const u32 sign = (float_to_bits(value) >> 16) & 0x8000u;
    const float magnitude = fabsf(value);
    if (value != value) {
        return 0x7fffu;
    }
    if (magnitude >= 65520.0f) {
        return sign | 0x7c00u;
    }
    if (magnitude < 0x1p-14f) {
        return sign | static_cast<u32>(nearbyintf(magnitude * 0x1p24f));
    }
    // The fraction's upper 10 bits, and a carry into the exponent where it rounds up.
    const u32 bits = float_to_bits(magnitude);
    const u32 rounded = bits + 0xfffu + ((bits >> 13) & 1u);
    return sign | ((rounded >> 13) - ((127u - 15u) << 10));
}

RW_DEVICE u32 float_to_bf16_bits(float value) {
    const u32 bits = float_to_bits(value);
    return value != value ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

RW_DEVICE u32 floats_to_f16x2(float low, float high) {
    return float_to_f16_bits(low) | float_to_f16_bits(high) << 16;
}

RW_DEVICE u32 floats_to_bf16x2(float low, float high) {
    return float_to_bf16_bits(low) | float_to_bf16_bits(high) << 16;
}

// ---------------------------------------------------------------- arithmetic

RW_DEVICE float max_nan(float a, float b) {
    if (a != a || b != b) {
        return bits_to_float(0x7fffffffu);
    }
    // +0 is the larger zero.
    return a == b ? bits_to_float(float_to_bits(a) & float_to_bits(b)) : (a > b ? a : b);
}

// The larger one of each half; `widen` gives the value of one's bits.
template <class F>
RW_DEVICE u32 max_nan_halves(u32 a, u32 b, F widen) {
    u32 all = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const u16 x = static_cast<u16>(a >> shift);
        const u16 y = static_cast<u16>(b >> shift);
        const float m = max_nan(widen(x), widen(y));
        const u32 bits = m != m ? 0x7fffu : float_to_bits(m) == float_to_bits(widen(x)) ? x : y;
        all |= bits << shift;
    }
    return all;
}

RW_DEVICE u32 max_nan_f16x2(u32 a, u32 b) {
    return max_nan_halves(a, b, f16_bits_to_float);
}

RW_DEVICE u32 max_nan_bf16x2(u32 a, u32 b) {
    return max_nan_halves(a, b, [](u16 bits) { return bits_to_float(static_cast<u32>(bits) << 16); });
}

// ftz and the absence of it are as in the instructions: f64 subnormals count as 0.
RW_DEVICE float reciprocal_estimate(float x) {
    return 1.0f / x;
}

RW_DEVICE double flushed(double x) {
    return fabs(x) < 0x1p-1022 ? copysign(0.0, x) : x;
}

RW_DEVICE double reciprocal_estimate(double x) {
    return flushed(1.0 / flushed(x));
}

RW_DEVICE float inverse_square_root_estimate(float x) {
    return static_cast<float>(1.0 / sqrt(static_cast<double>(x)));
}

RW_DEVICE double inverse_square_root_estimate(double x) {
    return 1.0 / sqrt(flushed(x));
}

RW_DEVICE float exp2_reduced(float x) {
    return exp2f(x);
}
