// OnlineLogSumExp: the maximum of a row and the sum of exp(x - maximum), joined by rescaling (Milakov
// and Gimelshein, "Online normalizer calculation for softmax", 2018).
#pragma once

#include "../dtype.cuh"
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
//
// Where OfHalves, the values are elements of a half type, and exponentials of a tile are made by three instructions an
// element for six (see exp_short). The sum is as good as ever: what counts in it is near the maximum, where nothing is
// lost. From a build without to one with it, and with ptxas at another level, logsumexp of (4096, 65536) bf16 went from
// 0.76 of the read rate to 0.80, log-softmax from 0.78 of copy speed to 0.81, softmax of (4096, 131072) from 0.71 to
// 0.75 (H200, 2026-11-30).
template <class A, int W = 1, bool OfHalves = false>
struct OnlineLogSumExp : ReduceOp<OnlineLogSumExp<A, W, OfHalves>, W> {
    using Single = OnlineLogSumExp<A, 1, OfHalves>;
    template <int N>
    using Lanes = OnlineLogSumExp<A, N, OfHalves>;

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

    // Maximum first, then one exponential an element. Of halves, those that are 0 for all exp_short knows are below
    // 2^-125 of the largest one.
    template <int N, class Pos>
    static RW_DEVICE Single of_tile(const A (&values)[N], const Pos&) {
        Single s = of_maximum(values);
        const A shift = finite_shift(s.maximum[0]);
        A terms[N];
        if constexpr (OfHalves) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                terms[i] = exp_short(values[i] - shift);
            }
            s.sum[0] = fold_halves<N>(terms, [](A a, A b) { return a + b; });
            return s;
        } else {
            return summed(s, fold_halves<N>(values, smaller) - shift, [&](int i) { return values[i] - shift; }, terms);
        }
    }

    // The state of a tile, and the exponentials relative to its maximum that it was made from: the same state, but of
    // halves. (Which of the two takes fewer registers depends on what else is kept, the values or the exponentials:
    // either spills in kernels of the other kind.)
    template <int N>
    static RW_DEVICE Single exponentials(const A (&values)[N], A (&terms)[N]) {
        const Single s = of_maximum(values);
        const A shift = finite_shift(s.maximum[0]);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            terms[i] = values[i] - shift;
        }
        return summed(s, fold_halves<N>(terms, smaller), [&](int i) { return terms[i]; }, terms);
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
    static RW_DEVICE A smaller(A a, A b) {
        return fmin(a, b);
    }

    template <int N>
    static RW_DEVICE Single of_maximum(const A (&values)[N]) {
        Single s;
        s.maximum[0] = fold_halves<N>(values, [](A a, A b) { return max_nan(a, b); });
        return s;
    }

    // The sum of exp(distance(i)), the lowest of which is `lowest`: NaNs do not count in that. Which form of exp serves
    // follows from the tile's own values, so the bits do as well.
    template <int N, class F>
    static RW_DEVICE Single summed(Single s, A lowest, F distance, A (&terms)[N]) {
        const auto sum = [](A a, A b) { return a + b; };
        if constexpr (sizeof(A) == 4) {
            if (lowest >= kLowestNormalExponent) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    terms[i] = exp_normal(distance(i));
                }
                s.sum[0] = fold_halves<N>(terms, sum);
                return s;
            }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            terms[i] = exp_nonpositive(distance(i));
        }
        s.sum[0] = fold_halves<N>(terms, sum);
        return s;
    }

    RW_DEVICE void take(int i, A other_maximum, A other_sum) {
        const A m = max_nan(maximum[i], other_maximum);
        const A shift = finite_shift(m);
        sum[i] = sum[i] * exp_nonpositive(maximum[i] - shift) +
                 other_sum * exp_nonpositive(other_maximum - shift);
        maximum[i] = m;
    }
};

// For rows of elements of type T.
template <class T>
using LogSumExpOf = OnlineLogSumExp<accum_t<T>, 1, sizeof(T) == 2>;

}  // namespace rowwise
