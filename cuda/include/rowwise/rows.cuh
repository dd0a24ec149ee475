// Where rows lie in memory, and how a thread moves its share of one.
//
// A row is cut into chunks, and a chunk over the lanes that share it, all 32 of a warp or, for a
// short row, fewer: of L lanes, lane l holds the vectors l, l + L, l + 2L, ... of the chunk. Which
// lane holds an element follows from its index in the row and from the row's width, never from an
// address, so that a misaligned row folds to the same bits.
#pragma once

#include "dtype.cuh"

namespace rowwise {

// One row of the problem: its index, and whether it exists (the last block may have fewer rows than
// it has room for; a row that does not exist is walked with width 0, so that every thread reaches
// every barrier).
struct Row {
    i64 index;
    bool exists;
};

// One lane's share of one chunk: V vectors of W elements, `stride` elements apart. Index is what
// places in the row are counted in: 32 bits where the row is held in registers, else 64.
template <int W, int V, class Index>
struct Tile {
    static constexpr int kVectorWidth = W;
    static constexpr int kVectors = V;
    static constexpr int kWidth = W * V;
    // Whether it is one of many tiles of a walk, whose rare ways are not to take registers from the others.
    static constexpr bool kWalks = sizeof(Index) == 8;

    Index first;  // position of the first element in the row
    int left;     // elements of the row from `first` to the end of the chunk; none where not positive
    int stride;   // elements from one vector to the next
    int lane;     // place of the lane among those that share the chunk
    Index chunk;  // which chunk of the row

    RW_DEVICE int offset(int e) const {
        return (e / W) * stride + e % W;
    }
    RW_DEVICE i64 position(int e) const {
        return first + offset(e);
    }
    RW_DEVICE bool has(int e) const {
        return offset(e) < left;
    }
    RW_DEVICE bool is_full() const {
        return left >= (V - 1) * stride + W;
    }
    // Whether to take the way for full tiles: where a row is held, if those of all lanes of the chunk are. Where rows end
    // within a chunk, as those of 768 and 1000 do, some lanes with a full tile would have the others wait for them. In
    // a walk of many tiles it is one of them.
    RW_DEVICE bool goes_whole() const {
        return kWalks ? is_full() : left + lane * W >= V * stride;
    }
    // Elements of the tile that the row has.
    RW_DEVICE int count() const {
        int total = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            total += max_of(0, min_of(W, left - j * stride));
        }
        return total;
    }
    // How many lanes share the chunk.
    RW_DEVICE int lanes() const {
        return stride / W;
    }
    // Vector j as a tile of its own.
    RW_DEVICE Tile<W, 1, Index> vector(int j) const {
        return {first + j * stride, left - j * stride, stride, lane, chunk};
    }
};

// The tile of lane `lane` of `lanes` in chunk `chunk` of a row of `width` elements.
template <int W, int V, class Index>
RW_DEVICE Tile<W, V, Index> make_tile(Index chunk, int lane, int lanes, Index width) {
    const int chunk_elements = lanes * (W * V);
    const Index start = chunk * chunk_elements;
    const int in_chunk = static_cast<int>(min_of<Index>(width - start, chunk_elements));
    return {start + lane * W, in_chunk - lane * W, lanes * W, lane, chunk};
}

// A strided set of rows, up to three outer dims, unit stride inside: what the host calls `Rows`.
template <class T>
struct InputRows {
    const T* data;
    i64 sizes[3];
    i64 strides[3];
    bool single_stride;  // the two outer sizes are 1
    // Of rows that are columns in memory: elements from one element of a row to the next, and how many
    // rows lie side by side. The outer dims then count such panels.
    i64 axis_stride;
    i64 inner;

    RW_DEVICE const T* row(i64 index) const {
        if (single_stride) {
            return data + index * strides[2];
        }
        // 32-bit division: the host packs what has several outer strides and 2^32 rows. In 64 bits it
        // would be a call, around which registers spill.
        const u32 i = static_cast<u32>(index);
        const u32 outer = i / static_cast<u32>(sizes[2]);
        const u32 i2 = i - outer * static_cast<u32>(sizes[2]);
        const u32 i0 = outer / static_cast<u32>(sizes[1]);
        const u32 i1 = outer - i0 * static_cast<u32>(sizes[1]);
        return data + i0 * strides[0] + i1 * strides[1] + i2 * strides[2];
    }
};

