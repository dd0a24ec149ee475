// The join ladder: lanes of a warp, warps of a block. Each rung is built on the one below, so the
// shuffle loop is written once. Every participant receives the result.
//
// A state is joined in the order of the row at every rung: the tree over 32 lanes, then the same
// tree over up to 32 warps. Participants that hold nothing bring the identity, which changes no
// bits, so a rung may be entered with fewer than 32 of them and the result stays the same.
#pragma once

#include "reduce_op.cuh"
#include "math.cuh"

namespace rowwise {

// A state's copy in another lane. States of any size travel as 32-bit words; one that is not a
// multiple of a word is padded.
template <class State>
RW_DEVICE State shuffle_state_xor(const State& state, int lane_mask) {
    constexpr int kWords = (static_cast<int>(sizeof(State)) + 3) / 4;
    u32 words[kWords];
    words[kWords - 1] = 0;
    __builtin_memcpy(words, &state, sizeof(State));
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
        words[i] = shuffle_xor(words[i], lane_mask);
    }
    State other;
    __builtin_memcpy(&other, words, sizeof(State));
    return other;
}

// Combines over `lanes` neighbouring lanes of a warp, a power of two. All lanes of the warp call.
struct WarpReducer {
    int lanes = kWarpSize;

    template <class A>
    RW_DEVICE A sum(A value) const {
        return fold(value, [](A low, A high) { return low + high; });
    }

    template <class A>
    RW_DEVICE A max(A value) const {
        return fold(value, [](A low, A high) { return max_nan(low, high); });
    }

    template <class A>
    RW_DEVICE A min(A value) const {
        return fold(value, [](A low, A high) { return -max_nan(-low, -high); });
    }

    template <class Op>
    RW_DEVICE Op generic(const Op& state) const {
        return fold(state, [](Op low, const Op& high) {
            low.join(high);
            return low;
        });
    }

private:
    // A butterfly in which the lower lane's part always stands on the left: after it, all lanes
    // hold the same bits.
    template <class State, class F>
    RW_DEVICE State fold(State mine, F combine) const {
        const int lane = lane_id();
#pragma unroll
        for (int distance = 1; distance < kWarpSize; distance *= 2) {
            if (distance < lanes) {
                const State other = shuffle_state_xor(mine, distance);
                mine = (lane & distance) ? combine(other, mine) : combine(mine, other);
            }
        }
        return mine;
    }
};

// Joins up to 32 states that lie in shared memory, in their order; for a whole warp.
template <class Op>
RW_DEVICE Op join_slots(const Op* slots, int count) {
    const int lane = lane_id();
    Op mine = Op::identity();
    if (lane < count) {
        mine = slots[lane];
    }
    return mine.join_parallel(WarpReducer{});
}

// Combines over the warps of a block. `slots` is shared memory for one state a warp; it may be
// written again once every thread has passed another barrier of the block.
struct BlockReducer {
    void* slots;
    int warps;

    template <class A>
    RW_DEVICE A sum(A value) const {
        return across_warps(value, [](const WarpReducer& warp, A v) { return warp.sum(v); }, -A(0));
    }

    template <class A>
    RW_DEVICE A max(A value) const {
        return across_warps(value, [](const WarpReducer& warp, A v) { return warp.max(v); },
                            -Limits<A>::infinity());
    }

    template <class A>
    RW_DEVICE A min(A value) const {
        return across_warps(value, [](const WarpReducer& warp, A v) { return warp.min(v); },
                            Limits<A>::infinity());
    }

    // The op's own join_parallel is what runs at both rungs: an op that carries more than its value
    // (an index, say) must never be joined as if it did not.
    template <class Op>
    RW_DEVICE Op generic(const Op& state) const {
        return across_warps(
            state, [](const WarpReducer& warp, const Op& s) { return s.join_parallel(warp); },
            Op::identity());
    }

private:
    template <class State, class F>
    RW_DEVICE State across_warps(const State& mine, F in_warp, State identity) const {
        State* typed = static_cast<State*>(slots);
        const int lane = lane_id();
        const State part = in_warp(WarpReducer{}, mine);
        if (lane == 0) {
            typed[threadIdx.x / kWarpSize] = part;
        }
        sync_block();
        State other = identity;
        if (lane < warps) {
            other = typed[lane];
        }
        return in_warp(WarpReducer{}, other);
    }
};

}  // namespace rowwise
