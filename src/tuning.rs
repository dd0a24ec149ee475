//! Every threshold of the planner, each with the measurement that set it.
//!
//! The figures are of one H200 (132 SMs), CUDA 13.0; "trial D" is the softmax prototype that the
//! resident tiers were built after.

use candle_core::DType;

use crate::problem::{Op, OperandView, Problem};

/// Bytes of the widest access of a thread.
pub const VECTOR_BYTES: usize = 16;

/// Lanes of a warp.
pub const WARP_LANES: usize = 32;

/// Warps of a resident block at most, one chunk of the row each. Blocks of 16 warps left bf16
/// softmax at 0.66 of copy speed at (16384, 16384) and layer norm at 0.53 (H200, 2026-11-29): one
/// or two of them fill a multiprocessor, and all its warps wait at the same barrier.
pub const MAX_RESIDENT_WARPS: usize = 8;

/// Blocks of a cluster at most. Every sm_90 device runs 8; for 16 it is asked.
pub const MAX_CLUSTER_BLOCKS: usize = 16;

/// Blocks of a cluster that every sm_90 device runs.
pub const PORTABLE_CLUSTER_BLOCKS: usize = 8;

/// Warps of a block of the warp tier, each with rows of its own.
pub const MAX_WARP_TIER_WARPS: usize = 8;

/// Warps of a streaming block. With 16, and so 128 registers a thread, layer norm of f32 spilled.
pub const MAX_STREAMING_WARPS: usize = 8;

/// Chunk states a streaming block keeps before it joins them: the two upper levels of the canonical
/// fold, 32 groups of 32 chunks.
pub const WINDOW_CHUNKS: usize = 1024;

/// Threads of a block of the tiled tier: with 64 registers each, two blocks share a multiprocessor. Of chunks of 32
/// lanes that is 16 rows side by side, 32 bytes of bf16 or 64 of f32 at each place of the axis. Softmax of
/// (64, 4096, 512) over dim 1, of a copy: bf16 0.55, f32 0.81; with 8 rows in 256 threads 0.29 and 0.66 (the cache
/// answers as many requests a second, of half the bytes each); a warp for 16 or 32 rows, blocks of a cluster sharing
/// chunks, 0.51 and 0.77; rows turned in shared memory 0.40 and 0.45 (H200, 2026-11-30).
pub const TILED_THREADS: usize = 512;

/// Elements of a tile on the tiled tier at most: more take more registers than those threads have.
pub const TILED_ELEMENTS: usize = 32;

/// Warps of a block of the columns tier.
pub const COLUMN_WARPS: usize = 4;

/// Blocks of the columns tier that a multiprocessor should have, before clusters share the length of rows. Sums of
/// (16384, 8192) f32 over dim 0, with 1, 2, 4 and 8 blocks a row, so 2 to 16 a multiprocessor: 168, 135, 165 and 160 us
/// (stand-alone kernels, H200, 2026-11-30).
pub const COLUMN_BLOCKS: usize = 4;

/// Elements of a row that the columns tier takes: it counts them in 32 bits.
pub const MAX_COLUMN: usize = 1 << 30;

/// Blocks a multiprocessor, at least, that walk columns before a reduction takes the columns tier where the tiled one
/// would do: fewer do not keep it busy. Sums of (2048, 2048) over dim 0, with 1 block a multiprocessor: bf16 0.58 of a
/// copy, tiled 0.74, and f32 0.56, tiled 0.85; of (16384, 8192) over dim 0, with 3.9: bf16 0.65, tiled 0.54, and f32
/// 0.95, tiled 0.68 (the columns tier in stand-alone kernels, H200, 2026-11-30).
pub const COLUMNS_FROM_BLOCKS: usize = 3;

/// Blocks of the split-K tier that a multiprocessor holds at once from sm_90 on; 1 before.
pub const SPLIT_K_BLOCKS: usize = 2;