RW_DEVICE bool is_vector_aligned(const void* address) {
    return reinterpret_cast<u64>(address) % kVectorBytes == 0;
}

// What a load expects of the caches.
enum class Reuse { kNone, kByOtherRows };

template <Reuse R>
RW_DEVICE Word4 load_vector(const void* address) {
    if constexpr (R == Reuse::kNone) {
        return load_streaming(address);
    } else {
        return load_shared_by_rows(address);
    }
}

// Reads a vector element by element: the row has `left` of them, the others become `pad`.
template <class T>
RW_DEVICE void load_part(Vector<T>& out, const T* at, int left, T pad) {
#pragma unroll
    for (int w = 0; w < kVectorElements<T>; ++w) {
        put_element(out, w, w < left ? at[w] : pad);
    }
}

template <class T>
RW_DEVICE void fill(Vector<T>& out, T value) {
#pragma unroll
    for (int w = 0; w < kVectorElements<T>; ++w) {
        put_element(out, w, value);
    }
}

// Reads a tile of the row at `row`. Elements past the end of the row become `pad`.
template <Reuse R, class T, int V, class TileT>
RW_DEVICE void load_tile(Vector<T> (&out)[V], const T* row, bool aligned, const TileT& tile, T pad) {
    constexpr int W = kVectorElements<T>;
    constexpr bool kWalks = TileT::kWalks;
    const T* first = row + tile.first;
    if (aligned && tile.goes_whole()) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            out[j].raw = load_vector<R>(first + j * tile.stride);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
        const int left = tile.left - j * tile.stride;
        const T* at = first + j * tile.stride;
        if constexpr (!kWalks) {
            fill(out[j], pad);
        }
        if (aligned && left >= W) {
            out[j].raw = load_vector<R>(at);
        } else if (kWalks || left > 0) {
            load_part(out[j], at, left, pad);
        }
    }
}

// ---------------------------------------------------------------- rows whose address is no multiple of 16
//
// All vectors of such a row begin equally far behind a multiple of 16 bytes. A lane reads the aligned vector that its
// own one begins in, and has the rest of its own from the lane after it, which reads that; it writes the same aligned
// vector, whose beginning it has from the lane before it. What of the row has no aligned vector to itself, at its
// ends and where a warp's chunk meets the next one's, is moved element by element. Nothing outside of the row is read
// or written.
//
// Element by element throughout, softmax of bf16 (4096, 50257) took three to five times as long as a copy (H200,
// 2026-11-30).

// Bytes of an element at most: of f64, two accesses make a vector.
constexpr int kMostShifted = 4;

// From so many lanes a row: with fewer, rows of a warp are misaligned each in its own way, and take their turns.
constexpr int kShiftLanes = 16;

// The multiple of 16 bytes before a row, and the elements from there to the row.
template <class T>
RW_DEVICE T* vector_floor(T* row) {
    return reinterpret_cast<T*>(reinterpret_cast<u64>(row) / kVectorBytes * kVectorBytes);
}
template <class T>
RW_DEVICE int elements_before(const T* row) {
    return static_cast<int>(reinterpret_cast<u64>(row) % kVectorBytes) / static_cast<int>(sizeof(T));
}

// Calls f with the whole words of that distance as a compile-time constant, and with the bits that are left. The
// choice is made once for a tile, by branches, and not by selects for each word of it.
template <int Count>
struct WholeWords {
    static constexpr int kCount = Count;
};
template <class T, class F>
RW_DEVICE void with_whole_words(int elements, F f) {
    const int bytes = elements * static_cast<int>(sizeof(T));
    const int bits = bytes % 4 * 8;
    if (bytes < 8) {
        if (sizeof(T) < 4 && bytes < 4) {
            f(WholeWords<0>{}, bits);
        } else {
            f(WholeWords<1>{}, bits);
        }
    } else if (bytes < 12) {
        f(WholeWords<2>{}, bits);
    } else {
        f(WholeWords<3>{}, bits);
    }
}

// Lanes that share a chunk, in a ring.
struct LaneRing {
    u32 together;
    int lane;
    int lanes;

    RW_DEVICE bool is_first() const {
        return lane == 0;
    }
    RW_DEVICE bool is_last() const {
        return lane == lanes - 1;
    }
    // The word of the lane so many places on.
    RW_DEVICE u32 from(u32 word, int places) const {
        const int first = lane_id() - lane;
        return shuffle_from(together, word, first + ((lane + places) & (lanes - 1)));
    }
};

