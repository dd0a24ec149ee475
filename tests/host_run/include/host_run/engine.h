// What the CUDA words of cuda_runtime.h and the twins of the PTX instructions are made of. The
// implementation is engine.cpp; docs/testing.md says what is checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace host_run {

struct Index {
    unsigned x, y, z;
};

// A device thread's view of itself.
struct Thread {
    Index thread, block, block_size, grid;
    uint32_t cluster_rank, cluster_size;
};

// The same of the running device thread.
unsigned self(Index Thread::*which, unsigned Index::*axis);
uint32_t self(uint32_t Thread::*which);

// Ends the launch with an error: it names seed, block and thread, and says what is wrong there.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Another thread may run here, as the seed has it.
void preempt();
// The same in a loop that waits for another thread: ends the launch if it never comes.
void poll();

// ---------------------------------------------------------------- warp

enum class Collective {
    kSync,
    kShuffleFrom,
    kShuffleUp,
    kShuffleDown,
    kShuffleXor,
    kBallot,
    kMin,
    kMax,
    kMinSigned,
    kMaxSigned,
    kAdd,
    kAnd,
    kOr,
    kXor,
};

// Waits for the lanes of `mask` to make the same call; `argument` is the lane or distance of a shuffle.
uint64_t collective(Collective kind, uint32_t mask, uint64_t value, int argument = 0, int width = 32);

// ---------------------------------------------------------------- block and cluster

void sync_block();
// `releases`: what this thread has written is seen after the wait.
void cluster_arrive(bool releases);
void cluster_wait();

// A block's variable of this size, by the address of what stands for its declaration.
void* shared_variable(const void* key, size_t bytes, size_t alignment, const char* name);
void* dynamic_shared();

template <class T>
T& shared(const void* key, const char* name) {
    return *static_cast<T*>(shared_variable(key, sizeof(T), 16, name));
}

// Addresses in shared memory, of this block and of the cluster.
uint32_t shared_address(const void* pointer);
uint32_t map_address(uint32_t address, uint32_t rank);

// Reads or writes a word of a block of the cluster.
void cluster_access(uint32_t address, uint32_t* word, bool writes);

// Barriers that count arrivals and bytes (mbarrier), by their shared address.
void barrier_init(uint32_t barrier, uint32_t arrivals);
void barrier_arrive_expecting(uint32_t barrier, uint32_t bytes);
void barrier_wait(uint32_t barrier, uint32_t parity);
// Sends words that arrive some time later (st.async). Both are addresses of the cluster.
void push(uint32_t address, uint32_t barrier, const uint32_t* words, int count);

// ---------------------------------------------------------------- memory

inline void check_alignment(const void* address, size_t bytes) {
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
        fail("an access of %zu bytes at %p is misaligned", bytes, address);
    }
}

// The next write of these bytes of an output may be their second: this thread has to have made the first.
void writes_again(const void* address, size_t bytes);

// 16 bytes on their way to shared memory (cp.async): they are copied when their thread waits for them, and
// what they are copied to holds nothing that may be read until then.
struct Copy {
    void* to;
    const void* from;
};
void copy_later(void* to, const void* from);
// Takes a copy of this thread's that is still to be made; false where there is none.
bool next_copy(Copy& copy);

// One atomic access of a thread. The lambda runs with no other thread in between.
void enter_atomic(void* address, size_t bytes);

// ---------------------------------------------------------------- launch

struct Launch {
    Index grid, block;
    uint32_t cluster;      // blocks of a cluster
    bool cooperative;      // all blocks at once
    size_t dynamic_bytes;  // of shared memory, for a block
    void (*kernel)(const void* arguments);
    const void* arguments;
    size_t argument_bytes;
};

// Runs it to its end. False where it failed; last_failure() then says why.
bool run(const Launch& launch);
const char* last_failure();
// Makes a failure of what a kernel computed.
void set_failure(const char* message);

}  // namespace host_run
