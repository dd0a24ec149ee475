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
    // Elements of the tile that the row has.
    RW_DEVICE int count() const {
        int total = 0;
#pragma unroll
        for (int j = 0; j < V; ++j) {
            total += max_of(0, min_of(W, left - j * stride));
        }
        return total;
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

// Reads a tile of the row at `row`. Elements past the end of the row become `pad`.
template <Reuse R, class T, int V, class TileT>
RW_DEVICE void load_tile(Vector<T> (&out)[V], const T* row, bool aligned, const TileT& tile, T pad) {
    constexpr int W = kVectorElements<T>;
    const T* first = row + tile.first;
    if (aligned && tile.is_full()) {
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
template <class T, int V, class TileT>
RW_DEVICE void store_tile(T* row, bool aligned, const TileT& tile, const Vector<T> (&in)[V]) {
    constexpr int W = kVectorElements<T>;
    T* first = row + tile.first;
    if (aligned && tile.is_full()) {
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