// Whether such rows are read that way. Of elements of a word or more a vector is few loads, without any shift:
// shuffles took f32 kernels from 62 registers to 78 (sum in a cluster), and some to spills.
template <class T>
constexpr bool kLoadsShifted = sizeof(T) < 4;

// Reads a tile of a row element by element.
template <class T, int V, class TileT>
RW_DEVICE void load_elements(Vector<T> (&out)[V], const T* row, const TileT& tile, T pad) {
    constexpr int W = kVectorElements<T>;
    const T* first = row + tile.first;
    if (tile.is_full()) {
#pragma unroll
        for (int e = 0; e < W * V; ++e) {
            put_element(out[e / W], e % W, first[tile.offset(e)]);
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < W * V; ++e) {
        put_element(out[e / W], e % W, tile.has(e) ? first[tile.offset(e)] : pad);
    }
}

// The same where a tile is moved. A walk of many tiles of halves, which counts in 64 bits, is to work it out for each: it
// would keep some 16 words that follow from it, and spill. (Of f32, layer norm spills where it does not keep them.)
template <class Index, class T>
RW_DEVICE int shift_of_tile(const T* row) {
    u32 before = static_cast<u32>(elements_before(row));
    if constexpr (sizeof(Index) == 8 && sizeof(T) < 4) {
        forget(before);
    }
    return static_cast<int>(before);
}


// Reads a tile of a row of `width` elements that is not aligned. All lanes of the ring call.
template <Reuse R, class T, int V, class TileT, class Index>
RW_DEVICE void load_shifted(Vector<T> (&out)[V], const T* row, Index width, const TileT& tile, T pad,
                            const LaneRing& ring) {
    static_assert(kLoadsShifted<T>);
    constexpr int W = kVectorElements<T>;
    // In 32 bits, from the tile on where places in the row have more.
    constexpr bool kShort = sizeof(Index) == 4;
    const int before = shift_of_tile<Index>(row);
    const T* begun = vector_floor(row) + tile.first;
    const int origin = kShort ? static_cast<int>(tile.first) : 0;
    const int end = static_cast<int>(
        kShort ? width : min_of<Index>(width - tile.first, V * tile.stride + 2 * W));
    // Whether the row has all of the aligned vector that vector j begins in, or of the one `ahead` elements on.
    const auto has = [&](int j, int ahead) {
        return (j + ahead > 0 || tile.first > 0) && origin + (j * tile.stride + ahead + W - before) <= end;
    };
    if (tile.first > 0 && has(V - 1, 0)) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            out[j].raw = load_vector<R>(begun + j * tile.stride);
        }
    } else {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            out[j].raw = Word4{};
            if (has(j, 0)) {
                out[j].raw = load_vector<R>(begun + j * tile.stride);
            }
        }
    }
    Word4 next = {};
    if (ring.is_last() && has(V - 1, W)) {
        next = load_vector<R>(begun + (V - 1) * tile.stride + W);
    }
    // A few at a time: the choice between them keeps ptxas from having all words of the neighbour in registers at once.
    constexpr int kAtOnce = V < 4 ? V : 4;
#pragma unroll
    for (int behind = V; behind > 0; behind -= kAtOnce) {
        with_whole_words<T>(before, [&](auto whole, int bits) {
            constexpr int O = decltype(whole)::kCount;
#pragma unroll
            for (int k = 1; k <= kAtOnce; ++k) {
                const int j = behind - k;
                u32 words[8];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    words[i] = out[j].raw.word[i];
                }
#pragma unroll
                for (int i = 0; i <= O; ++i) {
                    // The last lane goes on with the first lane's vector of the round after.
                    const u32 word = ring.from(words[i], 1);
                    words[4 + i] = ring.is_last() ? next.word[i] : word;
                    next.word[i] = word;
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    out[j].raw.word[i] = funnel_right(words[O + i], words[O + i + 1], bits);
                }
            }
        });
    }
    if (tile.first > 0 && has(V - 1, W)) {
        return;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
        if (!has(j, 0) || !has(j, W)) {
            const int left = tile.left - j * tile.stride;
            const T* at = row + tile.first + j * tile.stride;
            load_part(out[j], at, left, pad);
        }
    }
}

