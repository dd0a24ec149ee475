/* The C ABI between the Rust host and the kernels: the only header both sides read.
 *
 * One entry point per family of ops. Each takes a params struct by pointer and a stream, executes
 * exactly the plan it is given, and returns a status. Nothing here allocates, copies to the device
 * or synchronises, so every call may be captured in a CUDA graph.
 */
#ifndef CANDLE_ROWWISE_ABI_H
#define CANDLE_ROWWISE_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Shared with src/tuning.rs; src/cuda/sys.rs checks that its values are these. */

/* Warps that a resident block may have: one chunk of the row each. */
#define RW_MAX_RESIDENT_WARPS 8
/* Blocks that a cluster may have; beyond 8 where the device says so. */
#define RW_MAX_CLUSTER_BLOCKS 16
/* Warps of a block of the warp tier. */
#define RW_MAX_WARP_TIER_WARPS 8
/* Threads of a block of the tiled tier, and elements of a tile. */
#define RW_TILED_THREADS 512
#define RW_TILED_ELEMENTS 32
/* Warps of a block of the columns tier, and elements of a row. */
#define RW_COLUMN_WARPS 4
#define RW_MAX_COLUMN (1 << 30)
/* Warps that a streaming block may have. */
#define RW_MAX_STREAMING_WARPS 8
/* Chunk states that a streaming block keeps at once, at most. */
#define RW_WINDOW_CHUNKS 1024
/* Blocks of the split-K tier that a multiprocessor holds at once from sm_90 on; 1 before. */
#define RW_SPLIT_K_BLOCKS 2
/* Teams of blocks that may share rows at once: the workspace has counters for as many. */
#define RW_MAX_TEAMS 256
/* Bytes of the counters of a team. */
#define RW_TEAM_BYTES 128
/* Operands that an op may have, and results. */
#define RW_MAX_OPERANDS 5
#define RW_MAX_RESULTS 3
/* Bytes of the largest state of a shipped op. */
#define RW_STATE_BYTES 32

typedef enum rw_dtype {
    RW_F16 = 0,
    RW_BF16 = 1,
    RW_F32 = 2,
    RW_F64 = 3,
    RW_U8 = 4,
    RW_U32 = 5,
    RW_I16 = 6,
    RW_I32 = 7,
    RW_I64 = 8
} rw_dtype;

/* What a row is reduced to, one value of the input's dtype but for sums and products of integers
 * (i64), arg* (u32), any and all (u8), and min_max (the minima of all rows, then the maxima).
 * Integers have sum, prod, max, min, min_max, argmax, argmin, any and all. */
typedef enum rw_reduction {
    RW_SUM = 0,
    RW_MEAN = 1,
    RW_PROD = 2,
    RW_MAX = 3,
    RW_MIN = 4,
    RW_MIN_MAX = 5,
    RW_ABS_MAX = 6,
    RW_ARGMAX = 7,
    RW_ARGMIN = 8,
    RW_ANY = 9,
    RW_ALL = 10,
    RW_NORM_L1 = 11,
    RW_NORM_L2 = 12,
    RW_MEAN_OF_SQUARES = 13,
    RW_VAR = 14,
    RW_STD = 15,
    RW_LOGSUMEXP = 16
} rw_reduction;

typedef enum rw_softmax_kind {
    RW_SOFTMAX = 0,
    RW_LOG_SOFTMAX = 1,
    RW_SOFTMAX_GRADIENT = 2, /* operand 0: the gradient of the result */
    RW_LOG_SOFTMAX_GRADIENT = 3,
    /* With options. Operands: a mask (of the input's dtype or f32, added; or u8, whose zeros hide), and of
     * the accumulator's dtype temperatures and sinks; each may be left out. Gradients have that of the result
     * before them, and a second result: that of the sink, a value a row. */
    RW_SOFTMAX_WITH = 4,
    RW_LOG_SOFTMAX_WITH = 5,
    RW_SOFTMAX_WITH_GRADIENT = 6,
    RW_LOG_SOFTMAX_WITH_GRADIENT = 7
} rw_softmax_kind;

