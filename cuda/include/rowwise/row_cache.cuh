// What a body keeps of a row between walks, and what it writes.
//
// A resident thread keeps its tile in registers. A streaming block keeps in shared memory what the
// plan found room for, and reads the rest again; each thread reads back only what
// it wrote itself, so that takes no barrier. Widths are run-time values throughout.
#pragma once

#include "column.cuh"
#include "walk.cuh"

namespace rowwise {

// The lanes that share a tile's chunk. They name each other where rows share a warp, since a body may have branched
// on its row's state.
template <class Ctx>
RW_DEVICE LaneRing lane_ring(const typename Ctx::TileT& tile) {
    if constexpr (Ctx::kWarpOwned) {
        return {lane_group(tile.lanes()), tile.lane, tile.lanes()};
    } else {
        return {kAllLanes, lane_id(), kWarpSize};
    }
}

// A row of the input, staged on chip by the first walk that loads it. A body that keeps several rows numbers
// them by `which`, and has as many kCachedRows. With MayRepeat, the row may be one value that stands for
// all of it (axis stride 0). With MayAdd, `added` may give rows of which each is added to the input's, the
// sum rounded to T as if it had been stored and read. With Ahead, a resident row is in shared memory before
// its body runs (see RowsAhead): it has been staged by a cache like this one, made for it one row earlier.
template <class Ctx, class T, bool MayRepeat = false, bool MayAdd = false, bool Ahead = false>
class RowCache {
    static constexpr int W = kVectorElements<T>;
    static constexpr int V = Ctx::TileT::kVectors;
    static_assert(W == Ctx::TileT::kVectorWidth, "the cached row sets the tile");

public:
    // Elements past the end of the row read as `pad`.
    RW_DEVICE RowCache(const Row& row, i64 axis_size, Ctx& ctx, const InputRows<T>& input, T pad,
                       int which = 0, const InputRows<T>* added = nullptr)
        : row_(first_element(row, ctx, input)),
          axis_stride_(input.axis_stride),
          width_(row.exists ? static_cast<typename Ctx::Index>(axis_size) : 0),
          aligned_(is_vector_aligned(row_)),
          repeats_(MayRepeat && input.axis_stride == 0),
          pad_(pad),
          added_(MayAdd && added != nullptr && added->data != nullptr
                     ? added->row(row.exists ? row.index : 0)
                     : nullptr),
          which_(which),
          ctx_(&ctx),
          born_(ctx.walks) {
        if constexpr (Ctx::kTiled) {
            read_column(ctx.own_tile(row, axis_size));
        } else if constexpr (Ctx::kResident && !Ahead) {
            read<Reuse::kNone>(ctx.own_tile(row, axis_size));
        }
    }

    // Stages the row for a turn, or has it on its way.
    RW_DEVICE void stage(const typename Ctx::TileT& tile, int turn) {
        Word4* place = ctx_->ahead.template place<V>(which_, turn);
        if (!repeats_ && aligned_ && tile.goes_whole()) {
#pragma unroll
            for (int j = 0; j < V; ++j) {
                copy_async(place + j * kWarpSize, row_ + tile.first + j * tile.stride);
            }
            return;
        }
        // Vector by vector: all at once, the other rows' kernels would pay for the registers.
#pragma unroll 1
        for (int j = 0; j < V; ++j) {
            const T* at = row_ + (repeats_ ? 0 : tile.first + j * tile.stride);
            const int left = tile.left - j * tile.stride;
            if (!repeats_ && aligned_ && left >= W) {
                copy_async(place + j * kWarpSize, at);
                continue;
            }
            Vector<T> v;
            fill(v, pad_);
            if (left > 0) {
#pragma unroll
                for (int w = 0; w < W; ++w) {
                    put_element(v, w, w < left ? at[repeats_ ? 0 : w] : pad_);
                }
            }
            place[j * kWarpSize] = v.raw;
        }
    }

    // Makes `tile` the one that `vector` reads.
    RW_DEVICE void select(const typename Ctx::TileT& tile) {
        if constexpr (Ctx::kColumns) {
            read_column(tile);
        } else if constexpr (!Ctx::kResident) {
            fetch(tile);
        }
        if constexpr (sizeof(T) == 2 && !(Ahead && Ctx::kResident)) {
            // A half type takes half the registers of its f32 values: those are made again in each
            // walk, not carried from one to the next. With them kept, bf16 rms norm took 72 registers
            // and layer norm 114.
#pragma unroll
            for (int j = 0; j < V; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    forget(held_[j].raw.word[i]);
                }
            }
        }
    }