// Writes elements [begin, end) of a vector.
template <class T>
RW_DEVICE void store_elements(T* at, const Vector<T>& v, int begin, int end) {
#pragma unroll
    for (int w = 0; w < kVectorElements<T>; ++w) {
        if (w >= begin && w < end) {
            at[w] = element(v, w);
        }
    }
}

// Writes a tile of the row at `row`, which is not aligned, a few vectors after the other; nothing past the end of
// the row. All lanes of the ring call.
template <class T, class TileT>
class ShiftedWriter {
    static constexpr int W = kVectorElements<T>;
    static constexpr int V = TileT::kVectors;
    // Words of the neighbour's vector, of `whole` words and less than another that it is shifted by.
    static constexpr int kPartOfWord = sizeof(T) < 4 ? 1 : 0;

public:
    // Vectors at once: one choice by the shift for all of them. With all 8 of a tile of 64 halves, layer norm
    // spills in three kernels.
    static constexpr int kAtOnce = V < 4 ? V : 4;

    RW_DEVICE ShiftedWriter(T* row, const TileT& tile, const LaneRing& ring)
        : begun_(vector_floor(row) + tile.first), before_(shift_of_tile<decltype(tile.first)>(row)), tile_(tile), ring_(ring) {}

    // Vectors First to First + kAtOnce - 1 of the tile. Each becomes the aligned one that it begins in.
    template <int First>
    RW_DEVICE void write(Vector<T> (&v)[kAtOnce]) {
        const bool is_first = ring_.is_first();
        with_whole_words<T>(before_, [&](auto whole, int bits) {
            constexpr int O = decltype(whole)::kCount;
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                u32 words[12] = {};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    words[4 + i] = v[j].raw.word[i];
                }
#pragma unroll
                for (int i = 4 - kPartOfWord - O; i < 4; ++i) {
                    const u32 word = ring_.from(words[4 + i], -1);
                    words[i] = is_first ? earlier_[i] : word;
                    earlier_[i] = word;
                }
                const auto shifted = [&](int i) {
                    return kPartOfWord ? funnel_left(words[3 - O + i], words[4 - O + i], bits) : words[4 - O + i];
                };
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    v[j].raw.word[i] = shifted(i);
                }
                if (First + j == 0) {
                    end_ = v[j];
                }
                if (First + j == V - 1) {
#pragma unroll
                    for (int i = 0; i <= O; ++i) {
                        const u32 word = shifted(4 + i);
                        end_.raw.word[i] = is_first ? end_.raw.word[i] : word;
                    }
                }
            }
        });
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
            if (left(First + j) >= W && !(First + j == 0 && is_first)) {
                store_streaming(begun_ + (First + j) * tile_.stride, v[j].raw);
            }
        }
        if (!tile_.is_full()) {
            // The end of the row, where it lies within the chunk.
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
                if (left(First + j) < W && !(First + j == 0 && is_first)) {
                    store_elements(begun_ + (First + j) * tile_.stride, v[j], 0, left(First + j));
                }
            }
        }
        if (First + kAtOnce == V && (is_first || ring_.is_last())) {
            // Both ends of the chunk.
            const int place = is_first ? 0 : (V - 1) * tile_.stride + W;
            store_elements(begun_ + place, end_, is_first ? before_ : 0, tile_.left + before_ - place);
        }
    }

private:
    // Elements of the row from the beginning of the aligned vector on.
    RW_DEVICE int left(int j) const {
        return tile_.left + before_ - j * tile_.stride;
    }

    T* begun_;
    int before_;
    TileT tile_;
    LaneRing ring_;
    u32 earlier_[4] = {};  // what the first lane goes on with: the last lane's words of the vector before
    Vector<T> end_;        // the first lane's first vector; the last lane's end, which no other lane writes
};

// Writes a tile of the row at `row`; nothing past the end of the row.
template <class T, int V, class TileT>
RW_DEVICE void store_tile(T* row, bool aligned, const TileT& tile, const Vector<T> (&in)[V]) {
    constexpr int W = kVectorElements<T>;
    T* first = row + tile.first;
    if (aligned && tile.goes_whole()) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            store_streaming(first + j * tile.stride, in[j].raw);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
        const int left = tile.left - j * tile.stride;
        T* at = first + j * tile.stride;
        if (aligned && left >= W) {
            store_streaming(at, in[j].raw);
        } else if (TileT::kWalks || left > 0) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                if (w < left) {
                    at[w] = element(in[j], w);
                }
            }
        }
    }
}

}  // namespace rowwise
