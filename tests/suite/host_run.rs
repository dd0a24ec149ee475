//! The kernels' build for the host checks itself: each planted fault of tests/host_run/faults.cu is
//! noticed, and the ops do go to the kernels, by the plans of the device that is asked for.

use std::process::Command;

use candle_rowwise::cuda::host_run::{calls, has_sanitizers, run_fault, with, LIMITS};
use candle_rowwise::ops;
use candle_rowwise::plan::{with_limits, DeviceLimits};

use crate::common::ops::{run, sides, DTYPES};
use crate::common::*;

/// How a fault shows.
#[derive(Clone, Copy)]
enum Shows {
    /// There is none.
    Never,
    /// Under some seed at least, by an error with one of these in it.
    Error(&'static [&'static str]),
    /// The sanitizers end the process, with these words.
    Abort(&'static str),
    /// This build does not see it.
    Unseen,
}
use Shows::{Abort, Error, Never, Unseen};

const WRONG: Shows = Error(&["the result is wrong"]);
const OVERFLOW: Shows = Abort("heap-buffer-overflow");

/// The kernels of tests/host_run/faults.cu in their order, and how each shows where every access is
/// checked, and where the sanitizers are at work.
const FAULTS: [(&str, Shows, Shows); 27] = [
    ("sound", Never, Never),
    ("exchange", Never, Never),
    (
        "missing_barrier",
        Error(&["no barrier between the two", "nobody has written"]),
        WRONG,
    ),
    (
        "missing_second_barrier",
        Error(&["no barrier between the two"]),
        WRONG,
    ),
    (
        "barrier_not_reached_by_all",
        Error(&["leaves the kernel while", "have left the kernel"]),
        Error(&["leaves the kernel while", "have left the kernel"]),
    ),
    ("deadlock", Error(&["deadlock"]), Error(&["deadlock"])),
    (
        "absent_lanes",
        Error(&["lanes 0xffffffff"]),
        Error(&["lanes 0xffffffff"]),
    ),
    (
        "lanes_outside_their_mask",
        Error(&["is none of them"]),
        Error(&["is none of them"]),
    ),
    (
        "different_shuffles",
        Error(&["is at another call"]),
        Error(&["is at another call"]),
    ),
    (
        "unwritten_shared_memory",
        Error(&["nobody has written"]),
        WRONG,
    ),
    (
        "misaligned_vector",
        Error(&["misaligned"]),
        Error(&["misaligned"]),
    ),
    (
        "exchange_not_started",
        Error(&["has not started", "not initialised", "no shared memory"]),
        Error(&["has not started", "not initialised", "no shared memory"]),
    ),
    (
        "exchange_not_awaited",
        Error(&["nobody has written", "has not waited"]),
        WRONG,
    ),
    (
        "exchange_left_early",
        Error(&["still on their way", "which has left"]),
        Error(&["still on their way", "which has left"]),
    ),
    (
        "exchange_without_barrier",
        Error(&["not initialised"]),
        Error(&["not initialised"]),
    ),
    (
        "beyond_shared_memory",
        Error(&["where its block has none"]),
        Abort("out of bounds"),
    ),
    ("beyond_the_input", Error(&["in no buffer"]), OVERFLOW),
    ("beyond_the_output", Error(&["in no buffer"]), OVERFLOW),
    ("written_twice", Error(&["written before"]), Unseen),
    ("written_again", Never, Never),
    (
        "written_again_by_another",
        Error(&["which it has not written"]),
        Unseen,
    ),
    ("copied", Never, Never),
    (
        "copied_not_awaited",
        Error(&["nobody has written", "has not waited for"]),
        Error(&["has not waited for"]),
    ),
    ("copied_awaited_late", Error(&["nobody has written"]), WRONG),
    ("not_written", Error(&["was not written"]), WRONG),
    ("signed_overflow", Unseen, Abort("signed integer overflow")),
    ("joined_in_order", Never, Never),
];

/// The seeds under which a fault must show at least once. One that depends on the order of the
/// threads may not show under each.
const SEEDS: std::ops::Range<u64> = 0..24;

