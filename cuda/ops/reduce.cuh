// Bodies of the reductions: one value a row.
#pragma once

#include <rowwise/rowwise.cuh>

namespace rowwise {

// How each reduction reads its row and finishes its state. `pad` changes no result.
template <class A>
struct SumReduction {
    using State = Sum<A>;
    template <class T>
    using Output = T;
    static RW_DEVICE A pad() { return -A(0); }
    template <class T>
    static RW_DEVICE T finish(const State& s) { return round_to<T>(s.value()); }
};

template <class A>
struct MaxReduction {
    using State = Max<A>;
    template <class T>
    using Output = T;
    static RW_DEVICE A pad() { return -Limits<A>::infinity(); }
    template <class T>
    static RW_DEVICE T finish(const State& s) { return round_to<T>(s.value()); }
};

template <class A>
struct ArgMaxReduction {
    using State = ArgMax<A>;
    template <class T>
    using Output = u32;
    static RW_DEVICE A pad() { return -Limits<A>::infinity(); }
    template <class T>
    static RW_DEVICE u32 finish(const State& s) { return s.index[0]; }
};

template <class A>
struct LogSumExpReduction {
    using State = OnlineLogSumExp<A>;
    template <class T>
    using Output = T;
    static RW_DEVICE A pad() { return -Limits<A>::infinity(); }
    template <class T>
    static RW_DEVICE T finish(const State& s) { return round_to<T>(s.value()); }
};

template <class T, template <class> class Reduction>
struct ReduceBody {
    using Element = T;
    using Kind = Reduction<accum_t<T>>;
    using State = typename Kind::State;
    using Output = typename Kind::template Output<T>;
    static constexpr int kStateBytes = sizeof(State);
    static constexpr Occupancy kOccupancy = {3, 4, 4, 3, 3};

    InputRows<T> x;
    Output* y;

    template <class Ctx>
    RW_DEVICE void operator()(const Row& row, i64 axis_size, Ctx& ctx) const {
        RowCache<Ctx, T> in(row, axis_size, ctx, x, round_to<T>(Kind::pad()));
        State state;
        reduce(row, axis_size, ctx, state, [&](auto& fold, const auto& tile) {
            accum_t<T> values[Ctx::simd_width];
            in.load(tile, values);
            fold.accumulate(values, tile);
        });
        pjoin(state, ctx);
        once(row, ctx, [&] { y[row.index] = Kind::template finish<T>(state); });
    }
};

}  // namespace rowwise
