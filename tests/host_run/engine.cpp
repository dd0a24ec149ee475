// Runs CUDA kernels on one thread of the host: every device thread is a fiber, and a seed decides
// which of them runs on at each point where one may wait. See docs/testing.md.

#include "host_run/engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "host_run.h"

#if defined(__SANITIZE_ADDRESS__)
#define HOST_RUN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOST_RUN_ASAN 1
#endif
#endif
#ifndef HOST_RUN_ASAN
#define HOST_RUN_ASAN 0
#endif
#if HOST_RUN_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace host_run {
namespace {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 256 * 1024;
constexpr uint64_t kCanary = 0x5afe57ac5afe57acull;
// Fibers alive at once, but where one cluster or a cooperative grid needs more.
constexpr size_t kAtOnce = 2048;
// Where a block's dynamic shared memory begins: behind its variables, of which there are 48 KiB at most.
constexpr uint32_t kVariableBytes = 48 * 1024;
constexpr uint32_t kDynamicBytes = 227 * 1024;
constexpr uint32_t kSharedBytes = kVariableBytes + kDynamicBytes;
// Between variables, so that one that is overrun does not reach the next.
constexpr uint32_t kGap = 32;
// An address of the cluster is rank + 1 above these bits, an address of the block below.
constexpr uint32_t kRankShift = 20;
static_assert(kSharedBytes < 1u << kRankShift);
// Byte barriers of a block.
constexpr int kBarriers = 8;
// Polls of a launch after which nobody is coming any more.
constexpr uint64_t kMostPolls = 20'000'000;

// ---------------------------------------------------------------- contexts

// A stack that runs or may be resumed.
struct Context {
#if defined(__x86_64__)
    void* stack_pointer = nullptr;
#else
    ucontext_t machine;
#endif
    const void* bottom = nullptr;
    size_t bytes = 0;
    void* fake_stack = nullptr;  // ASan's
};

}  // namespace
}  // namespace host_run

#if defined(__x86_64__)
// Saves the registers that a call preserves, and the stack, and continues at what was saved in `to`.
extern "C" void rw_host_run_switch(void** from, void* to);
asm(R"(
    .text
    .globl rw_host_run_switch
    .type rw_host_run_switch, @function
rw_host_run_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size rw_host_run_switch, . - rw_host_run_switch
)");
#endif

