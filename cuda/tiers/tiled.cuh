// The tiled tier: rows that are columns in memory, turned into rows in shared memory.
//
// A panel is a number of neighbouring columns, all of their axis. Threads read 16 bytes of several
// columns at a place of the axis (so that memory sees whole lines), and write to shared memory words
// of one column at neighbouring places. Then a warp owns a row as on the other tiers. Rows too long
// for one block's shared memory are turned by a cluster: each block reads a part of the axis, of all
// columns of the panel, and sends each column to the block that will own it.
#pragma once

#include <rowwise/rowwise.cuh>

#include "../abi.h"

namespace rowwise {

// Whether there are clusters: before sm_90 every panel is one block's.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

// Blocks that a multiprocessor should hold at once: two, so that one moves data while the other
// computes, but where their registers spill.
template <int V>
constexpr int kTiledBlocks = kHasClusters && V < 8 ? 2 : 1;

// This block's place among those that share its panel.
RW_DEVICE int panel_rank(int blocks) {
    if constexpr (kHasClusters) {
        return blocks > 1 ? static_cast<int>(cluster_rank()) : 0;
    }
    return 0;
}

// Waits for the blocks that share a panel, and sees what they have written.
RW_DEVICE void sync_panel(int blocks) {
    if constexpr (kHasClusters) {
        if (blocks > 1) {
            sync_cluster();
            return;
        }
    }
    sync_block();
}

// How panels are cut; see rw_plan.
struct PanelGeometry {
    i64 width;      // of a row
    int groups;     // 16-byte groups of columns that a warp reads side by side: 2, 4 or 8
    int repeats;    // of those, side by side in a panel
    int blocks;     // that share a panel
    int own_log2;   // columns that each block owns
    int row_slots;  // 16-byte vectors that a row has room for: a multiple of 8
    int lanes;      // that share a chunk
    i64 chunks;
    i64 panels;     // side by side in one outer index
};

// Moves a panel between global memory, where it is columns, and the shared memory of the blocks that
// share it, where it is rows.
template <class T>
class PanelMover {
    static constexpr int W = kVectorElements<T>;
    static constexpr int kBytes = sizeof(T);
    // Elements of a row in one word, and words in one vector; 8-byte elements travel as two words.
    static constexpr int kPerWord = kBytes < 4 ? 4 / kBytes : 1;
    static constexpr int kUnits = W / kPerWord;
    // Steps whose reads are under way at once: some 8 vectors a thread.
    static constexpr int kSteps = 8 / kPerWord;

public:
    RW_DEVICE PanelMover(const PanelGeometry& g, unsigned char* shared, i64 column, i64 columns)
        : g_(g),
          shared_(shared),
          column_(column),
          columns_(columns),
          own_(1 << g.own_log2),
          rank_(panel_rank(g.blocks)) {
        const int units = static_cast<int>((g.width + W - 1) / W) * kUnits;
        // This block's part of the axis.
        first_unit_ = units / kUnits * rank_ / g.blocks * kUnits;
        const int end = units / kUnits * (rank_ + 1) / g.blocks * kUnits;
        per_step_ = kWarpSize / g.groups;
        steps_ = (end - first_unit_ + per_step_ - 1) / per_step_;
        end_unit_ = end;
    }

    // The row of column `local` of those that this block owns.
    RW_DEVICE PanelRow row(int local) const {
        return {reinterpret_cast<Word4*>(shared_) + local * g_.row_slots,
                swizzle((rank_ * own_ + local) / W)};
    }

    RW_DEVICE int own() const {
        return own_;
    }

