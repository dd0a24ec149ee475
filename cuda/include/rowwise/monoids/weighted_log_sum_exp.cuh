// WeightedLogSumExp: OnlineLogSumExp, and beside it a sum of weights.
#pragma once

#include "log_sum_exp.cuh"

namespace rowwise {

// Where Rescaled, the weights are sums of g * exp(x - maximum) and are joined by rescaling like the
// exponentials; else they are sums of g. A body makes the state of a tile itself.
template <class A, bool Rescaled>
struct WeightedLogSumExp : ReduceOp<WeightedLogSumExp<A, Rescaled>, 1> {
    using Single = WeightedLogSumExp;

    A maximum;
    A sum;
    A weight;

    template <bool OfHalves>
    static RW_DEVICE WeightedLogSumExp of(const OnlineLogSumExp<A, 1, OfHalves>& exponentials, A weight) {
        WeightedLogSumExp s;
        s.maximum = exponentials.maximum[0];
        s.sum = exponentials.sum[0];
        s.weight = weight;
        return s;
    }

    static RW_DEVICE WeightedLogSumExp identity() {
        // -0 + x is x for both zeros.
        return of(OnlineLogSumExp<A>::identity(), -A(0));
    }

    RW_DEVICE void join(const WeightedLogSumExp& later) {
        const A joined = max_nan(maximum, later.maximum);
        const A shift = finite_shift(joined);
        const A mine = exp_nonpositive(maximum - shift);
        const A its = exp_nonpositive(later.maximum - shift);
        maximum = joined;
        sum = sum * mine + later.sum * its;
        weight = Rescaled ? weight * mine + later.weight * its : weight + later.weight;
    }

    // One exponential a thread, as for OnlineLogSumExp.
    template <class Reducer>
    RW_DEVICE WeightedLogSumExp join_parallel(const Reducer& reducer) const {
        WeightedLogSumExp s;
        s.maximum = reducer.max(maximum);
        const A scale = exp_nonpositive(maximum - finite_shift(s.maximum));
        s.sum = reducer.sum(sum * scale);
        s.weight = reducer.sum(Rescaled ? weight * scale : weight);
        return s;
    }
};

}  // namespace rowwise