namespace host_run {
namespace {

void switch_stacks(Context& from, Context& to) {
#if HOST_RUN_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
#endif
#if defined(__x86_64__)
    rw_host_run_switch(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.machine, &to.machine);
#endif
#if HOST_RUN_ASAN
    __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

// ---------------------------------------------------------------- the machine

struct Block;
struct Group;

enum class State { kRunnable, kWaiting, kLeft };

enum class Wait { kCall, kBlock, kCluster, kBytes };
constexpr const char* kWaits[] = {"a call among lanes", "the block's barrier", "the cluster's barrier", "a byte barrier"};

struct Fiber {
    Context context;
    Thread self;
    Block* block = nullptr;
    unsigned index = 0;  // in the block
    State state = State::kLeft;
    Wait waits_at = Wait::kCall;
    uint32_t waits_for = 0;  // lanes, or the address of a byte barrier
    uint64_t result = 0;     // of a collective
    bool arrived = false;    // at the cluster's barrier
    uint32_t cluster_phase = 0;
    uint16_t warp_epoch = 0;             // whole-warp barriers passed
    uint16_t seen[kBarriers] = {};       // phases of each byte barrier known to have ended
    std::vector<Copy> copies;            // asked for, and not yet made
};

struct Pending {
    Collective kind;
    uint32_t mask, arrived;
    int argument, width;
    uint64_t value[kLanes];
    int lane_argument[kLanes];
};

struct Warp {
    std::vector<Pending> pending;
    uint32_t left = 0;
};

struct ByteBarrier {
    uint32_t address;
    uint32_t arrivals, arrivals_left;
    int64_t bytes;
    uint16_t phase;
};

// Who last wrote and read one byte of shared memory, and when: by the barriers that its block, its warp
// and its cluster had passed.
struct Access {
    uint16_t thread;  // in the cluster: 1024 a block
    uint16_t epoch;
    uint16_t warp_epoch;
    uint16_t cluster_epoch;
};
constexpr uint16_t kNobody = 0xffff;
constexpr uint16_t kSeveral = 0xfffe;  // threads of several warps
constexpr uint16_t kOfWarp = 0xe000;   // and above: several threads of that warp
constexpr uint16_t kPushed = 0xfffd;   // by bytes that arrived: epoch is the phase, warp_epoch the barrier

struct Byte {
    Access write, read;
    bool exists;
};

// A shared variable of the kernel: at the same place in every block.
struct Variable {
    const void* key;
    uint32_t offset, bytes;
};

struct Block {
    Group* group;
    uint32_t rank;
    Fiber** fibers;
    std::vector<Warp> warps;
    unsigned threads = 0, left = 0, at_barrier = 0;
    bool started = false;
    uint16_t epoch;                 // block barriers passed
    uint16_t seen[kBarriers];       // what every thread knows after a block barrier
    std::unique_ptr<unsigned char[]> memory;
    std::unique_ptr<Byte[]> bytes;
    uint32_t dynamic_bytes;
    std::vector<bool> declared;     // of the kernel's variables: which this block has
    std::vector<ByteBarrier> barriers;

    bool has_left() const { return left == threads; }
};

// Blocks that live together: a cluster, or a cooperative grid of clusters of one block.
struct Group {
    std::vector<Block*> blocks;
    unsigned blocks_left;
    // The cluster's barrier.
    unsigned threads, threads_left, arrived;
    uint32_t phase;
    bool all_release;  // all that have arrived
    uint16_t epoch;    // barriers at which all did
};

struct Push {
    Block* to;
    uint32_t offset, barrier;
    int words;
    uint32_t word[4];
};

struct Buffer {
    uintptr_t begin, end;
    rw_host_run_access access;
    std::vector<uint32_t> written;  // by whom, as writer() numbers threads; 0: nobody
};

struct Engine {
    // Of the call.
    uint64_t seed = 0, call = 0, random = 1;
    std::vector<Buffer> buffers;
    std::string failure;
    bool checks_accesses = false;  // some access was reported

    // Of the launch.
    const Launch* launch = nullptr;
    Context main;
    Fiber* current = nullptr;
    std::vector<Fiber*> runnable;
    std::vector<Push> pushes;
    std::vector<uint32_t> order;  // in which groups start
    std::vector<Variable> variables;
    uint32_t variables_end = 0;
    size_t next_group = 0, groups_alive = 0;
    uint64_t polls = 0;
    int strategy = 0;
    size_t delay = 0;  // of bytes on the way, in threads that run meanwhile; 0: until none can
    const Block* favoured = nullptr;
    bool main_known = false, failed = false;

    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Fiber*> fiber_table;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Group>> groups;

    ~Engine() {
        for (auto& fiber : fibers) {
            munmap(const_cast<void*>(fiber->context.bottom), kStackBytes);
        }
    }

    // splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    uint64_t draw() {
        uint64_t z = (random += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    uint32_t draw(size_t below) {
        return static_cast<uint32_t>(((draw() >> 32) * below) >> 32);
    }

    bool run(const Launch& what);
    void prepare(size_t threads, size_t blocks_together, size_t groups_together);
    void start_group(Group& group);
    void start_block(Block& block, uint32_t index);
    void make_fiber(Fiber& fiber);
    void leave();
    void schedule();
    Fiber* pick();
    void wake(Fiber* fiber) {
        fiber->state = State::kRunnable;
        runnable.push_back(fiber);
    }
    // Leaves the running fiber until it is woken.
    void wait(Wait where, uint32_t what) {
        current->state = State::kWaiting;
        current->waits_at = where;
        current->waits_for = what;
        schedule();
    }
    void yield() {
        wake(current);
        schedule();
    }
    void end_phase_if_full(Group& group);
    void deliver(size_t which);
    void complete_if_due(Block& block, ByteBarrier& barrier);
    [[noreturn]] void deadlock();
    [[noreturn]] void end_launch();
};

thread_local Engine the_engine;
// Beside the engine, so that the accesses of code that no kernel runs cost a load and a branch.
thread_local Fiber* running = nullptr;

// ---------------------------------------------------------------- failures

std::string place() {
    if (running == nullptr) {
        return "";
    }
    const Thread& self = running->self;
    char text[160];
    snprintf(text, sizeof text, "block %u (rank %u), thread %u: ", self.block.x, self.cluster_rank, running->index);
    return text;
}

std::string with_seed(const std::string& message) {
    char text[96];
    snprintf(text, sizeof text, "host run with seed %llu, call %llu: ",
             static_cast<unsigned long long>(the_engine.seed), static_cast<unsigned long long>(the_engine.call));
    return text + message;
}

void Engine::end_launch() {
    failed = true;
    running = nullptr;
    switch_stacks(current->context, main);
    __builtin_unreachable();
}

// Who waits where, in a few words.
void Engine::deadlock() {
    std::string text = "deadlock, no thread can run on";
    int lines = 0;
    for (const auto& group : groups) {
        for (Block* block : group->blocks) {
            if (block->has_left()) {
                continue;
            }
            unsigned first = 0;
            const auto same = [&](unsigned a, unsigned b) {
                const Fiber &x = *block->fibers[a], &y = *block->fibers[b];
                return x.state == y.state && x.waits_at == y.waits_at && x.waits_for == y.waits_for;
            };
            for (unsigned i = 1; i <= block->threads; ++i) {
                if (i < block->threads && same(first, i)) {
                    continue;
                }
                const Fiber& fiber = *block->fibers[first];
                char line[200];
                if (fiber.state == State::kLeft) {
                    snprintf(line, sizeof line, "; block %u: threads %u to %u have left", fiber.self.block.x, first, i - 1);
                } else {
                    snprintf(line, sizeof line, "; block %u: threads %u to %u wait at %s (%#x)",
                             fiber.self.block.x, first, i - 1, kWaits[static_cast<int>(fiber.waits_at)], fiber.waits_for);
                }
                if (++lines <= 8) {
                    text += line;
                }
                first = i;
            }
        }
    }
    failure = with_seed(text);
    end_launch();
}

// ---------------------------------------------------------------- launch

void entry() {
    Engine& engine = the_engine;
#if HOST_RUN_ASAN
    const void* bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (!engine.main_known) {
        engine.main.bottom = bottom;
        engine.main.bytes = bytes;
        engine.main_known = true;
    }
#endif
    for (;;) {
        engine.launch->kernel(engine.launch->arguments);
        engine.leave();
    }
}

// A stack that begins at `entry`.
void Engine::make_fiber(Fiber& fiber) {
    Context& context = fiber.context;
    if (context.bottom == nullptr) {
        void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stack == MAP_FAILED) {
            fprintf(stderr, "host run: no memory for the stack of a device thread\n");
            abort();
        }
        context.bottom = stack;
        context.bytes = kStackBytes;
    }
    char* low = static_cast<char*>(const_cast<void*>(context.bottom));
#if HOST_RUN_ASAN
    // What a launch that failed left behind.
    __asan_unpoison_memory_region(low, kStackBytes);
#endif
    std::memcpy(low, &kCanary, sizeof kCanary);
#if defined(__x86_64__)
    void** top = reinterpret_cast<void**>(low + kStackBytes) - 2;
    *top = reinterpret_cast<void*>(entry);
    // Six registers are popped first.
    context.stack_pointer = top - 6;
    std::memset(context.stack_pointer, 0, 6 * sizeof(void*));
#else
    getcontext(&context.machine);
    context.machine.uc_stack.ss_sp = low;
    context.machine.uc_stack.ss_size = kStackBytes;
    context.machine.uc_link = nullptr;
    makecontext(&context.machine, entry, 0);
#endif
}

void Engine::prepare(size_t threads, size_t blocks_together, size_t groups_together) {
    const size_t all_blocks = blocks_together * groups_together;
    while (fibers.size() < all_blocks * threads) {
        fibers.push_back(std::make_unique<Fiber>());
        make_fiber(*fibers.back());
    }
    fiber_table.resize(fibers.size());
    for (size_t i = 0; i < fibers.size(); ++i) {
        fiber_table[i] = fibers[i].get();
    }
    while (blocks.size() < all_blocks) {
        blocks.push_back(std::make_unique<Block>());
        // Not initialised: only what a kernel asks for is touched.
        blocks.back()->memory.reset(new unsigned char[kSharedBytes]);
        blocks.back()->bytes.reset(new Byte[kSharedBytes]);
    }
    groups.clear();
    for (size_t g = 0; g < groups_together; ++g) {
        groups.push_back(std::make_unique<Group>());
        for (size_t b = 0; b < blocks_together; ++b) {
            const size_t place = g * blocks_together + b;
            Block* block = blocks[place].get();
            block->group = groups.back().get();
            block->fibers = fiber_table.data() + place * threads;
            groups.back()->blocks.push_back(block);
        }
    }
}

// The contents of new shared memory: NaNs in every float format, or, for every other seed, anything.
void lay_out(Block& block, uint32_t offset, uint32_t bytes) {
    unsigned char* memory = block.memory.get() + offset;
#if HOST_RUN_ASAN
    __asan_unpoison_memory_region(memory, bytes);
#endif
    for (uint32_t i = 0; i < bytes; ++i) {
        memory[i] = the_engine.seed % 2 == 0 ? 0xff : static_cast<unsigned char>(the_engine.draw());
        block.bytes[offset + i] = {{kNobody, 0, 0, 0}, {kNobody, 0, 0, 0}, true};
    }
}

void Engine::start_block(Block& block, uint32_t index) {
    for (uint32_t i = 0; i < variables_end; ++i) {
        block.bytes[i].exists = false;
    }
#if HOST_RUN_ASAN
    __asan_poison_memory_region(block.memory.get(), kSharedBytes);
#endif
    block.declared.clear();
    block.barriers.clear();
    block.dynamic_bytes = static_cast<uint32_t>(launch->dynamic_bytes);
    lay_out(block, kVariableBytes, block.dynamic_bytes);
    block.threads = launch->block.x * launch->block.y * launch->block.z;
    block.left = block.at_barrier = 0;
    block.started = false;
    block.epoch = 0;
    std::memset(block.seen, 0, sizeof block.seen);
    block.warps.resize((block.threads + kLanes - 1) / kLanes);
    for (Warp& warp : block.warps) {
        warp.pending.clear();
        warp.left = 0;
    }
    if (block.threads % kLanes != 0) {
        block.warps.back().left = ~0u << block.threads % kLanes;
    }
    const Index &grid = launch->grid, &size = launch->block;
    const Index at = {index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y};
    for (unsigned t = 0; t < block.threads; ++t) {
        Fiber& fiber = *block.fibers[t];
        fiber.self = {{t % size.x, t / size.x % size.y, t / size.x / size.y}, at, size, grid, block.rank, launch->cluster};
        fiber.block = &block;
        fiber.index = t;
        fiber.arrived = false;
        fiber.cluster_phase = 0;
        fiber.warp_epoch = 0;
        std::memset(fiber.seen, 0, sizeof fiber.seen);
        fiber.copies.clear();
        wake(&fiber);
    }
}

void Engine::start_group(Group& group) {
    const size_t count = group.blocks.size();
    const uint32_t first = order[next_group++] * static_cast<uint32_t>(count);
    group.blocks_left = static_cast<unsigned>(count);
    group.threads = static_cast<unsigned>(count) * launch->block.x * launch->block.y * launch->block.z;
    group.threads_left = group.arrived = 0;
    group.phase = 0;
    group.all_release = true;
    group.epoch = 0;
    for (uint32_t i = 0; i < count; ++i) {
        group.blocks[i]->rank = launch->cooperative ? 0 : i;
        start_block(*group.blocks[i], first + i);
    }
}

bool Engine::run(const Launch& what) {
    launch = &what;
    failed = false;
    runnable.clear();
    pushes.clear();
    variables.clear();
    variables_end = 0;
    polls = 0;
    main_known = false;
    const size_t threads = size_t{what.block.x} * what.block.y * what.block.z;
    const size_t all_blocks = size_t{what.grid.x} * what.grid.y * what.grid.z;
    const size_t together = what.cooperative ? all_blocks : what.cluster;
    const size_t group_count = all_blocks / together;
    // Blocks that know nothing of each other may still share memory: more than one lives at a time.
    const size_t room = kAtOnce / (together * threads);
    const size_t wanted = 1 + draw(3);
    const size_t alive = std::max<size_t>(1, std::min({wanted, room, group_count}));
    prepare(threads, together, alive);
    order.resize(group_count);
    for (size_t i = 0; i < group_count; ++i) {
        order[i] = static_cast<uint32_t>(i);
        std::swap(order[i], order[draw(i + 1)]);
    }
    strategy = static_cast<int>(draw(3));
    constexpr size_t kDelays[] = {4, 64, 0};
    delay = kDelays[draw(3)];
    favoured = nullptr;
    next_group = 0;
    groups_alive = alive;
    for (auto& group : groups) {
        start_group(*group);
    }
    current = pick();
    running = current;
    current->block->started = true;
    switch_stacks(main, current->context);
    running = nullptr;
    launch = nullptr;
    if (failed) {
        for (auto& fiber : fibers) {
            make_fiber(*fiber);
        }
    }
    return !failed;
}

// The running thread has come to the end of the kernel. Returns when the fiber has another one to be.
void Engine::leave() {
    Fiber& fiber = *current;
    Block& block = *fiber.block;
    Group& group = *block.group;
    if (std::memcmp(fiber.context.bottom, &kCanary, sizeof kCanary) != 0) {
        fprintf(stderr, "host run: a device thread overran its stack of %zu bytes\n", kStackBytes);
        abort();
    }
    if (block.at_barrier > 0) {
        fail("leaves the kernel while %u threads of its block wait at a barrier for it", block.at_barrier);
    }
    if (!fiber.copies.empty()) {
        fail("leaves the kernel with %zu copies that it has not waited for", fiber.copies.size());
    }
    Warp& warp = block.warps[fiber.index / kLanes];
    const uint32_t lane = 1u << fiber.index % kLanes;
    for (const Pending& pending : warp.pending) {
        if (pending.mask & lane) {
            fail("leaves the kernel while lanes %#x wait for it in a call among lanes %#x", pending.arrived, pending.mask);
        }
    }
    fiber.state = State::kLeft;
    warp.left |= lane;
    block.left += 1;
    group.threads_left += 1;
    if (block.has_left()) {
        for (const Push& push : pushes) {
            if (push.to == &block) {
                fail("is the last of its block to leave the kernel, and bytes are still on their way to it");
            }
        }
        group.blocks_left -= 1;
    }
    // Threads that have left are not waited for.
    end_phase_if_full(group);
    if (group.blocks_left == 0) {
        if (next_group < order.size()) {
            start_group(group);
        } else if (--groups_alive == 0) {
            running = nullptr;
            switch_stacks(fiber.context, main);
            return;
        }
    }
    schedule();
}

// ---------------------------------------------------------------- scheduling

Fiber* Engine::pick() {
    size_t which = draw(runnable.size());
    if (strategy == 1 && draw(8) != 0) {
        // Whoever was woken last: one thread runs far ahead.
        which = runnable.size() - 1;
    } else if (strategy == 2) {
        // One block runs ahead of the others for a while.
        if (favoured == nullptr || draw(256) == 0) {
            favoured = runnable[which]->block;
        }
        for (int i = 0; i < 8 && runnable[which]->block != favoured; ++i) {
            which = draw(runnable.size());
        }
    }
    Fiber* fiber = runnable[which];
    runnable[which] = runnable.back();
    runnable.pop_back();
    return fiber;
}

// Runs another thread, or the same one if it is runnable and drawn.
void Engine::schedule() {
    Fiber* from = current;
    while (!pushes.empty() && (runnable.empty() || (delay > 0 && draw(delay) == 0))) {
        deliver(draw(pushes.size()));
    }
    if (runnable.empty()) {
        deadlock();
    }
    Fiber* to = pick();
    to->block->started = true;
    if (to != from) {
        current = running = to;
        switch_stacks(from->context, to->context);
    }
}

// ---------------------------------------------------------------- shared memory

// Where an address of the cluster lies.
struct Place {
    Block* block;
    uint32_t offset;
};

Place resolve(uint32_t address) {
    Block& own = *running->block;
    const uint32_t rank = address >> kRankShift;
    const uint32_t offset = address & ((1u << kRankShift) - 1);
    if (rank == 0) {
        return {&own, offset};
    }
    if (rank > own.group->blocks.size()) {
        fail("%#x is no address of the cluster's shared memory", address);
    }
    return {own.group->blocks[rank - 1], offset};
}

bool exists(const Block& block, uint32_t offset) {
    if (offset >= kVariableBytes) {
        return offset - kVariableBytes < block.dynamic_bytes;
    }
    return offset < the_engine.variables_end && block.bytes[offset].exists;
}

// Ends the launch where a byte of shared memory is not there, or not in the state to be read or written.
void check_shared(Block& block, uint32_t offset, size_t bytes, bool writes) {
    const Fiber& self = *running;
    const Group& group = *block.group;
    constexpr unsigned kWarps = 1024 / kLanes;
    const auto thread = static_cast<uint16_t>(self.block->rank * 1024 + self.index);
    const unsigned own_warp = thread / kLanes;
    const auto ordered = [&](const Access& access) {
        if (access.thread == kNobody || access.thread == thread || access.cluster_epoch != group.epoch) {
            return true;
        }
        if (access.thread == kSeveral) {
            // Of this block's threads, as far as its own accesses go.
            return &block == self.block && access.epoch != block.epoch;
        }
        const unsigned warp = access.thread < kOfWarp ? access.thread / kLanes : access.thread - kOfWarp;
        return (warp / kWarps == own_warp / kWarps && access.epoch != self.block->epoch) ||
               (warp == own_warp && access.warp_epoch != self.warp_epoch);
    };
    const Access now = {thread, self.block->epoch, self.warp_epoch, group.epoch};
    for (uint32_t i = offset; i < offset + bytes; ++i) {
        if (!exists(block, i)) {
            fail("accesses shared memory at %#x, where its block has none", i);
        }
        if (HOST_RUN_ASAN) {
            // Plain accesses are not reported: nothing is known of the bytes.
            continue;
        }
        Byte& byte = block.bytes[i];
        if (byte.write.thread == kPushed) {
            if (self.block != &block) {
                fail("accesses bytes at %#x of block %u, which were sent to it", i, block.rank);
            }
            if (self.seen[byte.write.warp_epoch] <= byte.write.epoch) {
                fail("accesses bytes at %#x of shared memory that were sent to it, and has not waited for them", i);
            }
        } else if (!ordered(byte.write)) {
            fail("accesses shared memory at %#x, which thread %u of block %u has written, with no barrier between the two", i,
                 byte.write.thread % 1024u, byte.write.thread / 1024u);
        }
        if (writes) {
            if (!ordered(byte.read)) {
                fail("writes shared memory at %#x, which another thread has read, with no barrier between the two", i);
            }
            byte.write = now;
            byte.read.thread = kNobody;
        } else {
            // A copied state takes its padding along: what follows a written byte in its word of 8 passes.
            const bool padding = i > offset && i % 8 != 0 && bytes >= 8;
            if (byte.write.thread == kNobody && !padding) {
                fail("reads shared memory at %#x, which nobody has written", i);
            }
            const uint16_t before = ordered(byte.read) ? kNobody : byte.read.thread;
            byte.read = now;
            if (before != kNobody) {
                const bool same_warp = before == kOfWarp + own_warp || (before < kOfWarp && before / kLanes == own_warp);
                byte.read.thread = same_warp ? static_cast<uint16_t>(kOfWarp + own_warp) : kSeveral;
            }
        }
    }
}

ByteBarrier& barrier_at(Block& block, uint32_t address) {
    for (ByteBarrier& barrier : block.barriers) {
        if (barrier.address == address) {
            return barrier;
        }
    }
    fail("there is no byte barrier at %#x of shared memory: it was not initialised", address);
}

void Engine::complete_if_due(Block& block, ByteBarrier& barrier) {
    if (barrier.arrivals_left != 0 || barrier.bytes != 0) {
        return;
    }
    barrier.phase += 1;
    barrier.arrivals_left = barrier.arrivals;
    for (unsigned t = 0; t < block.threads; ++t) {
        Fiber* fiber = block.fibers[t];
        if (fiber->state == State::kWaiting && fiber->waits_at == Wait::kBytes && fiber->waits_for == barrier.address) {
            wake(fiber);
        }
    }
}

void Engine::deliver(size_t which) {
    const Push push = pushes[which];
    pushes[which] = pushes.back();
    pushes.pop_back();
    Block& to = *push.to;
    ByteBarrier& barrier = barrier_at(to, push.barrier);
    const uint32_t bytes = 4 * static_cast<uint32_t>(push.words);
    std::memcpy(to.memory.get() + push.offset, push.word, bytes);
    const uint16_t number = static_cast<uint16_t>(&barrier - to.barriers.data());
    for (uint32_t i = push.offset; i < push.offset + bytes; ++i) {
        to.bytes[i].write = {kPushed, barrier.phase, number, 0};
        to.bytes[i].read.thread = kNobody;
    }
    barrier.bytes -= bytes;
    complete_if_due(to, barrier);
}

void Engine::end_phase_if_full(Group& group) {
    if (group.arrived == 0 || group.arrived + group.threads_left < group.threads) {
        return;
    }
    group.arrived = 0;
    group.phase += 1;
    group.epoch = static_cast<uint16_t>(group.epoch + group.all_release);
    group.all_release = true;
    for (Block* block : group.blocks) {
        for (unsigned t = 0; t < block->threads; ++t) {
            Fiber* fiber = block->fibers[t];
            if (fiber->state == State::kWaiting && fiber->waits_at == Wait::kCluster) {
                wake(fiber);
            }
        }
    }
}

// ---------------------------------------------------------------- collectives

uint32_t reduce(const Pending& p, Collective kind) {
    bool first = true;
    uint32_t total = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!(p.mask >> lane & 1)) {
            continue;
        }
        const uint32_t v = static_cast<uint32_t>(p.value[lane]);
        const int32_t s = static_cast<int32_t>(v), t = static_cast<int32_t>(total);
        if (first) {
            total = v;
            first = false;
            continue;
        }
        switch (kind) {
            case Collective::kMin: total = std::min(total, v); break;
            case Collective::kMax: total = std::max(total, v); break;
            case Collective::kMinSigned: total = static_cast<uint32_t>(std::min(t, s)); break;
            case Collective::kMaxSigned: total = static_cast<uint32_t>(std::max(t, s)); break;
            case Collective::kAdd: total += v; break;
            case Collective::kAnd: total &= v; break;
            case Collective::kOr: total |= v; break;
            default: total ^= v; break;
        }
    }
    return total;
}

bool is_shuffle(Collective kind) {
    return kind >= Collective::kShuffleFrom && kind <= Collective::kShuffleXor;
}

uint64_t result_of(const Pending& p, int lane) {
    if (p.kind == Collective::kSync) {
        return 0;
    }
    if (p.kind == Collective::kBallot) {
        uint32_t votes = 0;
        for (int i = 0; i < kLanes; ++i) {
            votes |= (p.mask >> i & 1) && p.value[i] != 0 ? 1u << i : 0u;
        }
        return votes;
    }
    if (!is_shuffle(p.kind)) {
        return reduce(p, p.kind);
    }
    const int begin = lane & ~(p.width - 1), end = begin + p.width;
    const int argument = p.lane_argument[lane];
    int source = lane;
    switch (p.kind) {
        case Collective::kShuffleFrom: source = begin + (argument & (p.width - 1)); break;
        case Collective::kShuffleUp: source = lane - argument < begin ? lane : lane - argument; break;
        case Collective::kShuffleDown: source = lane + argument >= end ? lane : lane + argument; break;
        default: source = (lane ^ argument) >= end ? lane : lane ^ argument; break;
    }
    if (!(p.mask >> source & 1)) {
        fail("lane %d reads from lane %d in a shuffle among lanes %#x, which leave it out", lane, source, p.mask);
    }
    return p.value[source];
}

}  // namespace

