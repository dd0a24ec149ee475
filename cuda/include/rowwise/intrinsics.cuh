// Every instruction that C++ has no name for: the hand-written PTX of the library sits here and
// nowhere else, one named function each. What is between ROWWISE_HOST_RUN's lines has a twin in
// tests/host_run/include/host_run/ptx.cuh, by which the tests run the library without a GPU.
#pragma once

#include "core.cuh"

namespace rowwise {

// ---------------------------------------------------------------- threads

RW_DEVICE int lane_id() {
    return static_cast<int>(threadIdx.x) & (kWarpSize - 1);
}

RW_DEVICE void sync_block() {
    __syncthreads();
}

// All lanes of a warp.
constexpr u32 kAllLanes = 0xffffffffu;

// This lane, and those that share a row with it: `lanes`, a power of two, side by side.
RW_DEVICE u32 lane_group(int lanes) {
    return (kAllLanes >> (kWarpSize - lanes)) << (lane_id() & ~(lanes - 1));
}

// Another lane's word. `together` are the lanes that make this very call: all that are read from must
// be among them.
RW_DEVICE u32 shuffle_xor(u32 together, u32 word, int lane_mask) {
    return __shfl_xor_sync(together, word, lane_mask);
}

RW_DEVICE u32 shuffle_from(u32 together, u32 word, int lane) {
    return __shfl_sync(together, word, lane);
}

// The smallest of the 32 lanes' words.
RW_DEVICE u32 reduce_min(u32 word) {
    return __reduce_min_sync(kAllLanes, word);
}

// Whether all lanes of the warp say yes.
RW_DEVICE bool every_lane(bool yes) {
    return __all_sync(kAllLanes, yes) != 0;
}

// Waits for all threads of the block; whether one of them says yes.
RW_DEVICE bool any_of_block(bool yes) {
    return __syncthreads_or(yes) != 0;
}

// Four of the eight bytes of two words, those of `low` being 0 to 3: which ones, four bits of `which` say each.
RW_DEVICE u32 byte_permute(u32 low, u32 high, u32 which) {
    return __byte_perm(low, high, which);
}

// Makes the compiler forget what it knows of a word: what is derived from it afterwards is derived
// anew, and need not be kept in registers until then.
RW_DEVICE void forget(u32& word) {
    asm volatile("" : "+r"(word));
}

// Keeps what is read from memory afterwards from being read before, by ptxas as well; all lanes of a warp, equally
// often whichever way they go.
RW_DEVICE void keep_reads_back() {
    __syncwarp();
}

// ---------------------------------------------------------------- bits

RW_DEVICE float bits_to_float(u32 bits) {
    return __uint_as_float(bits);
}

RW_DEVICE u32 float_to_bits(float value) {
    return __float_as_uint(value);
}

RW_DEVICE double bits_to_double(u64 bits) {
    return __longlong_as_double(static_cast<i64>(bits));
}

RW_DEVICE u64 double_to_bits(double value) {
    return static_cast<u64>(__double_as_longlong(value));
}

// A register image of one widest access.
struct alignas(16) Word4 {
    u32 word[4];
};

// A barrier in shared memory that counts bytes: a phase ends once one thread has announced how many
// bytes it brings, and as many have arrived. Bytes may arrive before they are announced.
struct alignas(8) ByteBarrier {
    u64 state;
};

#ifdef ROWWISE_HOST_RUN
#include <host_run/ptx.cuh>
#else

// ---------------------------------------------------------------- global memory

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

// Writes once more what this thread has written: the one case in which a kernel may do so.
template <class T>
RW_DEVICE void store_again(T* address, T value) {
    *address = value;
}

// Has 16 aligned bytes copied from global to shared memory, while the thread goes on.
RW_DEVICE void copy_async(Word4* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
}

// Waits for all copies that this thread has asked for.
RW_DEVICE void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---------------------------------------------------------------- words

// Of the 64 bits that two words make, 32 from bit `bits` on, or what is above the lower word once they are
// shifted up by so many; `bits` is below 32.
RW_DEVICE u32 funnel_right(u32 low, u32 high, int bits) {
    u32 word;
    asm("shf.r.wrap.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "r"(bits));
    return word;
}

RW_DEVICE u32 funnel_left(u32 low, u32 high, int bits) {
    u32 word;
    asm("shf.l.wrap.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(low), "r"(high), "r"(bits));
    return word;
}

// ---------------------------------------------------------------- the grid

// Adds to a counter that all blocks see, after everything that this thread, and through the block's
// barrier its block, has written before. Returns what the counter held.
RW_DEVICE u32 add_release(u32* counter, u32 value) {
    u32 before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(value)
                 : "memory");
    return before;
}

// Reads such a counter, and sees afterwards what was written before it came to hold what is read.
RW_DEVICE u32 load_acquire(const u32* counter) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}

// Reads a word that another block has written: from the cache that they share.
RW_DEVICE u32 load_coherent(const u32* address) {
    u32 value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
    return value;
}

// ---------------------------------------------------------------- clusters (sm_90 and up)

// The place of this block in its cluster, and how many blocks that has.
RW_DEVICE u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

RW_DEVICE u32 cluster_size() {
    u32 size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

// Says that this thread has come so far, and waits until all of the cluster have said so. The
// arrival orders nothing by itself: what must be seen by then takes a fence of its own.
RW_DEVICE void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

RW_DEVICE void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in the cluster's shared memory of what lies at `address` in block `rank`.
RW_DEVICE u32 cluster_address(const void* address, u32 rank) {
    const u32 own = static_cast<u32>(__cvta_generic_to_shared(address));
    u32 mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(own), "r"(rank));
    return mapped;
}

// Says that this thread has come so far and has written what it has, and waits until all of the
// cluster have: what they wrote is seen afterwards.
RW_DEVICE void sync_cluster() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
}

