//! Every threshold of the planner, each with the measurement that set it.
//!
//! The figures are of one H200 (132 SMs), CUDA 13.0; "trial D" is the softmax prototype that the
//! resident tiers were built after.

/// Bytes of the widest access of a thread.
pub const VECTOR_BYTES: usize = 16;

/// Lanes of a warp.
pub const WARP_LANES: usize = 32;

/// Warps of a resident block at most. 512 threads leave 128 registers each, enough for 32 values
/// in f32 and what surrounds them; more threads would spill.
pub const MAX_RESIDENT_WARPS: usize = 16;

/// Warps of a block of the warp tier at most.
pub const MAX_WARP_TIER_WARPS: usize = 8;

/// Warps of a streaming block.
pub const MAX_STREAMING_WARPS: usize = 16;

/// Chunk states a streaming block keeps before it joins them: the two upper levels of the canonical
/// fold, 32 groups of 32 chunks.
pub const WINDOW_CHUNKS: usize = 1024;

/// Shared-memory bytes reserved for a state; the largest of the shipped ops needs as many.
pub const STATE_BYTES: usize = 16;

/// States beside the slots in a streaming block: two sets of 32 group states, 40 window levels.
pub const STREAMING_EXTRA_STATES: usize = 2 * 32 + 40;

/// How many 16-byte vectors of a chunk a lane holds, which is how a row is cut: a chunk is
/// `32 * vectors * (16 / element_bytes)` elements, and one warp folds it.
///
/// This is the canonical fold, so it may depend on the width and the element size and on nothing
/// else. The steps follow trial D (bf16 softmax, fraction of copy speed): 16 elements a thread reach
/// 1.03 at N = 1024 and 0.99 at 4096, 32 reach 1.01 at 16384, 64 reach 0.99 at 32768. Wider
/// elements take the same number of elements a thread up to 32: beyond that f32 rows would not fit
/// beside their weights in 128 registers (layer norm spilled 1.5 KiB at 64).
pub fn chunk_vectors(width: usize, element_bytes: usize) -> usize {
    let steps: &[(usize, usize)] = match element_bytes {
        2 => &[(256, 1), (4096, 2), (16384, 4), (usize::MAX, 8)],
        4 => &[(128, 1), (256, 2), (4096, 4), (usize::MAX, 8)],
        _ => &[(64, 1), (2048, 4), (usize::MAX, 8)],
    };
    let step = steps.iter().find(|(limit, _)| width <= *limit);
    step.map_or(8, |(_, vectors)| *vectors)
}

/// Warps of a warp-tier block: as many as the tier allows, since rows are short and each warp has
/// one load in flight.
pub const WARP_TIER_WARPS: usize = 8;