// ---------------------------------------------------------------- engine.h

unsigned self(Index Thread::*which, unsigned Index::*axis) {
    return running->self.*which.*axis;
}

uint32_t self(uint32_t Thread::*which) {
    return running->self.*which;
}

void fail(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    the_engine.failure = with_seed(place() + text);
    the_engine.end_launch();
}

const char* last_failure() {
    return the_engine.failure.c_str();
}

void set_failure(const char* message) {
    the_engine.failure = with_seed(message);
}

void preempt() {
    if (the_engine.draw(32) == 0) {
        the_engine.yield();
    }
}

void poll() {
    if (++the_engine.polls > kMostPolls) {
        fail("waits for another thread that never comes (%llu polls)", static_cast<unsigned long long>(kMostPolls));
    }
    the_engine.yield();
}

uint64_t collective(Collective kind, uint32_t mask, uint64_t value, int argument, int width) {
    Engine& engine = the_engine;
    Fiber* fiber = engine.current;
    Warp& warp = fiber->block->warps[fiber->index / kLanes];
    const int lane = static_cast<int>(fiber->index % kLanes);
    const uint32_t bit = 1u << lane;
    if (!(mask & bit)) {
        fail("makes a call among lanes %#x and is none of them", mask);
    }
    if (mask & warp.left) {
        fail("makes a call among lanes %#x, of which %#x do not exist or have left the kernel", mask, mask & warp.left);
    }
    // Distances are the same in every lane: where they differ, two shuffles have met.
    const bool distance = is_shuffle(kind) && kind != Collective::kShuffleFrom;
    size_t at = 0;
    for (; at < warp.pending.size(); ++at) {
        const Pending& p = warp.pending[at];
        if (p.mask != mask) {
            continue;
        }
        if (p.kind != kind || p.width != width || (distance && p.argument != argument)) {
            fail("is at another call than lanes %#x, which wait for it among lanes %#x", p.arrived, mask);
        }
        break;
    }
    if (at == warp.pending.size()) {
        warp.pending.push_back({kind, mask, 0, argument, width, {}, {}});
    }
    Pending& mine = warp.pending[at];
    mine.arrived |= bit;
    mine.value[lane] = value;
    mine.lane_argument[lane] = argument;
    if (mine.arrived != mask) {
        engine.wait(Wait::kCall, mask);
        return fiber->result;
    }
    const Pending done = mine;
    warp.pending.erase(warp.pending.begin() + static_cast<std::ptrdiff_t>(at));
    Fiber** lanes = fiber->block->fibers + fiber->index / kLanes * kLanes;
    for (int i = 0; i < kLanes; ++i) {
        if (mask >> i & 1) {
            lanes[i]->result = result_of(done, i);
            lanes[i]->warp_epoch += kind == Collective::kSync && mask == ~0u;
            engine.wake(lanes[i]);
        }
    }
    engine.schedule();
    return fiber->result;
}

