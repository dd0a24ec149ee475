//! What the examples share: picking a device and a dtype, timing, comparing and printing.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use candle_core::{DType, Device, Tensor};
use clap::ValueEnum;

/// The dtypes that the examples run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    F32,
    Bf16,
    F16,
}

impl Precision {
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::F16 => DType::F16,
        }
    }
}

/// The CPU, or the first CUDA device.
pub fn device(cuda: bool) -> Result<Device> {
    if !cuda {
        return Ok(Device::Cpu);
    }
    if cfg!(not(feature = "cuda")) {
        bail!(
            "--cuda needs a build with the GPU kernels: add `--features cuda` to cargo's options"
        );
    }
    Device::new_cuda(0).context("no CUDA device can be used")
}

/// The device as a heading shows it.
pub fn device_name(device: &Device) -> String {
    match device {
        Device::Cpu => {
            let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
            format!("CPU ({threads} threads)")
        }
        other => format!("{:?}", other.location()),
    }
}

/// A computation to be timed.
pub type Timed<'a> = &'a dyn Fn() -> candle_core::Result<Tensor>;

/// What one sample takes at least, so that neither the clock nor, on a GPU, the synchronising
/// around it weighs anything.
const SAMPLE: Duration = Duration::from_millis(8);
const SAMPLES: usize = 9;
/// Computations slower than this get fewer samples: their noise is small beside them.
const SLOW: Duration = Duration::from_millis(100);

/// Median time of one call of each computation, in their order.
///
/// Samples of the computations take turns, so that whatever else the machine does in the meantime
/// falls on all of them alike. Times are end to end, allocation included.
pub fn time_each(device: &Device, computations: &[Timed]) -> Result<Vec<Duration>> {
    let sample = |f: Timed, calls: u32| -> Result<Duration> {
        device.synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            black_box(f()?);
        }
        device.synchronize()?;
        Ok(start.elapsed() / calls)
    };
    let mut calls = Vec::with_capacity(computations.len());
    let mut slowest = Duration::ZERO;
    for f in computations {
        sample(*f, 1)?; // Warms up: the first call may load kernels and grow memory pools.
        let one = sample(*f, 1)?;
        calls.push((SAMPLE.as_nanos() / one.as_nanos().max(1)).clamp(1, 1000) as u32);
        slowest = slowest.max(one);
    }
    let rounds = if slowest > SLOW { 3 } else { SAMPLES };
    let mut samples = vec![Vec::with_capacity(rounds); computations.len()];
    for _ in 0..rounds {
        for ((f, calls), times) in computations.iter().zip(&calls).zip(&mut samples) {
            times.push(sample(*f, *calls)?);
        }
    }
    Ok(samples
        .into_iter()
        .map(|mut times| {
            times.sort();
            times[rounds / 2]
        })
        .collect())
}

/// The elements of a tensor of any float or index dtype, on any device.
pub fn to_f64s(x: &Tensor) -> Result<Vec<f64>> {
    let host = x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(host.flatten_all()?.to_vec1()?)
}

/// The larger of two errors, or NaN if there is one: a NaN must not pass for a small error.
pub fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

/// A time in the unit that suits it, with three figures.
pub fn show_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "µs"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let decimals = match value {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// How many times faster than `theirs` something that takes `ours` is.
pub fn show_ratio(ours: Duration, theirs: Duration) -> String {
    format!("{:.2}x", theirs.as_secs_f64() / ours.as_secs_f64())
}

/// An error with two figures.
pub fn show_error(error: f64) -> String {
    if error == 0.0 {
        "0".into()
    } else {
        format!("{error:.1e}")
    }
}

/// A table whose columns are as wide as what they hold.
pub struct Table {
    alignment: &'static str,
    groups: Vec<(String, usize)>,
    rows: Vec<Vec<String>>,
}

/// What separates two columns.
const GAP: usize = 2;

impl Table {
    /// A table with these headings. `alignment` has a letter for each column: l or r.
    pub fn new<S: Into<String>>(
        alignment: &'static str,
        headings: impl IntoIterator<Item = S>,
    ) -> Self {
        let headings = headings.into_iter().map(Into::into).collect();
        Table {
            alignment,
            groups: Vec::new(),
            rows: vec![headings],
        }
    }

    /// Puts titles over groups of columns: a title and how many columns it spans, from the left.
    pub fn grouped(mut self, groups: &[(&str, usize)]) -> Self {
        self.groups = groups.iter().map(|(t, n)| (t.to_string(), *n)).collect();
        self
    }

    /// Adds a row. Cells that are left out at its end are blank.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width_of).collect();
        let mut lines = Vec::new();
        if !self.groups.is_empty() {
            let mut line = String::new();
            let mut rest = widths.as_slice();
            for (title, span) in &self.groups {
                let (mine, others) = rest.split_at((*span).min(rest.len()));
                rest = others;
                let width = mine.iter().sum::<usize>() + GAP * mine.len().saturating_sub(1);
                if title.is_empty() {
                    line += &" ".repeat(width + GAP);
                } else {
                    let title = format!(" {title} ");
                    line += &format!("{title:─^width$}{:GAP$}", "");
                }
            }
            lines.push(line);
        }
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, width), side) in row.iter().zip(&widths).zip(self.alignment.chars()) {
                line += &match side {
                    'l' => format!("{cell:<width$}{:GAP$}", ""),
                    _ => format!("{cell:>width$}{:GAP$}", ""),
                };
            }
            lines.push(line);
            if i == 0 {
                let total = widths.iter().sum::<usize>() + GAP * columns.saturating_sub(1);
                lines.push("─".repeat(total));
            }
        }
        for line in lines {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
