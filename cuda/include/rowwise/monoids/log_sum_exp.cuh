// OnlineLogSumExp: the maximum of a row and the sum of exp(x - maximum), joined by rescaling (Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include "../math.cuh"
#include "../reduce_op.cuh"

namespace rowwise {

// What exponentials are taken relative to: the maximum, but 0 where that is -inf, so that a part of
// a row that holds nothing but -inf gives exp(-inf) = 0 and not exp(-inf + inf) = NaN.
template <class A>
RW_DEVICE A finite_shift(A maximum) {
    return maximum == -Limits<A>::infinity() ? A(0) : maximum;
}

// NaN in the maximum or in the sum marks a row with a NaN; a maximum of +inf one with a +inf.
template <class A, int W = 1>
struct OnlineLogSumExp : ReduceOp<OnlineLogSumExp<A, W>, W> {
    using Single = OnlineLogSumExp<A, 1>;
    template <int N>
    using Lanes = OnlineLogSumExp<A, N>;

    A maximum[W];
    A sum[W];

    static RW_DEVICE OnlineLogSumExp identity() {
        OnlineLogSumExp s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.maximum[i] = -Limits<A>::infinity();
            s.sum[i] = A(0);
        }
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            take(i, values[i], A(1));
        }
    }

    RW_DEVICE void join(const OnlineLogSumExp& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            take(i, later.maximum[i], later.sum[i]);
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.maximum[0] = maximum[i];
        s.sum[0] = sum[i];
        return s;
    }

    // Maximum first, then one exponential an element.
    template <int N, class Pos>
    static RW_DEVICE Single of_tile(const A (&values)[N], const Pos&) {
        A terms[N];
        return exponentials(values, terms);
    }

    // The state of a tile, and the exponentials relative to its maximum that it was made from. Which
    // form of exp serves follows from the tile's own values, so the bits do as well.
    template <int N>
    static RW_DEVICE Single exponentials(const A (&values)[N], A (&terms)[N]) {
        Single s;
        s.maximum[0] = fold_halves<N>(values, [](A a, A b) { return max_nan(a, b); });
        const A shift = finite_shift(s.maximum[0]);
        if constexpr (sizeof(A) == 4) {
            const A lowest = fold_halves<N>(values, [](A a, A b) { return fminf(a, b); });
            if (lowest - shift >= kLowestNormalExponent) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    terms[i] = exp_normal(values[i] - shift);
                }
                s.sum[0] = fold_halves<N>(terms, [](A a, A b) { return a + b; });
                return s;
            }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            terms[i] = exp_nonpositive(values[i] - shift);
        }
        s.sum[0] = fold_halves<N>(terms, [](A a, A b) { return a + b; });
        return s;
    }

    // One exponential a thread, where joining by pairs would take one a step.
    template <class Reducer>
    RW_DEVICE OnlineLogSumExp join_parallel(const Reducer& reducer) const {
        OnlineLogSumExp s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.maximum[i] = reducer.max(maximum[i]);
            s.sum[i] = reducer.sum(sum[i] * exp_nonpositive(maximum[i] - finite_shift(s.maximum[i])));
        }
        return s;
    }

    // log(sum(exp(x))).
    RW_DEVICE A value() const {
        const A m = maximum[0];
        if (m == Limits<A>::infinity() || m == -Limits<A>::infinity()) {
            return m;
        }
        return m + natural_log(sum[0]);
    }

private:
    RW_DEVICE void take(int i, A other_maximum, A other_sum) {
        const A m = max_nan(maximum[i], other_maximum);
        const A shift = finite_shift(m);
        sum[i] = sum[i] * exp_nonpositive(maximum[i] - shift) +
                 other_sum * exp_nonpositive(other_maximum - shift);
        maximum[i] = m;
    }
};

}  // namespace rowwise