void sync_block() {
    Engine& engine = the_engine;
    Fiber* fiber = engine.current;
    Block& block = *fiber->block;
    if (block.left > 0) {
        fail("waits at a barrier of its block, of which %u threads have left the kernel", block.left);
    }
    block.at_barrier += 1;
    for (int b = 0; b < kBarriers; ++b) {
        block.seen[b] = std::max(block.seen[b], fiber->seen[b]);
    }
    if (block.at_barrier < block.threads) {
        engine.wait(Wait::kBlock, 0);
        return;
    }
    block.at_barrier = 0;
    block.epoch += 1;
    for (unsigned t = 0; t < block.threads; ++t) {
        std::memcpy(block.fibers[t]->seen, block.seen, sizeof block.seen);
        engine.wake(block.fibers[t]);
    }
    engine.schedule();
}

void cluster_arrive(bool releases) {
    Fiber* fiber = the_engine.current;
    Group& group = *fiber->block->group;
    if (fiber->arrived) {
        fail("arrives at the cluster's barrier twice without waiting");
    }
    fiber->arrived = true;
    fiber->cluster_phase = group.phase;
    group.arrived += 1;
    group.all_release = group.all_release && releases;
    the_engine.end_phase_if_full(group);
    the_engine.yield();
}

void cluster_wait() {
    Fiber* fiber = the_engine.current;
    if (!fiber->arrived) {
        fail("waits at the cluster's barrier and has not arrived there");
    }
    fiber->arrived = false;
    if (fiber->block->group->phase == fiber->cluster_phase) {
        the_engine.wait(Wait::kCluster, 0);
    }
}