    // Vector j of the selected tile.
    RW_DEVICE void vector(int j, accum_t<T> (&values)[W]) const {
#pragma unroll
        for (int w = 0; w < W; ++w) {
            values[w] = held(j).get(w);
        }
    }

    // Keeps what is computed from vector j from being computed before what stands above, where so much of a
    // tile at once would not fit the registers.
    RW_DEVICE void hold_back(int j) {
        if constexpr (Ahead && Ctx::kResident) {
            if constexpr (!Ctx::kWarpOwned) {
                keep_reads_back();
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                forget(held_[j].raw.word[i]);
            }
        }
    }

    // Element e of the selected tile.
    RW_DEVICE accum_t<T> element(int e) const {
        return held(e / W).get(e % W);
    }

    // The largest element of the selected tile, or NaN where there is one, of half types: two at a time, which saves half
    // the comparisons and the conversions.
    RW_DEVICE accum_t<T> maximum() const {
        static_assert(sizeof(T) == 2);
        Word4 best = held(0).raw;
#pragma unroll
        for (int j = 1; j < V; ++j) {
            const Word4 word = held(j).raw;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                best.word[i] = max_nan_pair(T{}, best.word[i], word.word[i]);
            }
        }
        Vector<T> v;
        v.raw.word[0] = max_nan_pair(T{}, max_nan_pair(T{}, best.word[0], best.word[2]),
                                     max_nan_pair(T{}, best.word[1], best.word[3]));
        return max_nan(v.get(0), v.get(1));
    }

    // All of a tile.
    RW_DEVICE void load(const typename Ctx::TileT& tile, accum_t<T> (&values)[W * V]) {
        select(tile);
#pragma unroll
        for (int e = 0; e < W * V; ++e) {
            values[e] = element(e);
        }
    }

private:
    static RW_DEVICE const T* first_element(const Row& row, const Ctx& ctx, const InputRows<T>& input) {
        if constexpr (Ctx::kSideBySide) {
            return input.row(ctx.place.outer) + ctx.place.column;
        } else {
            return input.row(row.exists ? row.index : 0);
        }
    }

    // What is staged for this row is read where it is needed: registers are for what is computed.
    RW_DEVICE Vector<T> held(int j) const {
        if constexpr (Ahead && Ctx::kResident) {
            Vector<T> v;
            v.raw = ctx_->ahead.template place<V>(which_, ctx_->ahead.turn)[j * kWarpSize];
            return v;
        } else {
            return held_[j];
        }
    }

    template <Reuse R>
    RW_DEVICE void read(const typename Ctx::TileT& tile) {
        if constexpr (MayRepeat) {
            if (repeats_) {
                const T value = tile.left > 0 ? *row_ : pad_;
#pragma unroll
                for (int j = 0; j < V; ++j) {
#pragma unroll
                    for (int w = 0; w < W; ++w) {
                        put_element(held_[j], w, tile.has(j * W + w) ? value : pad_);
                    }
                }
                return;
            }
        }
        load_row_tile<R>(held_, row_, aligned_, tile);
        if constexpr (MayAdd) {
            if (added_ != nullptr) {
                Vector<T> other[V];
                load_row_tile<R>(other, added_, is_vector_aligned(added_), tile);
#pragma unroll
                for (int j = 0; j < V; ++j) {
                    accum_t<T> sums[W];
#pragma unroll
                    for (int w = 0; w < W; ++w) {
                        sums[w] = held_[j].get(w) + other[j].get(w);
                    }
                    held_[j].set(sums);
                }
            }
        }
    }

    // Of the input's row, or of one that is added to it.
    template <Reuse R>
    RW_DEVICE void load_row_tile(Vector<T> (&to)[V], const T* row, bool aligned,
                                 const typename Ctx::TileT& tile) const {
        // Bodies that have two rows have no registers for shifts where they walk a row: they spilled as split-K.
        constexpr bool kShifts = sizeof(T) <= kMostShifted && (Ctx::kResident || !(MayRepeat || MayAdd));
        if (!kShifts || aligned || tile.lanes() < kShiftLanes) {
            load_tile<R>(to, row, aligned, tile, pad_);
        } else if constexpr (kLoadsShifted<T>) {
            load_shifted<R>(to, row, width_, tile, pad_, lane_ring<Ctx>(tile));
        } else {
            load_elements(to, row, tile, pad_);
        }
    }

    RW_DEVICE void read_column(const typename Ctx::TileT& tile) {
        Column<const T>(row_, axis_stride_, ctx_->place.has_pairs).load(held_, tile, pad_);
    }

    RW_DEVICE void fetch(const typename Ctx::TileT& tile) {
        const i64 place = tile.chunk - ctx_->first_chunk;
        if (place >= ctx_->shared.staged) {
            // Read again in every walk: ask the caches to keep it.
            read<Reuse::kByOtherRows>(tile);
            return;
        }
        Word4* stage = reinterpret_cast<Word4*>(ctx_->shared.base + ctx_->shared.stage_offset) +
                       (which_ * ctx_->shared.staged + place) * (V * kWarpSize) + tile.lane;
        if (ctx_->walks == born_) {
            read<Reuse::kNone>(tile);
#pragma unroll
            for (int j = 0; j < V; ++j) {
                stage[j * kWarpSize] = held_[j].raw;
            }
        } else {
#pragma unroll
            for (int j = 0; j < V; ++j) {
                held_[j].raw = stage[j * kWarpSize];
            }
        }
    }

    const T* row_;
    i64 axis_stride_;
    typename Ctx::Index width_;
    bool aligned_;
    bool repeats_;
    T pad_;
    const T* added_;
    int which_;
    Ctx* ctx_;
    int born_;
    Vector<T> held_[V];
};