/* The sums take a residual beside x, and write it added to x as their second result. The gradients take
 * that of the result, and write dx and, where results[1] is not null, the sums over bands of rows of what
 * dweight (and of layer norm dbias) are sums of. */
typedef enum rw_norm_kind {
    RW_RMS_NORM = 0,
    RW_LAYER_NORM = 1,
    RW_ADD_RMS_NORM = 2,
    RW_ADD_LAYER_NORM = 3,
    RW_RMS_NORM_GRADIENT = 4,
    RW_LAYER_NORM_GRADIENT = 5,
    RW_L2_NORMALIZE = 6, /* without sides */
    RW_L2_NORMALIZE_GRADIENT = 7
} rw_norm_kind;

typedef enum rw_ownership {
    RW_RESIDENT_WARP = 0,
    RW_RESIDENT_BLOCK = 1,
    RW_RESIDENT_CLUSTER = 2,
    RW_STREAMING = 3,
    RW_SPLIT_K = 4,
    RW_TILED = 5,
    RW_COLUMNS = 6
} rw_ownership;

/* Statuses. Negative: refused here. Positive: a cudaError_t. */
#define RW_OK 0
#define RW_NO_KERNEL (-1)
#define RW_BAD_PLAN (-2)

/* How to run: made by src/plan.rs, executed as it stands. */
typedef struct rw_plan {
    rw_ownership ownership;
    int32_t vectors;      /* 16-byte vectors a lane holds of a chunk */
    int32_t lanes;        /* lanes that share a chunk: 32 but for short rows */
    int32_t threads;      /* of a block */
    int32_t row_blocks;   /* blocks that share a row: several on the cluster and split-K tiers */
    int32_t blocks;       /* of the grid; but for resident blocks, they go round the rows */
    int32_t slots;        /* chunk states kept in shared memory */
    int32_t stage_offset; /* where the staged part of a row begins in shared memory */
    int32_t shared_bytes; /* dynamic shared memory of a block */
    int32_t unit;         /* chunks that a state published by a block of a team stands for */
    int32_t columns;      /* of the tiled tier: neighbouring rows that are read side by side */
    int32_t block_rows;   /* and rows of a block */
    int32_t lane_warps;   /* of the columns tier: warps that share a chunk */
    int32_t chunk_warps;  /* and chunks that are walked side by side */
    int64_t panels;       /* of both: of a block's rows, side by side in one outer index */
    int64_t staged;       /* chunks that a block keeps in shared memory */
    int64_t chunks;       /* of a row */
    void *workspace;      /* of the split-K tier, for this stream alone: RW_MAX_TEAMS times
                           * RW_TEAM_BYTES of counters, which are 0 before and after, then two states
                           * a unit of each team */
} rw_plan;

/* Rows under up to three outer dims, outermost first. `data` is the first row. Rows are contiguous, or
 * `inner` of them lie side by side: then the outer dims count such panels, and the elements of a row
 * are `axis_stride` apart. */
typedef struct rw_rows {
    const void *data;
    int64_t sizes[3];
    int64_t strides[3];
    int64_t axis_stride; /* 1 where rows are contiguous; of an operand, 0 where one value is a row */
    int64_t inner;       /* 1 where rows are contiguous */
} rw_rows;

/* An input beside x, with a row for each row of x: contiguous or of one value. A vector that all rows share
 * has strides of 0. Left out where data is null. */
typedef struct rw_operand {
    rw_dtype dtype;
    rw_rows rows;
} rw_operand;

/* Operands and results are in the order of Op::operands and Op::results (src/problem.rs). Results are
 * contiguous throughout; of an op that makes rows of rows side by side, its rows are side by side as
 * well. */
typedef struct rw_problem {
    rw_dtype dtype;
    int64_t rows;
    int64_t width;
    int64_t bands; /* of rows, for results that are sums over rows */
    rw_rows x;
    rw_operand operands[RW_MAX_OPERANDS];
    void *results[RW_MAX_RESULTS];
} rw_problem;

typedef struct rw_reduce_params {
    rw_problem problem;
    rw_plan plan;
    rw_reduction reduction;
    int64_t correction; /* of var and std: what is taken off the length */
} rw_reduce_params;