void* shared_variable(const void* key, size_t bytes, size_t alignment, const char* name) {
    Engine& engine = the_engine;
    Block& block = *running->block;
    size_t number = 0;
    while (number < engine.variables.size() && engine.variables[number].key != key) {
        number += 1;
    }
    if (number == engine.variables.size()) {
        const size_t offset = (engine.variables_end + alignment - 1) / alignment * alignment;
        if (offset + bytes + kGap > kVariableBytes) {
            fail("the shared variable %s of %zu bytes makes more than 48 KiB of them", name, bytes);
        }
        const auto end = static_cast<uint32_t>(offset + bytes) + kGap;
        for (const auto& group : engine.groups) {
            for (Block* other : group->blocks) {
                for (uint32_t i = engine.variables_end; i < end; ++i) {
                    other->bytes[i].exists = false;
                }
            }
        }
        engine.variables_end = end;
        engine.variables.push_back({key, static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
    }
    const Variable& variable = engine.variables[number];
    block.declared.resize(engine.variables.size());
    if (!block.declared[number]) {
        block.declared[number] = true;
        lay_out(block, variable.offset, variable.bytes);
    }
    return block.memory.get() + variable.offset;
}

void* dynamic_shared() {
    return running->block->memory.get() + kVariableBytes;
}

uint32_t shared_address(const void* pointer) {
    Block& block = *running->block;
    const auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(block.memory.get());
    if (offset >= kSharedBytes) {
        fail("%p is no address in the shared memory of this block", pointer);
    }
    return static_cast<uint32_t>(offset);
}

uint32_t map_address(uint32_t address, uint32_t rank) {
    if (rank >= running->self.cluster_size) {
        fail("maps an address to block %u of a cluster of %u", rank, running->self.cluster_size);
    }
    return (rank + 1) << kRankShift | address;
}

void cluster_access(uint32_t address, uint32_t* word, bool writes) {
    preempt();
    const Place at = resolve(address);
    if (at.offset % sizeof *word != 0) {
        fail("an access to a word at %#x of the cluster's shared memory is misaligned", at.offset);
    }
    if (!at.block->started) {
        fail("accesses the memory of block %u of its cluster, which has not started", at.block->rank);
    }
    if (at.block->has_left()) {
        fail("accesses the memory of block %u of its cluster, which has left", at.block->rank);
    }
    check_shared(*at.block, at.offset, sizeof *word, writes);
    unsigned char* memory = at.block->memory.get() + at.offset;
    if (writes) {
        std::memcpy(memory, word, sizeof *word);
    } else {
        std::memcpy(word, memory, sizeof *word);
    }
}

void barrier_init(uint32_t address, uint32_t arrivals) {
    Block& block = *running->block;
    if (address % 8 != 0) {
        fail("a byte barrier at %#x is misaligned", address);
    }
    for (const ByteBarrier& barrier : block.barriers) {
        if (barrier.address == address) {
            fail("initialises the byte barrier at %#x again", address);
        }
    }
    if (block.barriers.size() == kBarriers) {
        fail("initialises more than %d byte barriers", kBarriers);
    }
    block.barriers.push_back({address, arrivals, arrivals, 0, 0});
}

void barrier_arrive_expecting(uint32_t address, uint32_t bytes) {
    Block& block = *running->block;
    ByteBarrier& barrier = barrier_at(block, address);
    if (barrier.arrivals_left == 0) {
        fail("arrives at the byte barrier at %#x, whose phase has all its arrivals", address);
    }
    barrier.bytes += bytes;
    barrier.arrivals_left -= 1;
    the_engine.complete_if_due(block, barrier);
    preempt();
}

void barrier_wait(uint32_t address, uint32_t parity) {
    Fiber* fiber = running;
    Block& block = *fiber->block;
    const size_t number = static_cast<size_t>(&barrier_at(block, address) - block.barriers.data());
    while ((block.barriers[number].phase & 1u) == parity) {
        the_engine.wait(Wait::kBytes, address);
    }
    fiber->seen[number] = std::max(fiber->seen[number], block.barriers[number].phase);
}

void push(uint32_t address, uint32_t barrier, const uint32_t* words, int count) {
    const Place to = resolve(address), counted = resolve(barrier);
    const uint32_t bytes = 4 * static_cast<uint32_t>(count);
    if (to.block != counted.block) {
        fail("sends bytes to one block and has them counted in another");
    }
    if (to.offset % bytes != 0) {
        fail("sends %u bytes to %#x, which is misaligned", bytes, to.offset);
    }
    if (!to.block->started) {
        fail("sends bytes to block %u of its cluster, which has not started", to.block->rank);
    }
    if (to.block->has_left()) {
        fail("sends bytes to block %u of its cluster, which has left", to.block->rank);
    }
    for (uint32_t i = to.offset; i < to.offset + bytes; ++i) {
        if (!exists(*to.block, i)) {
            fail("sends bytes to %#x, where block %u has no shared memory", i, to.block->rank);
        }
    }
    barrier_at(*counted.block, counted.offset);
    Push push = {to.block, to.offset, counted.offset, count, {}};
    std::memcpy(push.word, words, bytes);
    the_engine.pushes.push_back(push);
    preempt();
}

void enter_atomic(void* address, size_t bytes) {
    check_alignment(address, bytes);
    poll();
}

bool run(const Launch& launch) {
    return the_engine.run(launch);
}

namespace {

// A device thread's number among those of its launch, from 1.
uint32_t writer(const Fiber& fiber) {
    const Index &grid = fiber.self.grid, &at = fiber.self.block;
    return ((at.z * grid.y + at.y) * grid.x + at.x) * fiber.block->threads + fiber.index + 1;
}

}  // namespace

void writes_again(const void* address, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(address);
    for (Buffer& buffer : the_engine.buffers) {
        for (size_t i = 0; i < bytes && the_engine.checks_accesses; ++i) {
            const size_t at = begin + i - buffer.begin;
            if (buffer.access != RW_HOST_RUN_WRITE_ONCE || at >= buffer.written.size()) {
                continue;
            }
            if (buffer.written[at] != writer(*running)) {
                fail("writes byte %zu of an output again, which it has not written", at);
            }
            buffer.written[at] = 0;
        }
    }
}

void copy_later(void* to, const void* from) {
    Block& block = *running->block;
    const uint32_t offset = shared_address(to);
    check_shared(block, offset, sizeof(uint32_t[4]), true);
    std::memset(to, 0xff, sizeof(uint32_t[4]));
    for (uint32_t i = offset; i < offset + sizeof(uint32_t[4]); ++i) {
        block.bytes[i].write.thread = kNobody;
    }
    running->copies.push_back({to, from});
}

bool next_copy(Copy& copy) {
    if (running->copies.empty()) {
        return false;
    }
    // In any order.
    std::vector<Copy>& copies = running->copies;
    std::swap(copies[the_engine.draw(copies.size())], copies.back());
    copy = copies.back();
    copies.pop_back();
    return true;
}

// ---------------------------------------------------------------- every access

namespace {

// What the compiler's instrumentation calls for each access of a kernel's (-fsanitize=thread, with
// these functions in place of its runtime).
void on_access(const void* pointer, size_t bytes, bool writes) {
    Fiber* fiber = running;
    if (fiber == nullptr) {
        return;
    }
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address - reinterpret_cast<uintptr_t>(fiber->context.bottom) < kStackBytes) {
        return;
    }
    Engine& engine = the_engine;
    engine.checks_accesses = true;
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(fiber->block->memory.get());
    if (offset < kSharedBytes) {
        preempt();
        check_shared(*fiber->block, static_cast<uint32_t>(offset), bytes, writes);
        return;
    }
    for (Buffer& buffer : engine.buffers) {
        if (address < buffer.begin || address >= buffer.end) {
            continue;
        }
        if (address + bytes > buffer.end) {
            fail("an access of %zu bytes at %p overruns a buffer by %zu", bytes, pointer,
                 static_cast<size_t>(address + bytes - buffer.end));
        }
        if (writes && buffer.access == RW_HOST_RUN_READ) {
            fail("writes to an input at byte %zu", static_cast<size_t>(address - buffer.begin));
        }
        const size_t first = address - buffer.begin;
        if (buffer.access == RW_HOST_RUN_WRITE_ONCE && !writes) {
            fail("reads from an output at byte %zu", first);
        }
        const uint32_t self = writer(*fiber);
        for (size_t i = first; i < first + bytes && !buffer.written.empty(); ++i) {
            // The padding of a state that has been written is read as well, word by word.
            if (!writes && !buffer.written[i] && !buffer.written[i - i % 8]) {
                fail("reads byte %zu of the workspace, which nobody has written", i);
            }
            if (buffer.access == RW_HOST_RUN_WRITE_ONCE && buffer.written[i]) {
                fail("writes byte %zu of an output, which has been written before", i);
            }
            buffer.written[i] = writes ? self : buffer.written[i];
        }
        return;
    }
    const auto arguments = reinterpret_cast<uintptr_t>(engine.launch->arguments);
    if (address - arguments < engine.launch->argument_bytes && !writes) {
        return;
    }
    for (const auto& block : engine.blocks) {
        if (address - reinterpret_cast<uintptr_t>(block->memory.get()) < kSharedBytes) {
            fail("accesses another block's shared memory by a plain pointer");
        }
    }
    fail("%s %zu bytes at %p, which is in no buffer of the call", writes ? "writes" : "reads", bytes, pointer);
}

}  // namespace
}  // namespace host_run