    // `data` is the panel's first element. `Ready` is called before the first write, and may hold a barrier:
    // all threads of the block come to it together, those that have nothing to move as well.
    template <class Ready>
    RW_DEVICE void turn_in(const T* data, i64 stride, Ready ready) {
        const bool aligned = is_vector_aligned(data) && stride % W == 0;
        for_each_batch([&](bool first, int count, auto place) {
            Vector<T> read[kSteps][kPerWord];
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                if (s < count) {
                    const Place at = place(s);
#pragma unroll
                    for (int k = 0; k < kPerWord; ++k) {
                        read_group(read[s][k], data, stride, at, k, aligned);
                    }
                }
            }
            if (first) {
                ready();
            }
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                if (s < count) {
                    const Place at = place(s);
                    if (at.exists) {
#pragma unroll
                        for (int w = 0; w < W; ++w) {
                            write_words(read[s], w, at);
                        }
                    }
                }
            }
        });
    }

    RW_DEVICE void turn_out(T* data, i64 stride) {
        const bool aligned = is_vector_aligned(data) && stride % W == 0;
        for_each_batch([&](bool, int count, auto place) {
#pragma unroll
            for (int s = 0; s < kSteps; ++s) {
                if (s < count) {
                    const Place at = place(s);
                    if (at.exists) {
                        Vector<T> turned[kPerWord];
#pragma unroll
                        for (int w = 0; w < W; ++w) {
                            read_words(turned, w, at);
                        }
#pragma unroll
                        for (int k = 0; k < kPerWord; ++k) {
                            write_group(turned[k], data, stride, at, k, aligned);
                        }
                    }
                }
            }
        });
    }

private:
    // What one thread moves at a step: `kPerWord` places of the axis, of one group of columns.
    struct Place {
        int group;  // of columns, in the panel
        int unit;   // word of the row
        bool exists;
    };

    // As often for each warp, and once at least: a warp that has no steps left has a count below 1.
    template <class F>
    RW_DEVICE void for_each_batch(F f) {
        const int warp = threadIdx.x / kWarpSize;
        const int warps = blockDim.x / kWarpSize;
        const int all = steps_ * g_.repeats;
        int start = 0;
        do {
            const int step = start + warp;
            const int count = min_of(kSteps, (all - step + warps - 1) / warps);
            f(start == 0, count, [&](int s) {
                const int index = step + s * warps;
                const int repeat = g_.repeats == 1 ? 0 : index / steps_;
                const int unit =
                    first_unit_ + (index - repeat * steps_) * per_step_ + lane_id() / g_.groups;
                return Place{repeat * g_.groups + lane_id() % g_.groups, unit, unit < end_unit_};
            });
            start += warps * kSteps;
        } while (start < all);
    }

    RW_DEVICE int swizzle(int group) const {
        return (group % g_.groups) * (8 / g_.groups);
    }

    RW_DEVICE i64 axis_place(const Place& at, int k) const {
        return static_cast<i64>(at.unit) * kPerWord + k;
    }

    // Columns of a group that the panel has.
    RW_DEVICE int columns_left(const Place& at) const {
        return static_cast<int>(min_of<i64>(columns_ - column_ - at.group * W, W));
    }

    RW_DEVICE void read_group(Vector<T>& to, const T* data, i64 stride, const Place& at, int k,
                              bool aligned) const {
        const i64 i = axis_place(at, k);
        const int left = columns_left(at);
        if (!at.exists || i >= g_.width || left <= 0) {
            return;
        }
        const T* from = data + i * stride + at.group * W;
        if (aligned && left == W) {
            to.raw = load_streaming(from);
            return;
        }
#pragma unroll
        for (int w = 0; w < W; ++w) {
            if (w < left) {
                put_element(to, w, from[w]);
            }
        }
    }

    RW_DEVICE void write_group(const Vector<T>& from, T* data, i64 stride, const Place& at, int k,
                               bool aligned) const {
        const i64 i = axis_place(at, k);
        const int left = columns_left(at);
        if (i >= g_.width || left <= 0) {
            return;
        }
        T* to = data + i * stride + at.group * W;
        if (aligned && left == W) {
            store_streaming(to, from.raw);
            return;
        }
#pragma unroll
        for (int w = 0; w < W; ++w) {
            if (w < left) {
                to[w] = element(from, w);
            }
        }
    }

    // Where the word, or the two, of column w of the group lie, and in whose shared memory.
    RW_DEVICE u32* word_address(int w, const Place& at, int& owner) const {
        const int column = at.group * W + w;
        owner = column >> g_.own_log2;
        const int local = column & (own_ - 1);
        const int slot = (at.unit / kUnits) ^ swizzle(at.group);
        const int word = at.unit % kUnits * (kBytes == 8 ? 2 : 1);
        return reinterpret_cast<u32*>(shared_) + (local * g_.row_slots + slot) * 4 + word;
    }

    RW_DEVICE void write_words(const Vector<T> (&from)[kPerWord], int w, const Place& at) const {
        u32 words[kBytes == 8 ? 2 : 1] = {};
#pragma unroll
        for (int k = 0; k < kPerWord; ++k) {
            const u64 bits = element_bits(element(from[k], w));
            words[0] |= static_cast<u32>(bits) << (8 * kBytes * k % 32);
            if constexpr (kBytes == 8) {
                words[1] = static_cast<u32>(bits >> 32);
            }
        }
        int owner;
        u32* to = word_address(w, at, owner);
#pragma unroll
        for (int i = 0; i < (kBytes == 8 ? 2 : 1); ++i) {
            if constexpr (kHasClusters) {
                if (g_.blocks > 1) {
                    store_cluster_word(cluster_address(to + i, static_cast<u32>(owner)), words[i]);
                    continue;
                }
            }
            to[i] = words[i];
        }
    }

    RW_DEVICE void read_words(Vector<T> (&to)[kPerWord], int w, const Place& at) const {
        int owner;
        const u32* from = word_address(w, at, owner);
        u32 words[kBytes == 8 ? 2 : 1];
#pragma unroll
        for (int i = 0; i < (kBytes == 8 ? 2 : 1); ++i) {
            if constexpr (kHasClusters) {
                if (g_.blocks > 1) {
                    words[i] = load_cluster_word(cluster_address(from + i, static_cast<u32>(owner)));
                    continue;
                }
            }
            words[i] = from[i];
        }
#pragma unroll
        for (int k = 0; k < kPerWord; ++k) {
            u64 bits = words[0] >> (8 * kBytes * k % 32);
            if constexpr (kBytes == 8) {
                bits |= static_cast<u64>(words[1]) << 32;
            }
            T value;
            __builtin_memcpy(&value, &bits, kBytes);
            put_element(to[k], w, value);
        }
    }

    const PanelGeometry& g_;
    unsigned char* shared_;
    i64 column_;   // of the panel's first
    i64 columns_;  // side by side in memory
    int own_;      // columns that a block owns
    int rank_;
    int first_unit_;
    int end_unit_;
    int per_step_;
    int steps_;
};

