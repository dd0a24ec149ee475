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

// A state as the 32-bit words it travels in; one that is not a multiple of a word is padded.
template <class State>
struct Words {
    static constexpr int kCount = (static_cast<int>(sizeof(State)) + 3) / 4;
    u32 word[kCount];

    RW_DEVICE explicit Words(const State& state) {
        word[kCount - 1] = 0;
        __builtin_memcpy(word, &state, sizeof(State));
    }
};

// A state's copy in another lane; `move` says which, for one word.
template <class State, class F>
RW_DEVICE State shuffle_state(const State& state, F move) {
    Words<State> words(state);
#pragma unroll
    for (int i = 0; i < Words<State>::kCount; ++i) {
        words.word[i] = move(words.word[i]);
    }
    State other;
    __builtin_memcpy(&other, words.word, sizeof(State));
    return other;
}

// Combines over `lanes` neighbouring lanes of a warp, a power of two.
//
// All lanes of the warp call together, unless `apart` says otherwise: then each group of lanes has a
// row of its own, and a body may have branched on its row's state, so a group may count on itself
// alone.
struct WarpReducer {
    int lanes = kWarpSize;
    bool apart = false;

    // Addition and maximum give the same bits whichever operand stands first.
    template <class A>
    RW_DEVICE A sum(A value) const {
        return butterfly(value, [](A mine, A other, bool) { return mine + other; });
    }

    template <class A>
    RW_DEVICE A max(A value) const {
        return butterfly(value, [](A mine, A other, bool) { return max_nan(mine, other); });
    }

    template <class A>
    RW_DEVICE A min(A value) const {
        return mirrored(max(mirrored(value)));
    }

    // The first lane's value.
    template <class A>
    RW_DEVICE A first(A value) const {
        const int source = lane_id() & ~(lanes - 1);
        const u32 with = apart ? group() : kAllLanes;
        return shuffle_state(value, [=](u32 word) { return shuffle_from(with, word, source); });
    }

    // The smallest of unsigned words, by the warp's own reduction where it has the whole warp.
    RW_DEVICE u32 min(u32 value) const {
        if (lanes == kWarpSize) {
            return reduce_min(value);
        }
        return butterfly(value, [](u32 mine, u32 other, bool) { return min_of(mine, other); });
    }

    // The lower lane's part always stands on the left, so all lanes end with the same bits.
    template <class Op>
    RW_DEVICE Op generic(const Op& state) const {
        return butterfly(state, [](const Op& mine, const Op& other, bool other_is_later) {
            Op low = other_is_later ? mine : other;
            low.join(other_is_later ? other : mine);
            return low;
        });
    }

private:
    RW_DEVICE u32 group() const {
        return lane_group(lanes);
    }

    template <class State, class F>
    RW_DEVICE State butterfly(const State& mine, F combine) const {
        // Twice the code, so that the common case names its lanes by a constant: with a variable, each
        // shuffle is preceded by an instruction that waits for them.
        return apart ? butterfly_among(group(), mine, combine)
                     : butterfly_among(kAllLanes, mine, combine);
    }

    template <class State, class F>
    RW_DEVICE State butterfly_among(u32 together, State mine, F combine) const {
        const int lane = lane_id();
#pragma unroll
        for (int distance = 1; distance < kWarpSize; distance *= 2) {
            if (distance < lanes) {
                const State other = shuffle_state(
                    mine, [=](u32 word) { return shuffle_xor(together, word, distance); });
                mine = combine(mine, other, (lane & distance) == 0);
            }
        }
        return mine;
    }
};

// A state as it lies in memory that threads share: a whole number of words.
template <class State>
struct alignas(alignof(State) < 4 ? 4 : alignof(State)) Slot {
    State state;
};

// Joins up to `Most` states that lie in shared memory, in their order; for a whole warp. `Most` is a
// power of two: lanes beyond it repeat the work of those below.
template <int Most, class Op>
RW_DEVICE Op join_slots(const Slot<Op>* slots, int count) {
    static_assert(Most <= kWarpSize && (Most & (Most - 1)) == 0, "one slot a lane");
    const int slot = lane_id() & (Most - 1);
    Op mine = Op::identity();
    if (slot < count) {
        mine = slots[slot].state;
    }
    return mine.join_parallel(WarpReducer{Most});
}

// The same of up to 32 groups of 32: groups first.
template <class Op>
RW_DEVICE Op join_slots_in_groups(const Slot<Op>* slots, int count) {
    if (count <= kWarpSize) {
        return join_slots<kWarpSize>(slots, count);
    }
    Op mine = Op::identity();
    for (int first = 0; first < count; first += kWarpSize) {
        const Op group = join_slots<kWarpSize>(slots + first, min_of(kWarpSize, count - first));
        if (lane_id() == first / kWarpSize) {
            mine = group;
        }
    }
    return mine.join_parallel(WarpReducer{});
}

// Warps of a block that share a row without streaming, at most.
constexpr int kMaxResidentWarps = 8;

// Combines over the warps of a block. `slots` is shared memory for one state a warp; it may be
// written again once every thread has passed another barrier of the block.
struct BlockReducer {
    void* slots;
    int warps;

    template <class A>
    RW_DEVICE A sum(A value) const {
        return scalar(value, -A(0), [](const WarpReducer& warp, A v) { return warp.sum(v); });
    }

    template <class A>
    RW_DEVICE A max(A value) const {
        return scalar(value, Limits<A>::lowest(),
                      [](const WarpReducer& warp, A v) { return warp.max(v); });
    }

    template <class A>
    RW_DEVICE A min(A value) const {
        return mirrored(max(mirrored(value)));
    }

    // The op's own join_parallel is what runs at both rungs: an op that carries more than its value
    // (an index, say) must never be joined as if it did not.
    template <class Op>
    RW_DEVICE Op generic(const Op& state) const {
        const Slot<Op>* typed = publish(state.join_parallel(WarpReducer{}));
        return join_slots<kMaxResidentWarps>(typed, warps);
    }

private:
    // Puts each warp's part into its slot and waits until all are there.
    template <class State>
    RW_DEVICE const Slot<State>* publish(const State& part) const {
        Slot<State>* typed = static_cast<Slot<State>*>(slots);
        if (lane_id() == 0) {
            typed[threadIdx.x / kWarpSize].state = part;
        }
        sync_block();
        return typed;
    }

    template <class A, class F>
    RW_DEVICE A scalar(A value, A identity, F in_warp) const {
        const Slot<A>* typed = publish(in_warp(WarpReducer{}, value));
        const int slot = lane_id() & (kMaxResidentWarps - 1);
        return in_warp(WarpReducer{kMaxResidentWarps}, slot < warps ? typed[slot].state : identity);
    }
};

}  // namespace rowwise
