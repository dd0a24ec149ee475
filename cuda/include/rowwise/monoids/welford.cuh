// Welford: count, mean and sum of squared residuals, joined as Chan, Golub and LeVeque do ("Updating
// formulae and a pairwise algorithm for computing sample variances", 1979).
#pragma once

#include "../math.cuh"
#include "../reduce_op.cuh"

namespace rowwise {

// The mean is kept in two parts, `mean` as a rounded number and `rest` as what is left of it: with
// the first alone, a row far from 0 is off by its mean's last bit (for 16 values 10000 + i / 1000 in
// f32 that is 9 % of the result). Residuals are taken within a tile, from the tile's own mean.
template <class A, int W = 1>
struct Welford : ReduceOp<Welford<A, W>, W> {
    using Single = Welford<A, 1>;
    template <int N>
    using Lanes = Welford<A, N>;

    A count[W];
    A mean[W];
    A rest[W];
    A squares[W];  // of the residuals from mean + rest

    static RW_DEVICE Welford identity() {
        Welford s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.count[i] = A(0);
            s.mean[i] = A(0);
            s.rest[i] = A(0);
            s.squares[i] = A(0);
        }
        return s;
    }

    template <class Pos>
    RW_DEVICE void accumulate(const A (&values)[W], const Pos&) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            take(i, A(1), values[i], A(0), A(0));
        }
    }

    RW_DEVICE void join(const Welford& later) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            take(i, later.count[i], later.mean[i], later.rest[i], later.squares[i]);
        }
    }

    RW_DEVICE Single lane(int i) const {
        Single s;
        s.count[0] = count[i];
        s.mean[0] = mean[i];
        s.rest[0] = rest[i];
        s.squares[0] = squares[i];
        return s;
    }

    // All parts at once, each measured from the first one's mean: two sums across the threads in
    // place of a division a step.
    template <class Reducer>
    RW_DEVICE Welford join_parallel(const Reducer& reducer) const {
        Welford s;
#pragma unroll
        for (int i = 0; i < W; ++i) {
            s.mean[i] = reducer.first(mean[i]);
            s.count[i] = reducer.sum(count[i]);
            const A offset = (mean[i] - s.mean[i]) + rest[i];
            const A total = reducer.sum(count[i] * offset);
            s.rest[i] = s.count[i] > A(0) ? divide(total, s.count[i]) : A(0);
            const A from_mean = offset - s.rest[i];
            s.squares[i] = reducer.sum(fused(count[i] * from_mean, from_mean, squares[i]));
        }
        return s;
    }

private:
    RW_DEVICE void take(int i, A other_count, A other_mean, A other_rest, A other_squares) {
        const A both = count[i] + other_count;
        if (!(both > A(0))) {
            return;
        }
        const A base = count[i] > A(0) ? mean[i] : other_mean;
        const A here = count[i] > A(0) ? rest[i] : A(0);
        const A there = (other_mean - base) + other_rest;
        const A share = divide(other_count, both);
        const A apart = there - here;
        squares[i] = squares[i] + other_squares + apart * apart * count[i] * share;
        rest[i] = fused(apart, share, here);
        mean[i] = base;
        count[i] = both;
    }
};

}  // namespace rowwise
