//! The C ABI as bindgen reads it from cuda/abi.h, and the check that the numbers both languages need
//! are the same in both.
#![allow(non_camel_case_types, non_upper_case_globals, clippy::pedantic)]

include!(concat!(env!("OUT_DIR"), "/abi.rs"));

const _: () = {
    use crate::tuning;
    assert!(RW_MAX_RESIDENT_WARPS as usize == tuning::MAX_RESIDENT_WARPS);
    assert!(RW_MAX_CLUSTER_BLOCKS as usize == tuning::MAX_CLUSTER_BLOCKS);
    assert!(RW_MAX_WARP_TIER_WARPS as usize == tuning::MAX_WARP_TIER_WARPS);
    assert!(RW_MAX_STREAMING_WARPS as usize == tuning::MAX_STREAMING_WARPS);
    assert!(RW_WINDOW_CHUNKS as usize == tuning::WINDOW_CHUNKS);
    assert!(RW_STATE_BYTES as usize == tuning::STATE_BYTES);
    assert!(RW_SPLIT_K_BLOCKS as usize == tuning::SPLIT_K_BLOCKS);
    assert!(RW_TILED_THREADS as usize == tuning::TILED_THREADS);
    assert!(RW_TILED_ELEMENTS as usize == tuning::TILED_ELEMENTS);
    assert!(RW_COLUMN_WARPS as usize == tuning::COLUMN_WARPS);
    assert!(RW_MAX_COLUMN as usize == tuning::MAX_COLUMN);
    assert!(RW_MAX_TEAMS as usize == tuning::MAX_TEAMS);
    assert!(RW_MAX_OPERANDS as usize == crate::problem::MAX_OPERANDS);
    assert!(RW_MAX_RESULTS as usize == crate::problem::MAX_RESULTS);
    assert!(RW_TEAM_BYTES as usize == tuning::TEAM_BYTES);
};