/// Whether the split-K tier has a kernel for lanes of so many vectors. With 8, some spill where [`SPLIT_K_BLOCKS`]
/// share a multiprocessor (CUDA 13.0, sm_90a): cross-entropy of f64 (16 bytes) and its gradient (8 and
/// more), layer norm whose sides are not both
/// there and of its own dtype, or with a residual, of f16 (52) and bf16 (56), any layer norm of f64 (8), and the
/// gradients of norms.
pub fn has_split_k(problem: &Problem, vectors: usize) -> bool {
    let dtype = problem.dtype;
    let general_layer_norm = vectors == 8 && dtype != DType::F32;
    let spills = match problem.op {
        Op::CrossEntropy(_) | Op::TargetWeights { .. } => vectors == 8 && dtype == DType::F64,
        Op::CrossEntropyWithGradient(_) | Op::CrossEntropyGradient(_) => vectors == 8,
        _ if problem.op.goes_by_bands() => true,
        Op::AddLayerNorm { .. } => general_layer_norm,
        Op::LayerNorm { .. } => {
            let is_own =
                |side: &Option<_>| side.is_some_and(|side: OperandView| side.dtype == dtype);
            let sides = &problem.operands[..problem.op.operands().len()];
            general_layer_norm && (dtype == DType::F64 || !sides.iter().all(is_own))
        }
        _ => false,
    };
    !spills
}

/// Teams of blocks that may share rows at once on the split-K tier.
pub const MAX_TEAMS: usize = 256;

/// Bytes of the counters of a team.
pub const TEAM_BYTES: usize = 128;

/// Bytes of a stream's workspace: counters, and the states that teams publish.
pub const WORKSPACE_BYTES: usize = 8 << 20;

/// Chunk states that a team publishes as they are, at most. Of longer rows it publishes those of
/// groups of 32 chunks: every block reads all of them, and with more than so many that costs more
/// than the second step of joining (estimated: 4096 states of 8 bytes are some 0.5 us of a block's
/// share of the L2).
pub const MAX_CHUNK_UNITS: usize = 4096;

/// Shared-memory bytes reserved for a state; all but the largest of the shipped ops do with as many.
pub const STATE_BYTES: usize = 32;

/// The same for an op, and no less than its body's `kStateBytes`, which the C ABI looks at: one number, two, or more.
/// With 32 bytes for each, blocks of the columns tier have no place beside each other: sums of (16384, 8192) f32 over
/// dim 0 at 0.67 of a copy, with these at 0.95 (H200, 2026-11-30).
pub fn state_bytes(op: Op, dtype: DType) -> usize {
    match op {
        Op::Sum
        | Op::Mean
        | Op::Prod
        | Op::Max
        | Op::Min
        | Op::AbsMax
        | Op::Any
        | Op::All
        | Op::NormL1
        | Op::NormL2
        | Op::MeanOfSquares => 8,
        Op::MinMax | Op::ArgMax | Op::ArgMin | Op::LogSumExp | Op::Softmax | Op::LogSoftmax => 16,
        Op::LayerNormGradient { .. } if dtype == DType::F64 => 48,
        _ => STATE_BYTES,
    }
}

/// States beside the slots in a streaming block: two sets of 32 group states, 40 window levels.
pub const STREAMING_EXTRA_STATES: usize = 2 * 32 + 40;

/// How the canonical fold cuts a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkShape {
    /// Lanes that share a chunk: 32, or fewer (a power of two) where the row is one short chunk.
    pub lanes: usize,
    /// 16-byte vectors that each lane holds of a chunk.
    pub vectors: usize,
}

