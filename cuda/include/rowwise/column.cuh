// Rows that are columns in memory: how a thread reads and writes its share of one.
//
// Neighbouring lanes have neighbouring rows, so each access of a warp is a piece of a line. Of a half type that
// piece would be half as long: two lanes with neighbouring rows of an even number share their accesses instead,
// one taking both rows' elements at a place of the axis, the other at the next place, and then give each other
// what is not their own. Over dim 0 of (16384, 8192) bf16, sum went from 0.65 of a copy to 0.66 by it, softmax from 0.35
// to 0.38 (stand-alone kernels, H200, 2026-11-30).
#pragma once

#include "rows.cuh"

namespace rowwise {

// Of an element type E, const where it is only read.
template <class E>
class Column {
    using T = typename Mutable<E>::type;
    static constexpr int W = kVectorElements<T>;
    using Pair = conditional_t<Mutable<E>::kIsConst, const u32, u32>;

public:
    // `first` is the row's first element, and the row has `stride` elements from one of its own to the next.
    // All lanes of the warp have rows with the same stride; for `has_pairs` see ColumnPlace.
    RW_DEVICE Column(E* first, i64 stride, bool has_pairs)
        : first_(first),
          stride_(stride),
          step_(static_cast<u32>(stride * sizeof(T))),
          odd_(lane_id() & 1),
          paired_(sizeof(T) == 2 && has_pairs && stride % 2 == 0 &&
                  (reinterpret_cast<u64>(first) - odd_ * sizeof(T)) % 4 == 0) {}

    // Elements past the end of the row become `pad`. All lanes of a warp.
    template <int V, class TileT>
    RW_DEVICE void load(Vector<T> (&out)[V], const TileT& tile, T pad) const {
        // Whether each row has all of its tile, so that no lane is alone.
        if (every_lane(tile.is_full())) {
            if constexpr (sizeof(T) == 2) {
                if (paired_) {
                    load_pairs(out, tile);
                    return;
                }
            }
            load_elements(out, tile);
            return;
        }
        E* of_vector = first_ + tile.first * stride_;
#pragma unroll
        for (int j = 0; j < V; ++j, of_vector += tile.stride * stride_) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                put_element(out[j], w, tile.has(j * W + w) ? of_vector[w * stride_] : pad);
            }
            // Vector by vector: all at once, whole tiles would pay for the registers.
            keep_reads_back();
        }
    }

    // Vector `part` of the row, all of which every lane of the warp has.
    template <class TileT>
    RW_DEVICE void store_whole(const TileT& part, const Vector<T>& in) const {
        if constexpr (sizeof(T) == 2) {
            if (paired_) {
                Pair* to = pair(part.first);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    *further(to, 2 * k) = exchange(in.raw.word[k]);
                }
                return;
            }
        }
        E* to = first_ + part.first * stride_;
#pragma unroll
        for (int w = 0; w < W; ++w) {
            *further(to, w) = element(in, w);
        }
    }

    // The same of what the row has of it.
    template <class TileT>
    RW_DEVICE void store(const TileT& part, const Vector<T>& in) const {
        E* to = first_ + part.first * stride_;
#pragma unroll
        for (int w = 0; w < W; ++w) {
            if (w < part.left) {
                to[w * stride_] = element(in, w);
            }
        }
    }

private:
    // The same column's element so many further: of a constant, one instruction. (In 64 bits it takes two, of
    // which a bf16 softmax has 28 an element at the speed of a copy.)
    template <class P>
    RW_DEVICE P* further(P* from, u32 elements) const {
        using Bytes = conditional_t<Mutable<P>::kIsConst, const char*, char*>;
        return reinterpret_cast<P*>(reinterpret_cast<Bytes>(from) + static_cast<u64>(step_) * elements);
    }

    // Where this lane's first pair of those of a vector is.
    RW_DEVICE Pair* pair(i64 position) const {
        return reinterpret_cast<Pair*>(first_ - odd_ + (position + odd_) * stride_);
    }

    // Of a row's two elements and the neighbour's, those of both rows at this lane's place; and the other way
    // round.
    RW_DEVICE u32 exchange(u32 word) const {
        return byte_permute(word, shuffle_xor(kAllLanes, word, 1), odd_ ? 0x3276 : 0x5410);
    }

    // All of them on their way before the first is used.
    template <int V, class TileT>
    RW_DEVICE void load_pairs(Vector<T> (&out)[V], const TileT& tile) const {
        Pair* of_vector = pair(tile.first);
        // In words.
        const i64 step = tile.stride / 2 * stride_;
#pragma unroll
        for (int j = 0; j < V; ++j, of_vector += step) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                out[j].raw.word[k] = *further(of_vector, 2 * k);
            }
        }
#pragma unroll
        for (int j = 0; j < V; ++j) {
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                out[j].raw.word[k] = exchange(out[j].raw.word[k]);
            }
        }
    }

    template <int V, class TileT>
    RW_DEVICE void load_elements(Vector<T> (&out)[V], const TileT& tile) const {
        E* of_vector = first_ + tile.first * stride_;
        const i64 step = tile.stride * stride_;
        T elements[V * W];
#pragma unroll
        for (int j = 0; j < V; ++j, of_vector += step) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                elements[j * W + w] = *further(of_vector, w);
            }
        }
#pragma unroll
        for (int e = 0; e < V * W; ++e) {
            put_element(out[e / W], e % W, elements[e]);
        }
    }

    E* first_;
    i64 stride_;
    u32 step_;  // the same in bytes: src/problem.rs has rows packed that lie further apart
    int odd_;
    bool paired_;
};

}  // namespace rowwise