// Words that lie at `address` in this block, as block `rank` has them, and writing them there; addresses
// are aligned to the size of the access. The mapping and the access are one statement: with an
// address that is mapped apart, the compiler may keep it where the access no longer means the peer.
RW_DEVICE void load_peer_words(const void* address, u32 rank, u32& a) {
    asm volatile(
        "{\n"
        ".reg .u32 peer;\n"
        "mapa.shared::cluster.u32 peer, %1, %2;\n"
        "ld.shared::cluster.u32 %0, [peer];\n"
        "}"
        : "=r"(a)
        : "r"(static_cast<u32>(__cvta_generic_to_shared(address))), "r"(rank)
        : "memory");
}

RW_DEVICE void load_peer_words(const void* address, u32 rank, u32& a, u32& b) {
    asm volatile(
        "{\n"
        ".reg .u32 peer;\n"
        "mapa.shared::cluster.u32 peer, %2, %3;\n"
        "ld.shared::cluster.v2.u32 {%0, %1}, [peer];\n"
        "}"
        : "=r"(a), "=r"(b)
        : "r"(static_cast<u32>(__cvta_generic_to_shared(address))), "r"(rank)
        : "memory");
}

RW_DEVICE void load_peer_words(const void* address, u32 rank, u32& a, u32& b, u32& c, u32& d) {
    asm volatile(
        "{\n"
        ".reg .u32 peer;\n"
        "mapa.shared::cluster.u32 peer, %4, %5;\n"
        "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [peer];\n"
        "}"
        : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
        : "r"(static_cast<u32>(__cvta_generic_to_shared(address))), "r"(rank)
        : "memory");
}

RW_DEVICE void store_peer_words(void* address, u32 rank, u32 a) {
    asm volatile(
        "{\n"
        ".reg .u32 peer;\n"
        "mapa.shared::cluster.u32 peer, %0, %1;\n"
        "st.shared::cluster.u32 [peer], %2;\n"
        "}" ::"r"(static_cast<u32>(__cvta_generic_to_shared(address))),
        "r"(rank), "r"(a)
        : "memory");
}

RW_DEVICE void store_peer_words(void* address, u32 rank, u32 a, u32 b) {
    asm volatile(
        "{\n"
        ".reg .u32 peer;\n"
        "mapa.shared::cluster.u32 peer, %0, %1;\n"
        "st.shared::cluster.v2.u32 [peer], {%2, %3};\n"
        "}" ::"r"(static_cast<u32>(__cvta_generic_to_shared(address))),
        "r"(rank), "r"(a), "r"(b)
        : "memory");
}

