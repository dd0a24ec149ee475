// CrossMoments: Welford, and beside it what correlates the values with others.
#pragma once

#include "welford.cuh"

namespace rowwise {

// Of values x with partners t: the moments of x, the sum of t, and the sum of t times x's distance from
// the mean, joined as the moments are (Chan, Golub and LeVeque, 1979). A body makes the state of a tile.
template <class A>
struct CrossMoments : ReduceOp<CrossMoments<A>, 1> {
    using Single = CrossMoments;

    Welford<A> moments;
    A total;
    A along;

    static RW_DEVICE CrossMoments of(const Welford<A>& moments, A total, A along) {
        CrossMoments s;
        s.moments = moments;
        s.total = total;
        s.along = along;
        return s;
    }

    static RW_DEVICE CrossMoments identity() {
        // -0 + x is x for both zeros.
        return of(Welford<A>::identity(), -A(0), -A(0));
    }

    RW_DEVICE void join(const CrossMoments& later) {
        Welford<A> both = moments;
        both.join(later.moments);
        along = fused(total, offset(moments, both), along) +
                fused(later.total, offset(later.moments, both), later.along);
        total = total + later.total;
        moments = both;
    }

    template <class Reducer>
    RW_DEVICE CrossMoments join_parallel(const Reducer& reducer) const {
        CrossMoments s;
        s.moments = moments.join_parallel(reducer);
        s.total = reducer.sum(total);
        s.along = reducer.sum(fused(total, offset(moments, s.moments), along));
        return s;
    }

private:
    // Of the mean of a part from that of the whole.
    static RW_DEVICE A offset(const Welford<A>& part, const Welford<A>& whole) {
        if (!(part.count[0] > A(0))) {
            return A(0);
        }
        return (part.mean[0] - whole.mean[0]) + (part.rest[0] - whole.rest[0]);
    }
};

}  // namespace rowwise
