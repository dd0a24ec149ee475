//! Random calls: any op, dtype, shape, dim, layout and options, and values of every kind, against the f64
//! reference; a view against its packed copy and a forced tier against the chosen one, bit for bit; and calls
//! that make no sense.
//!
//! Each family of ops runs `ROWWISE_FUZZ_CASES` cases, or as many as `ROWWISE_FUZZ_SECONDS` leaves time for; by
//! default a few, which are the same every time. Others are drawn from `ROWWISE_FUZZ_SEED`, or a seed of their
//! own, which the run prints. A case that fails is made small, and what it was drawn from is kept in
//! `regressions/`, whose cases come first ever after.

mod arguments;
mod found;
mod gradients;
mod input;
mod loss;
mod norms;
mod parsing;
mod plans;
mod rows;
mod softmax;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use candle_rowwise::plan::Tier;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestCaseError, TestRunner};

use crate::common::ops::forced;
use crate::common::*;

/// Cases between two looks at the clock.
const BATCH: u32 = 50;

/// What has run: cases by op, and what else is worth a count.
#[derive(Default)]
pub struct Tally(RefCell<BTreeMap<String, usize>>);

impl Tally {
    pub fn add(&self, what: impl Into<String>) {
        *self.0.borrow_mut().entry(what.into()).or_default() += 1;
    }
}

/// A number in the environment. What is no number is not taken for none: a run of another length than was asked
/// for would look like the one that was.
fn asked(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok().filter(|value| !value.is_empty())?;
    Some(number(&value).unwrap_or_else(|| panic!("{name} is `{value}`, and takes a number")))
}

/// What a variable of the environment says: digits alone.
fn number(value: &str) -> Option<u64> {
    let digits = value.trim();
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Runs cases of one family until there have been enough, or the time is up. `regressions` is where failures
/// are kept.
pub fn fuzz<S: Strategy>(
    family: &str,
    regressions: &'static str,
    strategy: S,
    test: impl Fn(&S::Value, &Tally) -> Result<()>,
) -> Result<()>
where
    S::Value: Debug,
{
    let by_default = devices::at_pace(250, 40, 12);
    fuzz_some(by_default, family, regressions, strategy, test)
}

/// [`fuzz`] with a number of cases of its own where none is asked for.
pub fn fuzz_some<S: Strategy>(
    usual: u64,
    family: &str,
    regressions: &'static str,
    strategy: S,
    test: impl Fn(&S::Value, &Tally) -> Result<()>,
) -> Result<()>
where
    S::Value: Debug,
{
    let (cases, seconds) = (asked("ROWWISE_FUZZ_CASES"), asked("ROWWISE_FUZZ_SECONDS"));
    let by_default = cases.is_none() && seconds.is_none();
    let cases = match (cases, seconds) {
        (Some(cases), _) => cases,
        (None, Some(_)) => u64::MAX,
        (None, None) => usual,
    };
    let seed = asked("ROWWISE_FUZZ_SEED").unwrap_or_else(|| match by_default {
        true => 1,
        false => rand::random(),
    });
    let start = Instant::now();
    let is_over = || seconds.is_some_and(|s| start.elapsed() > Duration::from_secs(s));
    let tally = Tally::default();
    let count = RefCell::new(0u64);
    let mut batch = 0;
    while *count.borrow() < cases && !is_over() {
        let left = cases - *count.borrow();
        let config = Config {
            cases: left.min(BATCH.into()) as u32,
            failure_persistence: Some(Box::new(FileFailurePersistence::Direct(regressions))),
            rng_seed: RngSeed::Fixed(seed.wrapping_add(batch)),
            max_shrink_iters: 3000,
            max_shrink_time: 120_000,
            ..Config::default()
        };
        let result = TestRunner::new(config).run(&strategy, |case| {
            *count.borrow_mut() += 1;
            test(&case, &tally).map_err(|err| TestCaseError::fail(format!("{err:#}")))
        });
        if let Err(err) = result {
            panic!("{family}, seed {seed}, batch {batch}: {err}");
        }
        batch += 1;
    }
    let count = count.into_inner();
    let mut report = format!(
        "fuzz: {family}{}: {count} cases in {:.0?}, seed {seed}:",
        if devices::is_host_run() {
            " on host-run kernels"
        } else {
            ""
        },
        start.elapsed()
    );
    for (what, n) in tally.0.borrow().iter() {
        report += &format!(" {what} {n},");
    }
    let report = report.trim_end_matches([',', ':']).to_string();
    match by_default {
        true => println!("{report}"),
        // Past the capture of passing tests' output: who asks for cases wants to know.
        false => writeln!(std::io::stderr(), "{report}")?,
    }
    Ok(())
}

/// Where the failures of a family are kept.
macro_rules! regressions {
    ($family:literal) => {
        concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/suite/fuzz/regressions/",
            $family,
            ".txt"
        )
    };
}
pub(crate) use regressions;

pub fn tiers() -> impl Strategy<Value = Tier> {
    proptest::sample::select(Tier::ALL.to_vec())
}

/// Where there are tiers: the call forced onto one has the bits of `chosen`, or says that it cannot run.
pub fn check_tier(
    what: &str,
    tier: Tier,
    device: &Device,
    tally: &Tally,
    chosen: &[Tensor],
    call: impl FnOnce() -> candle_core::Result<Vec<Tensor>>,
) -> Result<()> {
    if !(device.is_cuda() || devices::is_host_run()) {
        return Ok(());
    }
    match forced(tier, call).context(what.to_string())? {
        Some(got) => {
            assert_eq!(got.len(), chosen.len());
            for (got, chosen) in got.iter().zip(chosen) {
                assert_bits_eq(&format!("{what}: {tier:?}"), got, chosen)?;
            }
            tally.add(format!("[{} tier]", tier.name()));
        }
        None => tally.add(format!("[{} tier refused]", tier.name())),
    }
    Ok(())
}

/// What is due of a gradient that candle has added up: its own addition of bf16 takes subnormals for 0 on some
/// CPUs.
pub fn added_up(dtype: DType, due: &[Expect]) -> Vec<Expect> {
    let lost = match dtype {
        DType::BF16 => f64::from(f32::MIN_POSITIVE),
        _ => 0.,
    };
    let add = |e: &Expect| Expect {
        value: e.value,
        bound: e.bound + lost,
    };
    due.iter().map(add).collect()
}

/// A result has this shape and dtype, and is packed.
#[track_caller]
pub fn check_form(what: &str, got: &Tensor, shape: &[usize], dtype: DType) {
    assert_eq!(got.dims(), shape, "{what}: shape");
    assert_eq!(got.dtype(), dtype, "{what}: dtype");
    assert!(got.is_contiguous(), "{what}: {:?}", got.layout());
}

on_devices! {
    rows: rows_cpu, rows_cuda;
    softmax_with: softmax_with_cpu, softmax_with_cuda;
    norms: norms_cpu, norms_cuda;
    cross_entropy: cross_entropy_cpu, cross_entropy_cuda;
    gradients: gradients_cpu, gradients_cuda;
    arguments: arguments_cpu, arguments_cuda;
}

use arguments::arguments;
use gradients::gradients;
use loss::cross_entropy;
use norms::norms;
use rows::rows;
use softmax::softmax_with;
