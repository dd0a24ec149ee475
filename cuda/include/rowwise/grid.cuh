// The top rung of the join ladder: blocks anywhere on the device that share a row (split-K).
//
// All blocks of the launch are resident at once (a cooperative launch), so a block may wait for
// another. Each publishes its states in global memory, waits until all of its team have, and joins
// them all in the order of the row, so every block comes to the same bits. No state is added to
// another in memory, and the counters are back at 0 when the kernel ends: a call needs nothing cleared.
#pragma once

#include "reducer.cuh"

namespace rowwise {

// Counters of one team, on a line of their own.
struct alignas(128) TeamCounters {
    u32 arrived;
    u32 left;
};

// The blocks that share a row.
struct Team {
    TeamCounters* counters;
    unsigned char* units;  // two halves of `unit_count` states, used in turn
    i64 unit_count;        // of the row
    int unit;              // chunks that a published state stands for: 1, or a group
    int blocks;
    u32 barriers;          // that the team has passed, over all its rows
};

// Waits until every block of the team has come here, and sees what they wrote before. All threads of
// the block call.
RW_DEVICE void sync_team(Team& team) {
    sync_block();
    team.barriers += 1;
    if (threadIdx.x == 0) {
        add_release(&team.counters->arrived, 1);
        const u32 target = team.barriers * static_cast<u32>(team.blocks);
        // As a difference: the counter may wrap.
        while (static_cast<i32>(load_acquire(&team.counters->arrived) - target) < 0) {
        }
    }
    sync_block();
}

// What every block does when it is done: the last one to leave puts the counters back.
RW_DEVICE void leave_team(const Team& team) {
    if (threadIdx.x == 0 && add_release(&team.counters->left, 1) == static_cast<u32>(team.blocks) - 1) {
        team.counters->arrived = 0;
        team.counters->left = 0;
    }
}

// Joins up to a warp's worth of states that other blocks have published, in their order.
template <class Op>
RW_DEVICE Op join_published(const Slot<Op>* published, int count) {
    Op mine = Op::identity();
    if (lane_id() < count) {
        constexpr int kWords = sizeof(Slot<Op>) / 4;
        const u32* from = reinterpret_cast<const u32*>(published + lane_id());
        u32 words[kWords];
#pragma unroll
        for (int i = 0; i < kWords; ++i) {
            words[i] = load_coherent(from + i);
        }
        __builtin_memcpy(&mine, words, sizeof(Op));
    }
    return mine.join_parallel(WarpReducer{});
}

}  // namespace rowwise
