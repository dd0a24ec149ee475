// Where rows lie in memory, and how a thread moves its share of one.
//
// A row is cut into chunks, and a chunk over the lanes of one warp: lane l holds the vectors
// l, l + 32, l + 64, ... of the chunk. Which lane holds an element follows from its index in the
// row alone, never from its address, so that a misaligned row folds to the same bits.
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

// One lane's share of one chunk: V vectors of W elements, kWarpSize * W elements apart.
template <int W, int V>
struct Tile {
    static constexpr int kVectorWidth = W;
    static constexpr int kVectors = V;
    static constexpr int kWidth = W * V;
    static constexpr int kVectorStride = kWarpSize * W;
    // From the first element of the tile to past its last one.
    static constexpr int kSpan = (V - 1) * kVectorStride + W;

    i64 first;  // position of the first element in the row
    int left;   // elements of the row from `first` on, cut off at kSpan; none where not positive
    int lane;   // place of the lane among those that share the chunk
    i64 chunk;  // which chunk of the row

    static RW_DEVICE constexpr int offset(int e) {
        return (e / W) * kVectorStride + e % W;
    }
    RW_DEVICE i64 position(int e) const {
        return first + offset(e);
    }
    RW_DEVICE bool has(int e) const {
        return offset(e) < left;
    }
    RW_DEVICE bool is_full() const {
        return left >= kSpan;
    }
    // Vector j as a tile of its own.
    RW_DEVICE Tile<W, 1> vector(int j) const {
        return {first + j * kVectorStride, left - j * kVectorStride, lane, chunk};
    }
};

// Elements of a chunk.
template <int W, int V>
constexpr i64 kChunkElements = static_cast<i64>(kWarpSize) * W * V;

// The tile of lane `lane` in chunk `chunk` of a row of `width` elements.
template <int W, int V>
RW_DEVICE Tile<W, V> make_tile(i64 chunk, int lane, i64 width) {
    const i64 first = chunk * kChunkElements<W, V> + static_cast<i64>(lane) * W;
    const i64 left = width - first;
    constexpr i64 kSpan = Tile<W, V>::kSpan;
    return {first, static_cast<int>(max_of<i64>(0, min_of<i64>(left, kSpan))), lane, chunk};
}

// A strided set of rows, up to three outer dims, unit stride inside: what the host calls `Rows`.
template <class T>
struct InputRows {
    const T* data;
    i64 sizes[3];
    i64 strides[3];

    RW_DEVICE const T* row(i64 index) const {
        if (sizes[0] == 1 && sizes[1] == 1) {
            return data + index * strides[2];
        }
        const i64 outer = index / sizes[2];
        const i64 i2 = index - outer * sizes[2];
        const i64 i0 = outer / sizes[1];
        const i64 i1 = outer - i0 * sizes[1];
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

// Reads a tile of the row at `row`. Elements past the end of the row become `pad`.
template <Reuse R, class T, int V>
RW_DEVICE void load_tile(Vector<T> (&out)[V], const T* row, bool aligned,
                         const Tile<kVectorElements<T>, V>& tile, T pad) {
    constexpr int W = kVectorElements<T>;
    using TileT = Tile<W, V>;
    const T* first = row + tile.first;
    if (aligned && tile.is_full()) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            out[j].raw = load_vector<R>(first + j * TileT::kVectorStride);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
        const int left = tile.left - j * TileT::kVectorStride;
        const T* at = first + j * TileT::kVectorStride;
        if (aligned && left >= W) {
            out[j].raw = load_vector<R>(at);
        } else {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                put_element(out[j], w, w < left ? at[w] : pad);
            }
        }
    }
}

// Writes a tile of the row at `row`; nothing past the end of the row.
template <class T, int V>
RW_DEVICE void store_tile(T* row, bool aligned, const Tile<kVectorElements<T>, V>& tile,
                          const Vector<T> (&in)[V]) {
    constexpr int W = kVectorElements<T>;
    using TileT = Tile<W, V>;
    T* first = row + tile.first;
    if (aligned && tile.is_full()) {
#pragma unroll
        for (int j = 0; j < V; ++j) {
            store_streaming(first + j * TileT::kVectorStride, in[j].raw);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < V; ++j) {
        const int left = tile.left - j * TileT::kVectorStride;
        T* at = first + j * TileT::kVectorStride;
        if (aligned && left >= W) {
            store_streaming(at, in[j].raw);
        } else {
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