typedef struct rw_softmax_params {
    rw_problem problem;
    rw_plan plan;
    rw_softmax_kind kind;
    /* Of the kinds with options. */
    double scale;
    double soft_cap;   /* 0: none */
    int64_t queries;   /* of a causal mask: row i is query i % queries; 0: no causal mask */
    int32_t of_logits; /* not 0: a gradient is that of the logits, before the mask is added */
} rw_softmax_params;

typedef struct rw_norm_params {
    rw_problem problem;
    rw_plan plan;
    rw_norm_kind kind;
    double eps;
} rw_norm_params;

/* RW_TARGET_WEIGHTS: the weight of each row's target, 0 where it is ignored or no class. The rows
 * themselves are not read, and may be narrower than there are classes. */
typedef enum rw_loss_kind {
    RW_CROSS_ENTROPY = 0,
    RW_CROSS_ENTROPY_WITH_GRADIENT = 1,
    RW_CROSS_ENTROPY_GRADIENT = 2,
    RW_TARGET_WEIGHTS = 3
} rw_loss_kind;

/* Operands are targets (u32 or i64) and then numbers of f32, or f64 beside f64: class weights, their sum,
 * and a factor for each row; of RW_CROSS_ENTROPY_GRADIENT class weights, a factor for each row, and the two
 * numbers that RW_CROSS_ENTROPY has left of each row. */
typedef struct rw_loss_params {
    rw_problem problem;
    rw_plan plan;
    rw_loss_kind kind;
    int32_t is_plain;         /* not 0: no label smoothing and no soft cap */
    int32_t has_ignore_index; /* not 0: rows whose target is `ignore_index` do not count */
    int64_t ignore_index;
    int64_t classes;
    double label_smoothing;
    double z_loss;
    double soft_cap; /* 0: none */
} rw_loss_params;

typedef enum rw_cluster_op {
    RW_CLUSTER_ADD = 0,
    RW_CLUSTER_MAX = 1,
    RW_CLUSTER_MIN = 2,
    RW_CLUSTER_GATHER = 3
} rw_cluster_op;

/* Vectors of x[clusters][cluster_size][width] exchanged within each cluster: combined over its ranks, each
 * rank getting its own copy, or gathered, each rank getting all of them in the order of the ranks. y is
 * contiguous.
 *
 * The last five are for tests. With several `repeats`, the k-th from the last one takes the bits of x
 * xor k, and y is the xor of what they all give. */
typedef struct rw_cluster_params {
    rw_dtype dtype; /* f32, i32 or u32 */
    rw_cluster_op op;
    int32_t cluster_size; /* 1 to RW_MAX_CLUSTER_BLOCKS */
    int32_t blocks;       /* of the grid, whole clusters; where there are more, they go round */
    int64_t clusters;
    int64_t width;
    const void *x;
    int64_t strides[3];
    void *y;
    int32_t repeats;        /* 1 or more */
    int32_t single_slot;    /* not 0: combines use one slot with a tail sync, not two in turn */
    int32_t late_rank;      /* spins before it begins; -1: none */
    int32_t lingering_rank; /* spins before it leaves; -1: none */
    int64_t spin_cycles;
} rw_cluster_params;

/* `stream` is a CUstream. With `dry_run` nothing is launched: the status says whether there is a
 * kernel for the plan, which needs no GPU. */
int32_t rw_reduce(const rw_reduce_params *params, void *stream, int32_t dry_run);
int32_t rw_softmax(const rw_softmax_params *params, void *stream, int32_t dry_run);
int32_t rw_norm(const rw_norm_params *params, void *stream, int32_t dry_run);
int32_t rw_loss(const rw_loss_params *params, void *stream, int32_t dry_run);

/* Likewise; there is a kernel for every size of cluster. */
int32_t rw_cluster(const rw_cluster_params *params, void *stream);

/* Blocks of a cluster that the current device can run our kernels with: 0 where it has no clusters. */
int32_t rw_max_cluster(int32_t *blocks);

/* A status in words; the string is static. */
const char *rw_status_message(int32_t status);

#ifdef __cplusplus
}
#endif

#endif
