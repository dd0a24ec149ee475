//! The kernels' build for the host checks itself: each planted fault of tests/host_run/faults.cu is
//! noticed, and the ops do go to the kernels.

use candle_rowwise::cuda::host_run::{calls, has_sanitizers, run_fault, with, HostRun};
use candle_rowwise::plan::{DeviceLimits, Tier};

use crate::common::ops::{run, sides, DTYPES};
use crate::common::*;

const SEEDS: std::ops::Range<u64> = 0..24;

/// The kernels of tests/host_run/faults.cu in their order, and what each must be found out by. The
/// first two have no fault.
const FAULTS: [(&str, &str); 20] = [
    ("sound", ""),
    ("exchange", ""),
    ("missing_barrier", "no barrier between"),
    ("missing_second_barrier", "no barrier between"),
    ("barrier_not_reached_by_all", "barrier"),
    ("deadlock", "deadlock"),
    ("absent_lanes", "lanes"),
    ("lanes_outside_their_mask", "is none of them"),
    ("different_shuffles", "is at another call"),
    ("unwritten_shared_memory", "which nobody has written"),
    ("misaligned_vector", "misaligned"),
    ("exchange, not started together", "not started|no shared memory|no byte barrier"),
    ("exchange, left early", "left"),
    ("exchange, not received", ""),
    ("exchange, no barrier", "was not initialised"),
    ("beyond_shared_memory", "where its block has none"),
    ("beyond_the_input", "in no buffer"),
    ("beyond_the_output", "in no buffer"),
    ("written_twice", "written before"),
    ("not_written", "was not written"),
];

#[test]
fn dump() {
    for (i, (name, _)) in FAULTS.iter().enumerate() {
        for seed in 0..3 {
            eprintln!("{name} {seed}: {:?}", run_fault(i as i32, seed));
        }
    }
}
