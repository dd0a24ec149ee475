// Pair: two reductions in one walk.
#pragma once

#include "../reduce_op.cuh"

namespace rowwise {

// Both fold the same values; where they fold different ones, fold their tiles apart and join
// Pair::of(a, b) (see the layer norm body).
template <class First, class Second, int W = 1>
struct Pair : ReduceOp<Pair<First, Second, W>, W> {
    using Single = Pair<First, Second, 1>;
    template <int N>
    using Lanes = Pair<First, Second, N>;

    typename First::template Lanes<W> first;
    typename Second::template Lanes<W> second;

    static RW_DEVICE Pair identity() {
        return {{}, First::template Lanes<W>::identity(), Second::template Lanes<W>::identity()};
    }

    static RW_DEVICE Pair of(const typename First::template Lanes<W>& a,
                             const typename Second::template Lanes<W>& b) {
        return {{}, a, b};
    }

    template <class A, class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos& positions) {
        first.accumulate(values, positions);
        second.accumulate(values, positions);
    }

    RW_DEVICE void join(const Pair& later) {
        first.join(later.first);
        second.join(later.second);
    }

    RW_DEVICE Single lane(int i) const {
        return {{}, first.lane(i), second.lane(i)};
    }

    template <int N, class A, class Pos>
    static RW_DEVICE Single of_tile(const A (&values)[N], const Pos& positions) {
        return {{}, First::of_tile(values, positions), Second::of_tile(values, positions)};
    }

    template <class Reducer>
    RW_DEVICE Pair join_parallel(const Reducer& reducer) const {
        return {{}, first.join_parallel(reducer), second.join_parallel(reducer)};
    }
};

}  // namespace rowwise