// Folds a tile vector by vector, each lane of the vector in a sum of its own: no more than one
// vector of `value(e, element e of the row)` is held at a time.
template <template <class, int> class Op, class Ctx, class T, bool... Kind, class TileT, class F>
RW_DEVICE typename Op<accum_t<T>, 1>::Single fold_vectors(const TileT& tile, RowCache<Ctx, T, Kind...>& in,
                                                          F value) {
    constexpr int W = TileT::kVectorWidth;
    in.select(tile);
    auto lanes = Op<accum_t<T>, W>::identity();
#pragma unroll
    for (int j = 0; j < TileT::kVectors; ++j) {
        accum_t<T> values[W];
        in.vector(j, values);
#pragma unroll
        for (int w = 0; w < W; ++w) {
            values[w] = value(j * W + w, values[w]);
        }
        lanes.accumulate(values, Positions<TileT>{tile});
    }
    return lanes.reduce();
}

// The result of a function of tiles, kept between walks by a resident thread and computed again by
// a streaming one. `compute(tile)` must have no side effects.
template <class Ctx, class F>
class TileCache {
    using TileT = typename Ctx::TileT;
    using Value = decltype(static_cast<F*>(nullptr)->operator()(*static_cast<const TileT*>(nullptr)));

public:
    RW_DEVICE TileCache(const Row& row, i64 axis_size, Ctx& ctx, F compute)
        : compute_(compute),
          held_(Ctx::kResident ? compute(ctx.own_tile(row, axis_size)) : Value{}) {}

    RW_DEVICE const Value& operator()(const TileT& tile) {
        if constexpr (!Ctx::kResident) {
            held_ = compute_(tile);
        }
        return held_;
    }

private:
    F compute_;
    Value held_;
};

template <class Ctx, class F>
RW_DEVICE TileCache<Ctx, F> cache_tiles(const Row& row, i64 axis_size, Ctx& ctx, F compute) {
    return TileCache<Ctx, F>(row, axis_size, ctx, compute);
}

// A number rounded to nearest even into an element.
template <class T>
RW_DEVICE T round_to(accum_t<T> value) {
    accum_t<T> all[kVectorElements<T>] = {value};
    Vector<T> v;
    v.set(all);
    return element(v, 0);
}

// A row of the output: contiguous, or a column where the input's rows are columns. Alone: each lane writes what it
// has, wherever the row begins.
template <class Ctx, class T, bool Alone = false>
class OutputRow {
public:
    RW_DEVICE OutputRow(const Row& row, i64 axis_size, const Ctx& ctx, T* data)
        : row_(first_element(row, axis_size, ctx, data)),
          stride_(ctx.place.inner),
          has_pairs_(ctx.place.has_pairs),
          aligned_(is_vector_aligned(row_)) {}

    // Whether `store_whole` takes all vectors of the tile. All lanes of a warp have the same answer where rows are
    // columns.
    template <class TileT>
    RW_DEVICE bool takes_whole(const TileT& tile) const {
        if constexpr (Ctx::kSideBySide) {
            return every_lane(tile.is_full());
        } else {
            return tile.goes_whole() && aligned_;
        }
    }

    // Whether lanes write vectors that are not their own, and so all lanes of a row together.
    template <class TileT>
    RW_DEVICE bool shifts(const TileT& tile) const {
        return !Alone && sizeof(T) <= kMostShifted && !Ctx::kSideBySide && !aligned_ && tile.lanes() >= kShiftLanes;
    }