/// How a row is cut: into chunks of `lanes * vectors` 16-byte vectors, each folded by the lanes of
/// one warp.
///
/// This is the canonical fold, so it may depend on the op, the width and the element size and on
/// nothing else. A lane holds 32 elements where the row has enough of them (16 of f64): what a
/// thread spends on indices and joins, some 130 instructions, is then spread over twice the elements
/// of trial D. Softmax of bf16 (32768, 4096) took 181 us at 16 elements a lane and 129 at 32, where
/// a copy takes 128 (H200, 2026-11-29).
///
/// Rows of half types that one block cannot hold that way have 64 elements a lane, so that half the
/// blocks share them: at (16384, 16384) bf16 layer norm went from 0.86 of copy speed to 0.99,
/// logsumexp from 0.65 to 0.91, at (4096, 65536) layer norm from 0.71 to 0.86. Not so u8, whose
/// kernels spill with 64 elements a lane. Ops that sum over rows have 32 (16 of f32, 8 of f64): a lane
/// keeps one or two sums for each. With 16 of bf16 the gradient of rms norm ran at 0.96 of copy speed in place
/// of 0.93 at (32768, 4096), but at 0.71 in place of 0.86 at (8192, 32768), where twice the blocks share a row
/// (H200, 2026-11-30).
pub fn chunk_shape(op: Op, width: usize, element_bytes: usize) -> ChunkShape {
    let row_vectors = width.div_ceil(VECTOR_BYTES / element_bytes);
    let sums_over_rows = op.goes_by_bands();
    let usual_vectors = match element_bytes {
        _ if sums_over_rows => 4,
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let usual_most = usual_vectors * WARP_LANES * MAX_RESIDENT_WARPS;
    // What keeps two rows, or makes logits, has no registers for more than that, nor f64 for as many; what
    // makes logits twice, for half: with more, kernels spill up to 300 bytes (CUDA 13.0, sm_80 and sm_90a).
    let f64_half = if element_bytes == 8 { 2 } else { 1 };
    let most_vectors = match op {
        Op::SoftmaxGradient { .. } if element_bytes != 2 => usual_vectors / f64_half,
        Op::SoftmaxWith { .. } => usual_vectors / f64_half,
        Op::CrossEntropy(loss)
        | Op::CrossEntropyWithGradient(loss)
        | Op::CrossEntropyGradient(loss)
            if !loss.is_plain() =>
        {
            usual_vectors / f64_half
        }
        Op::SoftmaxWithGradient { .. } => usual_vectors / (2 * f64_half),
        _ if sums_over_rows => usual_vectors,
        _ if row_vectors > usual_most && element_bytes > 1 => 8,
        _ => usual_vectors,
    };
    let vectors = row_vectors.next_power_of_two().min(most_vectors.max(1));
    let lanes = row_vectors.div_ceil(vectors).next_power_of_two();
    ChunkShape {
        lanes: lanes.min(WARP_LANES),
        vectors,
    }
}

/// Clusters of so many blocks (the index is the power of two) that an H200 holds at once with two blocks a
/// multiprocessor; of single blocks, those of [`MAX_RESIDENT_WARPS`] warps.
const RESIDENT_CLUSTERS: [usize; 5] = [264, 132, 62, 30, 14];

/// Sums over rows that are kept at most, over all bands: 128 MiB of f32.
const MOST_SUMS: usize = 1 << 25;

/// Bands of rows for which sums over rows are kept (see [`crate::problem::RowResult::Bands`]), or whose rows
/// are staged one ahead of the other: as many as an H200 holds blocks or clusters at once, whatever the device,
/// so that the order of the sums is everywhere the same. With a few more, their last ones run alone: the
/// gradient of rms norm at (8192, 32768) bf16 took 657 us in 60 bands and 968 in 66, in one run before weights
/// were staged (H200, 2026-11-30).
pub fn row_bands(op: Op, rows: usize, width: usize, element_bytes: usize) -> usize {
    let shape = chunk_shape(op, width.max(1), element_bytes);
    let chunk = shape.lanes * shape.vectors * VECTOR_BYTES / element_bytes;
    let chunks = width.div_ceil(chunk);
    let cluster = chunks
        .div_ceil(MAX_RESIDENT_WARPS)
        .next_power_of_two()
        .ilog2() as usize;
    let (units, most) = if chunks <= 1 {
        // A band has the rows of a block.
        let side_by_side = MAX_WARP_TIER_WARPS * WARP_LANES / shape.lanes;
        (rows.div_ceil(side_by_side), RESIDENT_CLUSTERS[0])
    } else if cluster == 0 {
        let blocks = MAX_RESIDENT_WARPS / chunks.next_power_of_two();
        (rows, RESIDENT_CLUSTERS[0] * blocks)
    } else {
        // Blocks that stream have a multiprocessor each.
        let streaming = RESIDENT_CLUSTERS[0] / 2;
        (
            rows,
            RESIDENT_CLUSTERS.get(cluster).copied().unwrap_or(streaming),
        )
    };
    units.clamp(1, most.min(MOST_SUMS / width.clamp(1, MOST_SUMS)))
}

/// Words of [`VECTOR_BYTES`] that a lane stages for each vector of its tile of an op whose rows are staged one
/// ahead of the other: two turns of two rows, and a vector that all rows share in what is computed in. With
/// both loaded when they are needed, the gradient of rms norm at (32768, 4096) bf16 ran at 0.83 of copy speed,
/// staged at 0.93; at (8192, 32768) 0.62 and 0.86 (H200, 2026-11-30, two runs).
pub const fn words_ahead(element_bytes: usize) -> usize {
    if element_bytes == 2 {
        6
    } else {
        5
    }
}
