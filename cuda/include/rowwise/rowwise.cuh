// candle-rowwise's device library: include this to write a row-wise op. See ARCHITECTURE.md for the
// parts, and cuda/ops/ for bodies to start from.
#pragma once

#include "band_sums.cuh"
#include "cluster_primitives.cuh"
#include "row_cache.cuh"
#include "monoids/arg_extremum.cuh"
#include "monoids/extremum.cuh"
#include "monoids/log_sum_exp.cuh"
#include "monoids/logic.cuh"
#include "monoids/pair.cuh"
#include "monoids/prod.cuh"
#include "monoids/sum.cuh"
#include "monoids/welford.cuh"
#include "monoids/cross_moments.cuh"
#include "monoids/weighted_log_sum_exp.cuh"