    template <class TileT>
    RW_DEVICE ShiftedWriter<T, TileT> shifted_writer(const TileT& tile) const {
        return {row_, tile, lane_ring<Ctx>(tile)};
    }

    // Rounds once, to nearest even.
    template <class TileT>
    RW_DEVICE void store(const TileT& part, const accum_t<T> (&values)[kVectorElements<T>]) const {
        Vector<T> packed[1];
        packed[0].set(values);
        if constexpr (Ctx::kSideBySide) {
            column().store(part, packed[0]);
        } else {
            store_tile(row_, aligned_, part, packed);
        }
    }

    // The same for a vector of a tile that is taken whole.
    template <class TileT>
    RW_DEVICE void store_whole(const TileT& part, const accum_t<T> (&values)[kVectorElements<T>]) const {
        Vector<T> packed;
        packed.set(values);
        if constexpr (Ctx::kSideBySide) {
            column().store_whole(part, packed);
        } else {
            store_streaming(row_ + part.first, packed.raw);
        }
    }

    // One element, after the vector that holds it, by the thread that has stored that.
    RW_DEVICE void store_element(i64 position, accum_t<T> value) const {
        static_assert(!Ctx::kSideBySide, "rows that are columns are not written element by element");
        store_again(row_ + position, round_to<T>(value));
    }

private:
    static RW_DEVICE T* first_element(const Row& row, i64 axis_size, const Ctx& ctx, T* data) {
        if constexpr (Ctx::kSideBySide) {
            return data + ctx.place.outer * axis_size * ctx.place.inner + ctx.place.column;
        } else {
            return data + (row.exists ? row.index : 0) * axis_size;
        }
    }

    RW_DEVICE Column<T> column() const {
        return Column<T>(row_, stride_, has_pairs_);
    }

    T* row_;
    i64 stride_;
    bool has_pairs_;
    bool aligned_;
};

// One vector that all rows read at their own positions: a weight, a bias.
template <class T>
class SideInput {
public:
    static constexpr int kWidth = kVectorElements<T>;

    struct Values {
        accum_t<T> at[kWidth];
    };

    RW_DEVICE explicit SideInput(const T* data) : data_(data), aligned_(is_vector_aligned(data)) {}

    RW_DEVICE bool aligned() const {
        return aligned_;
    }

    template <class TileT>
    RW_DEVICE Values load(const TileT& part) const {
        Vector<T> raw[1];
        load_tile<Reuse::kByOtherRows>(raw, data_, aligned_, part, T{});
        return unpack(raw[0]);
    }

    template <class TileT>
    RW_DEVICE Values load_whole(const TileT& part) const {
        Vector<T> raw;
        raw.raw = load_shared_by_rows(data_ + part.first);
        return unpack(raw);
    }

private:
    static RW_DEVICE Values unpack(const Vector<T>& raw) {
        Values v;
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
            v.at[w] = raw.get(w);
        }
        return v;
    }

    const T* data_;
    bool aligned_;
};

// A row of any element type that is read where it is needed and not kept, for rows of W elements a vector: a
// mask, a residual. Or one value that stands for all of it. Read like a SideInput.
template <class E, int W>
class OperandRow {
    // Of an access: whole 16-byte words, or what the vector has.
    static constexpr int kBytes = W * static_cast<int>(sizeof(E));
    static constexpr int kAlign = kBytes < kVectorBytes ? kBytes : kVectorBytes;

public:
    struct Values {
        accum_t<E> at[W];
    };

    RW_DEVICE OperandRow(const Row& row, const InputRows<E>& rows)
        : row_(rows.row(row.exists ? row.index : 0)), repeats_(rows.axis_stride == 0) {}

    RW_DEVICE bool aligned() const {
        return repeats_ || reinterpret_cast<u64>(row_) % kAlign == 0;
    }

    // 0 past the end of the row.
    template <class TileT>
    RW_DEVICE Values load(const TileT& part) const {
        if (part.left >= W && aligned()) {
            return load_whole(part);
        }
        Values v;
#pragma unroll
        for (int w = 0; w < W; ++w) {
            v.at[w] = w < part.left ? widen(row_[repeats_ ? 0 : part.first + w]) : accum_t<E>(0);
        }
        return v;
    }