template <class Body, int V, Ownership O>
__global__ void __launch_bounds__(RW_TILED_WARPS * kWarpSize, kTiledBlocks<V>)
    tiled_kernel(const __grid_constant__ Body body, const __grid_constant__ PanelGeometry g) {
    using T = typename Body::Element;
    using Ctx = Context<T, V, O, Body::kStateBytes>;
    RW_DYNAMIC_SHARED(dynamic_shared);
    const u32 panel = blockIdx.x / static_cast<u32>(g.blocks);
    const u32 outer = panel / static_cast<u32>(g.panels);
    const i64 column = static_cast<i64>(panel - outer * static_cast<u32>(g.panels)) *
                       (g.groups * g.repeats * kVectorElements<T>);
    const i64 columns = body.x.inner;
    PanelMover<T> mover(g, dynamic_shared, column, columns);
    mover.turn_in(body.x.row(outer) + column, body.x.axis_stride, [&] {
        // Nobody writes to a block that has not started.
        sync_panel(g.blocks);
    });
    sync_panel(g.blocks);
    Ctx ctx{};
    ctx.lane = lane_id() & (g.lanes - 1);
    ctx.lanes = g.lanes;
    ctx.warps = 1;
    ctx.chunks = g.chunks;
    ctx.end_chunk = g.chunks;
    const int rows_per_warp = kWarpSize / g.lanes;
    const int step = blockDim.x / kWarpSize * rows_per_warp;
    const i64 first = column + panel_rank(g.blocks) * mover.own();
    for (int base = threadIdx.x / kWarpSize * rows_per_warp; base < mover.own(); base += step) {
        const int local = base + lane_id() / g.lanes;
        // Lanes without a row of their own go along with the others of their warp.
        const bool exists = local < mover.own() && first + local < columns;
        if (!exists && O == Ownership::kTiledStreaming) {
            // Nor do the rows of this warp that follow.
            break;
        }
        ctx.panel = mover.row(exists ? local : 0);
        ctx.walks = 0;
        ctx.folds = 0;
        body(Row{outer * columns + first + local, exists}, g.width, ctx);
    }
    if constexpr (Body::kEmitsRow) {
        sync_panel(g.blocks);
        mover.turn_out(body.y + outer * g.width * columns + column, columns);
        // Nobody leaves while a peer may still read its rows.
        sync_panel(g.blocks);
    }
}

}  // namespace rowwise