#[test]
fn every_planted_fault_is_noticed() {
    for (number, (name, checked, sanitized)) in FAULTS.into_iter().enumerate() {
        let number = number as i32;
        let shows = if has_sanitizers() { sanitized } else { checked };
        let errors = || SEEDS.filter_map(|seed| run_fault(number, seed).err());
        match shows {
            Never => assert_eq!(errors().next(), None, "{name}"),
            Error(parts) => {
                let errors: Vec<String> = errors().collect();
                assert!(!errors.is_empty(), "{name}: not noticed");
                for error in errors {
                    assert!(parts.iter().any(|p| error.contains(p)), "{name}: {error}");
                    assert!(error.contains("seed"), "{name}: {error}");
                }
            }
            Abort(words) => {
                // In a process of its own, which it ends.
                let output = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "host_run::one_fault", "--ignored", "--nocapture"])
                    .env("ROWWISE_HOST_FAULT", number.to_string())
                    .output()
                    .unwrap();
                let report = String::from_utf8_lossy(&output.stderr);
                assert!(!output.status.success(), "{name}: not noticed");
                assert!(report.contains(words), "{name}: {report}");
            }
            Unseen => {}
        }
    }
}

/// For [`every_planted_fault_is_noticed`], and to look at one fault by hand.
#[test]
#[ignore = "runs the fault of the number in ROWWISE_HOST_FAULT"]
fn one_fault() {
    let number = std::env::var("ROWWISE_HOST_FAULT").unwrap_or_default();
    let number = number.parse().expect("the number of a fault");
    for seed in SEEDS {
        eprintln!("{:?}", run_fault(number, seed));
    }
}

#[test]
fn a_seed_brings_the_same_order_again() {
    let error = |seed| run_fault(4, seed).unwrap_err();
    let (first, again) = (error(3), error(3));
    assert_eq!(first, again);
    let order = |error: &str| error.split_once("block").map(|(_, rest)| rest.to_string());
    assert!(SEEDS
        .into_iter()
        .any(|seed| order(&error(seed)) != order(&first)));
}

#[test]
fn ops_go_to_the_kernels_inside_and_only_there() -> Result<()> {
    let x = tensor(&normal(1, 300), (3, 100), DType::F32, &Device::Cpu)?;
    with(5, || -> Result<()> {
        ops::softmax(&x, 1)?;
        assert_eq!(calls(), 1);
        ops::sum(&x, 0)?;
        assert_eq!(calls(), 2);
        Ok(())
    })?;
    ops::softmax(&x, 1)?;
    assert_eq!(calls(), 0);
    Ok(())
}

/// Devices before sm_90, and those with little shared memory, take other ways to the same bits.
#[test]
fn devices_without_clusters_and_with_little_shared_memory() -> Result<()> {
    let no_clusters = DeviceLimits {
        max_cluster: 1,
        ..LIMITS
    };
    let small = DeviceLimits {
        shared_bytes_per_block: 64 * 1024,
        ..no_clusters
    };
    for op in Op::ALL {
        for dtype in DTYPES {
            for width in [9000, 40_000] {
                let x = tensor(&normal(2, 2 * width), (2, width), dtype, &Device::Cpu)?;
                let sides = sides(op, width, dtype, &Device::Cpu)?;
                let on = |limits| with(5, || with_limits(limits, || run(op, &x, &sides)));
                let expected = on(LIMITS)?;
                for limits in [no_clusters, small] {
                    let what = format!("{} {dtype:?} {width}", op.name());
                    assert_bits_eq(&what, &on(limits)?, &expected)?;
                }
            }
        }
    }
    Ok(())
}

/// Every half-precision number is widened and rounded back to itself.
#[test]
fn half_types_are_converted_exactly() -> Result<()> {
    let bits = || 0..=u16::MAX;
    let f16: Vec<_> = bits().map(half::f16::from_bits).collect();
    let bf16: Vec<_> = bits().map(half::bf16::from_bits).collect();
    for x in [
        Tensor::from_vec(f16, (1 << 16, 1), &Device::Cpu)?,
        Tensor::from_vec(bf16, (1 << 16, 1), &Device::Cpu)?,
    ] {
        let y = with(5, || ops::max_keepdim(&x, 1))?;
        assert_bits_eq("max of one", &y, &x)?;
    }
    Ok(())
}