extern "C" {

#define HOST_RUN_ACCESS(size)                                                                   \
    void __tsan_read##size(void* p) { host_run::on_access(p, size, false); }                    \
    void __tsan_write##size(void* p) { host_run::on_access(p, size, true); }                    \
    void __tsan_unaligned_read##size(void* p) { host_run::on_access(p, size, false); }          \
    void __tsan_unaligned_write##size(void* p) { host_run::on_access(p, size, true); }
HOST_RUN_ACCESS(1)
HOST_RUN_ACCESS(2)
HOST_RUN_ACCESS(4)
HOST_RUN_ACCESS(8)
HOST_RUN_ACCESS(16)
#undef HOST_RUN_ACCESS
void __tsan_read_range(void* p, size_t bytes) { host_run::on_access(p, bytes, false); }
void __tsan_write_range(void* p, size_t bytes) { host_run::on_access(p, bytes, true); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}

#if HOST_RUN_ASAN
// Leaks are not what is looked for, and the test harness has its own. rustc orders the libraries, with
// which ASan would find fault.
const char* __asan_default_options() { return "detect_leaks=0:verify_asan_link_order=0"; }
#endif

void rw_host_run_begin(uint64_t seed, uint64_t call) {
    host_run::Engine& engine = host_run::the_engine;
    engine.seed = seed;
    engine.call = call;
    engine.random = seed;
    engine.random = engine.draw() ^ call;
    engine.buffers.clear();
    engine.failure.clear();
    engine.checks_accesses = false;
}

void rw_host_run_buffer(const void* data, uint64_t bytes, rw_host_run_access access) {
    host_run::Buffer buffer = {};
    buffer.begin = reinterpret_cast<uintptr_t>(data);
    buffer.end = buffer.begin + bytes;
    buffer.access = access;
    buffer.written.resize(access == RW_HOST_RUN_WRITE_ONCE || access == RW_HOST_RUN_SCRATCH ? bytes : 0);
    host_run::the_engine.buffers.push_back(std::move(buffer));
}

int32_t rw_host_run_end(void) {
    host_run::Engine& engine = host_run::the_engine;
    int32_t status = 0;
    for (const host_run::Buffer& buffer : engine.buffers) {
        if (status != 0 || !engine.failure.empty() || !engine.checks_accesses) {
            break;
        }
        if (buffer.access != RW_HOST_RUN_WRITE_ONCE) {
            continue;
        }
        const auto* now = reinterpret_cast<const unsigned char*>(buffer.begin);
        const auto untouched = [&](size_t i) {
            return i >= buffer.written.size() || (buffer.written[i] == 0 && now[i] == 0xff);
        };
        for (size_t i = 0; i < buffer.written.size(); ++i) {
            // GCC does not report the store of a struct that a call returns, a half number say: what has
            // changed was written too. (Half a NaN is no 0xffff.)
            if (untouched(i) && untouched(i ^ 1)) {
                engine.failure = host_run::with_seed("byte " + std::to_string(i) + " of an output was not written");
                status = 719;
                break;
            }
        }
    }
    engine.buffers.clear();
    return status;
}

int32_t rw_host_run_has_asan(void) { return HOST_RUN_ASAN; }

}  // extern "C"
