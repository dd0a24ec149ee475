// Sums over rows: of each band of rows, K vectors as wide as the row.
//
// A band is a block's rows, or a cluster's or a team's, which take them one after the other: a thread has the
// same columns of each, so it adds them up alone and in the order of the rows. A resident thread does so
// in registers. One that streams has no room for that: it adds to the result in global memory, which
// nobody else touches meanwhile; the order, and so the bits, are the same. On the warp tier rows that are
// neighbours are in flight side by side, and what their lanes have added up is joined at the end.
#pragma once

#include "walk.cuh"

namespace rowwise {

// Warps of a block at most whose rows are side by side.
constexpr int kBandWarps = 8;

template <class Ctx, class T, int K>
class BandSums {
    using A = accum_t<T>;
    static constexpr int W = Ctx::TileT::kVectorWidth;
    static constexpr int V = Ctx::TileT::kVectors;
    static constexpr int N = W * V;
    // Of sums, in one access.
    static constexpr int P = kVectorElements<A>;

public:
    // Where the parts of a block's warps meet: those of one vector at a time.
    struct Meeting {
        A parts[kBandWarps][N][kWarpSize];
    };

    // `data`: K vectors of `width` sums each; null where nobody wants them.
    RW_DEVICE BandSums(A* data, i64 width) : data_(data), width_(width), is_first_row_(true) {
        clear();
    }

    // Before anything of a tile is added.
    template <class TileT>
    RW_DEVICE void open(const TileT& tile) {
        if constexpr (!Ctx::kResident) {
            clear();
            if (data_ != nullptr && !is_first_row_) {
                each_vector(tile, [&](int k, int j, A* at, int left) {
#pragma unroll
                    for (int w = 0; w < W; ++w) {
                        if (w < left) {
                            acc_[k][j * W + w] = at[w];
                        }
                    }
                });
            }
        }
    }

    RW_DEVICE void add(int k, int e, A value) {
        acc_[k][e] += value;
    }

    RW_DEVICE void add_product(int k, int e, A a, A b) {
        acc_[k][e] = fused(a, b, acc_[k][e]);
    }

    // After all of a tile has been added.
    template <class TileT>
    RW_DEVICE void close(const TileT& tile) {
        if constexpr (!Ctx::kResident) {
            write(tile);
        }
    }

    // After all tiles of a row.
    RW_DEVICE void end_row() {
        is_first_row_ = false;
    }

    // After all rows: of a thread that holds a tile of them.
    template <class TileT>
    RW_DEVICE void finish(const TileT& tile) {
        if constexpr (Ctx::kResident) {
            write(tile);
        }
    }

    // The same of a block whose lanes hold rows of their own: first joined among the rows of a warp, then
    // warp after warp. `tile` is this lane's.
    template <class TileT>
    RW_DEVICE void finish_side_by_side(const TileT& tile, int lanes, Meeting& meeting) {
        if (data_ == nullptr) {
            return;
        }
        const int warp = threadIdx.x / kWarpSize;
        const int warps = blockDim.x / kWarpSize;
        const int lane = lane_id();
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
            for (int e = 0; e < N; ++e) {
                A sum = acc_[k][e];
#pragma unroll
                for (int distance = 1; distance < kWarpSize; distance *= 2) {
                    if (distance >= lanes) {
                        // Addition gives the same bits whichever operand stands first.
                        sum += shuffle_state(
                            sum, [=](u32 word) { return shuffle_xor(kAllLanes, word, distance); });
                    }
                }
                meeting.parts[warp][e][lane] = sum;
            }
            sync_block();
            // Warp w takes the elements w, w + warps, ... of every lane's tile.
#pragma unroll
            for (int e = 0; e < N; ++e) {
                if (e % warps == warp && lane < lanes && tile.has(e)) {
                    A sum = meeting.parts[0][e][lane];
                    for (int other = 1; other < warps; ++other) {
                        sum += meeting.parts[other][e][lane];
                    }
                    data_[k * width_ + tile.position(e)] = sum;
                }
            }
            sync_block();
        }
    }

private:
    RW_DEVICE void clear() {
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
            for (int e = 0; e < N; ++e) {
                acc_[k][e] = A(0);
            }
        }
    }

    template <class TileT, class F>
    RW_DEVICE void each_vector(const TileT& tile, F f) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
            for (int j = 0; j < V; ++j) {
                f(k, j, data_ + k * width_ + tile.first + j * tile.stride, tile.left - j * tile.stride);
            }
        }
    }

    template <class TileT>
    RW_DEVICE void write(const TileT& tile) {
        if (data_ == nullptr) {
            return;
        }
        each_vector(tile, [&](int k, int j, A* at, int left) {
            // A thread that streams reads them again: by the compiler's own accesses, which it keeps in order.
            if (Ctx::kResident && left >= W && is_vector_aligned(at)) {
#pragma unroll
                for (int w = 0; w < W; w += P) {
                    A values[P];
#pragma unroll
                    for (int p = 0; p < P; ++p) {
                        values[p] = acc_[k][j * W + w + p];
                    }
                    Vector<A> packed;
                    packed.set(values);
                    store_streaming(at + w, packed.raw);
                }
            } else {
#pragma unroll
                for (int w = 0; w < W; ++w) {
                    if (w < left) {
                        at[w] = acc_[k][j * W + w];
                    }
                }
            }
        });
    }

    A* data_;
    i64 width_;
    bool is_first_row_;
    A acc_[K][N];
};

}  // namespace rowwise