RW_DEVICE void store_peer_words(void* address, u32 rank, u32 a, u32 b, u32 c, u32 d) {
    asm volatile(
        "{\n"
        ".reg .u32 peer;\n"
        "mapa.shared::cluster.u32 peer, %0, %1;\n"
        "st.shared::cluster.v4.u32 [peer], {%2, %3, %4, %5};\n"
        "}" ::"r"(static_cast<u32>(__cvta_generic_to_shared(address))),
        "r"(rank), "r"(a), "r"(b), "r"(c), "r"(d)
        : "memory");
}

// Words in the shared memory of any block of the cluster, at cluster addresses.
RW_DEVICE void store_cluster_word(u32 address, u32 word) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

RW_DEVICE u32 load_cluster_word(u32 address) {
    u32 word;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    return word;
}

RW_DEVICE void init_byte_barrier(ByteBarrier* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(barrier)))
                 : "memory");
}

// Makes the initialisation visible to the other blocks of the cluster once they have passed the
// cluster's barrier.
RW_DEVICE void fence_byte_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

RW_DEVICE void announce_bytes(ByteBarrier* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     static_cast<u32>(__cvta_generic_to_shared(barrier))),
                 "r"(bytes)
                 : "memory");
}

// Waits for the end of the phase of the given parity, and sees what the bytes brought.
RW_DEVICE void wait_for_bytes(ByteBarrier* barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(static_cast<u32>(__cvta_generic_to_shared(barrier))),
        "r"(parity)
        : "memory");
}

// Writes words into the shared memory of a block of the cluster and counts them in its barrier,
// without waiting. Addresses are cluster addresses, aligned to the size of the write.
RW_DEVICE void push_words(u32 address, u32 barrier, u32 a) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address),
                 "r"(a), "r"(barrier)
                 : "memory");
}

RW_DEVICE void push_words(u32 address, u32 barrier, u32 a, u32 b) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::"r"(
                     address),
                 "r"(a), "r"(b), "r"(barrier)
                 : "memory");
}

RW_DEVICE void push_words(u32 address, u32 barrier, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     address),
                 "r"(a), "r"(b), "r"(c), "r"(d), "r"(barrier)
                 : "memory");
}

// ---------------------------------------------------------------- time

// Keeps this thread busy for so many cycles of its multiprocessor.
RW_DEVICE void spin(i64 cycles) {
    const i64 start = clock64();
    while (clock64() - start < cycles) {
    }
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

// The same of two pairs of half-type numbers.
RW_DEVICE u32 max_nan_f16x2(u32 a, u32 b) {
    u32 m;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}

RW_DEVICE u32 max_nan_bf16x2(u32 a, u32 b) {
    u32 m;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}

// About 1/x and 1/sqrt(x): starting points for Newton's method (math.cuh). Relative errors 2^-23 and
// 2^-22.4 for f32, 2^-20 or so for f64 (PTX ISA).
RW_DEVICE float reciprocal_estimate(float x) {
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

RW_DEVICE double reciprocal_estimate(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}

RW_DEVICE float inverse_square_root_estimate(float x) {
    float y;
    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

RW_DEVICE double inverse_square_root_estimate(double x) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}

// 2^x for x in [-0.5, 0.5], or below where the result still is a normal number: relative error
// below 2^-22.5 (PTX ISA, ex2.approx). The flushing form: its argument never gives a subnormal.
RW_DEVICE float exp2_reduced(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif  // ROWWISE_HOST_RUN

// Of zeros of both signs +0 is the larger one, as in max.NaN.f32: the result depends on no order.
RW_DEVICE double max_nan(double a, double b) {
    if (a == b) {
        return bits_to_double(double_to_bits(a) & double_to_bits(b));
    }
    return a != a ? a : (b != b ? b : (a > b ? a : b));
}

RW_DEVICE i32 max_nan(i32 a, i32 b) {
    return max_of(a, b);
}

RW_DEVICE u32 max_nan(u32 a, u32 b) {
    return max_of(a, b);
}

RW_DEVICE i64 max_nan(i64 a, i64 b) {
    return max_of(a, b);
}

}  // namespace rowwise