    // The same of a vector that the row has all of, where the row is aligned.
    template <class TileT>
    RW_DEVICE Values load_whole(const TileT& part) const {
        E elements[W];
        if (repeats_) {
#pragma unroll
            for (int w = 0; w < W; ++w) {
                elements[w] = *row_;
            }
        } else {
            __builtin_memcpy(elements, __builtin_assume_aligned(row_ + part.first, kAlign), kBytes);
        }
        Values v;
#pragma unroll
        for (int w = 0; w < W; ++w) {
            v.at[w] = widen(elements[w]);
        }
        return v;
    }

private:
    const E* row_;
    bool repeats_;
};

// Vector j of a tile of the output, by `compute` as in emit; `whole` says that the row and all of `sides` have the
// whole vector, and `sides` are aligned. Calls write(vector's tile, values).
template <class T, class TileT, class F, class G, class... Sides>
RW_DEVICE void compute_vector(const TileT& tile, int j, bool whole, F compute, G write, const Sides&... sides) {
    constexpr int W = TileT::kVectorWidth;
    const auto part = tile.vector(j);
    const auto one = [&](const auto&... loaded) {
        accum_t<T> values[W];
#pragma unroll
        for (int w = 0; w < W; ++w) {
            values[w] = compute(j * W + w, loaded.at[w]...);
        }
        write(part, values);
    };
    if (whole) {
        one(sides.load_whole(part)...);
    } else {
        one(sides.load(part)...);
    }
}

// Writes a tile of the output where lanes write vectors for each other.
template <int First = 0, class TileT, class T, class F, class... Sides>
RW_DEVICE void emit_shifted(const TileT& tile, ShiftedWriter<T, TileT>& writer, F compute, const Sides&... sides) {
    constexpr int kAtOnce = ShiftedWriter<T, TileT>::kAtOnce;
    Vector<T> packed[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
        // Without sides, both ways are the same.
        const bool has_all = tile.vector(First + j).left >= TileT::kVectorWidth;
        const bool whole = sizeof...(Sides) == 0 || (has_all && ... && sides.aligned());
        compute_vector<T>(
            tile, First + j, whole, compute, [&](const auto&, const auto& v) { packed[j].set(v); }, sides...);
    }
    writer.template write<First>(packed);
    if constexpr (First + kAtOnce < TileT::kVectors) {
        emit_shifted<First + kAtOnce>(tile, writer, compute, sides...);
    }
}

// Writes a tile of the output, vector by vector: `compute(e, side values at e...)` gives the value
// of element e of the tile. Vector by vector, so that no more of the side inputs is held in
// registers than one vector needs; with one test for the whole tile, so that the common case has no
// branch between its loads.
template <class TileT, class Ctx, class T, bool Alone, class F, class... Sides>
RW_DEVICE void emit(const TileT& tile, const OutputRow<Ctx, T, Alone>& out, F compute, const Sides&... sides) {
    if (out.takes_whole(tile) && (true && ... && sides.aligned())) {
#pragma unroll
        for (int j = 0; j < TileT::kVectors; ++j) {
            compute_vector<T>(tile, j, true, compute, [&](const auto& at, const auto& v) { out.store_whole(at, v); },
                              sides...);
        }
    } else if (out.shifts(tile)) {
        auto writer = out.shifted_writer(tile);
        emit_shifted(tile, writer, compute, sides...);
    } else {
#pragma unroll
        for (int j = 0; j < TileT::kVectors; ++j) {
            if constexpr (Ctx::kResident && !Ctx::kWarpOwned && !Ctx::kSideBySide && TileT::kWidth > 32) {
                // Softmax begins exponentials of later vectors before it has stored this one, and spills three words.
                // (All lanes come here together: see goes_whole. In a walk they need not.)
                keep_reads_back();
            }
            compute_vector<T>(tile, j, false, compute, [&](const auto& at, const auto& v) { out.store(at, v); },
                              sides...);
        }
    }
}

// The same but for one element of the row, which lies `place` elements after the tile's first one and becomes `value`;
// not in this tile where negative. A test for each tile, not for each vector.
template <class TileT, class Ctx, class T, class F>
RW_DEVICE void emit_replacing(const TileT& tile, const OutputRow<Ctx, T>& out, F compute, int place,
                              accum_t<T> value) {
    if (out.shifts(tile)) {
        // What a lane has is written by others as well, so all of it must be right at once.
        auto writer = out.shifted_writer(tile);
        emit_shifted(tile, writer, [&](int e) { return tile.offset(e) == place ? value : compute(e); });
        return;
    }
    emit(tile, out, compute);
    if (place >= 0) {
        // Once more, by the thread that has the element.
        out.store_element(tile.first + place, value);
    }
}

}  // namespace rowwise
