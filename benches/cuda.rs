//! Kernel times on a GPU, beside a copy of the same bytes in the same run.
//!
//! `cargo bench --features cuda --bench cuda -- [--quick] [--op softmax] [--csv FILE]`
//!
//! Device time between two events around at least 20 launches into preallocated outputs; the inputs
//! rotate through more memory than the L2 cache holds; the median of several such runs. The figure
//! that counts is the fraction of the copy's speed: single times drift with the machine, ratios of
//! one run do not. What is timed is checked against an f64 reference.

use std::io::Write;
use std::sync::Arc;

use anyhow::{bail, Context, Result};
use candle_core::cuda_backend::cudarc::driver::{sys::CUevent_flags, CudaStream};
use candle_core::{CpuStorage, CudaStorage, DType, Device, InplaceOp1, Layout, Storage, Tensor};
use candle_rowwise::cuda::run_into;
use candle_rowwise::problem::{Op, Problem, RowResult};
use clap::Parser;

#[derive(Parser)]
struct Options {
    /// Only the ops whose name contains this.
    #[arg(long)]
    op: Option<String>,
    /// Only this dtype: bf16, f16, f32 or f64.
    #[arg(long)]
    dtype: Option<String>,
    /// Only this shape, as ROWSxWIDTH.
    #[arg(long)]
    shape: Option<String>,
    /// Only the shapes that docs/performance.md has bounds for.
    #[arg(long)]
    quick: bool,
    /// Also writes the table as CSV.
    #[arg(long)]
    csv: Option<std::path::PathBuf>,
    /// What cargo bench passes.
    #[arg(long, hide = true)]
    bench: bool,
}

const QUICK_SHAPES: [(usize, usize); 3] = [(32768, 4096), (16384, 8192), (16384, 16384)];
const SHAPES: [(usize, usize); 12] = [
    (262144, 256),
    (131072, 512),
    (131072, 1024),
    (65536, 2048),
    (32768, 4096),
    (16384, 8192),
    (16384, 16384),
    (8192, 32768),
    (4096, 65536),
    (64, 8192),
    (65536, 1000),
    (4096, 50257),
];

/// Launches between two events, and how many such pairs the median is taken of.
const LAUNCHES: usize = 20;
const RUNS: usize = 7;
/// Inputs and outputs rotate through at least this many bytes: several times the 60 MB of L2.
const ROTATION_BYTES: usize = 400 << 20;

fn main() -> Result<()> {
    let options = Options::parse();
    let device = match Device::new_cuda(0) {
        Ok(device) => device,
        Err(error) => {
            println!("skipped: no CUDA device ({error})");
            return Ok(());
        }
    };
    let stream = device.as_cuda_device()?.cuda_stream();
    println!("{}", stream.context().name()?);
    println!(
        "{:12} {:5} {:>15} {:>10} {:>8} {:>10} {:>8}  checked",
        "op", "dtype", "shape", "us", "GB/s", "copy us", "of copy"
    );
    let mut csv = options
        .csv
        .as_ref()
        .map(std::fs::File::create)
        .transpose()
        .context("the CSV file")?;
    if let Some(csv) = &mut csv {
        writeln!(csv, "op,dtype,rows,width,us,gbs,copy_us,fraction")?;
    }
    let shapes = match &options.shape {
        Some(text) => vec![parse_shape(text)?],
        None if options.quick => QUICK_SHAPES.to_vec(),
        None => SHAPES.to_vec(),
    };
    let dtypes = match options.dtype.as_deref() {
        None => vec![DType::BF16, DType::F32],
        Some(name) => vec![name.parse()?],
    };
    for dtype in dtypes {
        for &(rows, width) in &shapes {
            for op in Op::ALL {
                let wanted = options.op.as_ref().is_none_or(|o| op.name().contains(o));
                if !wanted || (options.quick && op.result() == RowResult::Scalar) {
                    continue;
                }
                let case = Case::new(op, dtype, rows, width, &device)?;
                let seconds = case.time(&stream)?;
                case.check()?;
                let copy = case.time_copy(&stream)?;
                let bytes = case.problem.ideal_bytes() as f64;
                let (us, gbs, copy_us) = (seconds * 1e6, bytes / seconds * 1e-9, copy * 1e6);
                let fraction = copy / seconds;
                println!(
                    "{:12} {:5} {:>15} {us:>10.2} {gbs:>8.0} {copy_us:>10.2} {fraction:>8.3}  ok",
                    op.name(),
                    dtype.as_str(),
                    format!("{rows}x{width}"),
                );
                if let Some(csv) = &mut csv {
                    writeln!(
                        csv,
                        "{},{},{rows},{width},{us:.3},{gbs:.1},{copy_us:.3},{fraction:.4}",
                        op.name(),
                        dtype.as_str()
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn parse_shape(text: &str) -> Result<(usize, usize)> {
    let Some((rows, width)) = text.split_once('x') else {
        bail!("a shape is ROWSxWIDTH, such as 32768x4096, not {text}");
    };
    Ok((rows.parse()?, width.parse()?))
}

/// One op on one shape, with its rotating inputs and outputs.
struct Case {
    problem: Problem,
    inputs: Vec<Tensor>,
    sides: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Case {
    fn new(op: Op, dtype: DType, rows: usize, width: usize, device: &Device) -> Result<Self> {
        let side_layout = Layout::contiguous(width);
        let side_layouts = vec![Some((&side_layout, dtype)); op.operands().len()];
        let layout = Layout::contiguous((rows, width));
        let problem = Problem::new(op, &layout, dtype, &side_layouts)?;
        let sets = (ROTATION_BYTES / problem.ideal_bytes().max(1)).clamp(2, 4096);
        let random =
            |shape: (usize, usize)| Tensor::randn(0f32, 1f32, shape, device)?.to_dtype(dtype);
        let sides = (0..op.operands().len())
            .map(|_| Ok(random((1, width))?.flatten_all()?))
            .collect::<Result<Vec<_>>>()?;
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        for _ in 0..sets {
            inputs.push(random((rows, width))?);
            // Poisoned, so that an element that is not written shows in the check.
            let poison = match problem.output_dtype() {
                DType::U32 => Tensor::full(u32::MAX, problem.output_shape(), device)?,
                dtype => Tensor::full(f32::NAN, problem.output_shape(), device)?.to_dtype(dtype)?,
            };
            outputs.push(poison);
        }
        device.synchronize()?;
        Ok(Self {
            problem,
            inputs,
            sides,
            outputs,
        })
    }

    fn time(&self, stream: &Arc<CudaStream>) -> Result<f64> {
        median_launch_time(stream, |i| {
            let set = i % self.inputs.len();
            Ok(self.outputs[set].inplace_op1(&Launch { case: self, set })?)
        })
    }

    /// Device-to-device copies that move as many bytes as the op must.
    fn time_copy(&self, stream: &Arc<CudaStream>) -> Result<f64> {
        let half = self.problem.ideal_bytes() / 2;
        let sets = (ROTATION_BYTES / half.max(1)).clamp(2, 4096);
        let mut pairs = (0..sets)
            .map(|_| {
                Ok((
                    stream.alloc_zeros::<u8>(half)?,
                    stream.alloc_zeros::<u8>(half)?,
                ))
            })
            .collect::<Result<Vec<_>>>()?;
        median_launch_time(stream, |i| {
            let (from, to) = &mut pairs[i % sets];
            Ok(stream.memcpy_dtod(from, to)?)
        })
    }

    /// Rows at the ends and in the middle of the last output against f64.
    fn check(&self) -> Result<()> {
        let Problem {
            op, rows, width, ..
        } = self.problem;
        let sides = self
            .sides
            .iter()
            .map(|s| Ok(s.to_dtype(DType::F64)?.to_vec1::<f64>()?))
            .collect::<Result<Vec<_>>>()?;
        // Where terms of size 1 cancel, so may their roundings.
        let floor = match op {
            Op::RmsNorm { .. } | Op::LayerNorm { .. } | Op::LogSumExp => 1.,
            Op::Sum => (width as f64).sqrt() * 10.,
            _ => 1e-30,
        };
        for set in 0..self.inputs.len().min(LAUNCHES) {
            for row in [0, rows / 2, rows - 1] {
                let x = self.inputs[set]
                    .get(row)?
                    .to_dtype(DType::F64)?
                    .to_vec1::<f64>()?;
                let y = self.outputs[set]
                    .get(row)?
                    .to_dtype(DType::F64)?
                    .to_vec1::<f64>()?;
                let expected = reference(op, &x, &sides);
                // A coarse net for kernels that are wrong; the test suite is the fine one.
                let unit = match self.problem.dtype {
                    DType::BF16 => 2f64.powi(-7),
                    DType::F16 => 2f64.powi(-10),
                    _ => 1e-5,
                };
                for (i, (got, want)) in y.iter().zip(&expected).enumerate() {
                    let close = (got - want).abs() <= unit * want.abs().max(floor);
                    if !close {
                        bail!(
                            "{} {rows}x{width}: row {row}, element {i}: {got}, f64 says {want}",
                            op.name()
                        );
                    }
                }
            }
        }
        Ok(())
    }
}

/// One launch into the output it is applied to: candle hands out an output's storage for writing
/// to in-place ops alone.
struct Launch<'a> {
    case: &'a Case,
    set: usize,
}

impl InplaceOp1 for Launch<'_> {
    fn name(&self) -> &'static str {
        self.case.problem.op.name()
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        candle_core::bail!("this benchmark is of the GPU")
    }

    fn cuda_fwd(&self, y: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let (x, _) = self.case.inputs[self.set].storage_and_layout();
        let sides: Vec<_> = self
            .case
            .sides
            .iter()
            .map(|s| s.storage_and_layout().0)
            .collect();
        let sides = sides
            .iter()
            .map(|s| cuda(s).map(Some))
            .collect::<candle_core::Result<Vec<_>>>()?;
        run_into(&self.case.problem, cuda(&x)?, &sides, &mut [y])
    }
}

fn cuda(storage: &Storage) -> candle_core::Result<&CudaStorage> {
    match storage {
        Storage::Cuda(storage) => Ok(storage),
        _ => candle_core::bail!("the tensor is not on the GPU"),
    }
}

/// Seconds a launch, by events: the median of [`RUNS`] runs of [`LAUNCHES`] launches after one run
/// to warm up. `launch` is given the number of the launch.
fn median_launch_time(
    stream: &Arc<CudaStream>,
    mut launch: impl FnMut(usize) -> Result<()>,
) -> Result<f64> {
    let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let (start, end) = (
        stream.context().new_event(flags)?,
        stream.context().new_event(flags)?,
    );
    let mut times = Vec::with_capacity(RUNS);
    for run in 0..=RUNS {
        start.record(stream)?;
        for i in 0..LAUNCHES {
            launch(run * LAUNCHES + i)?;
        }
        end.record(stream)?;
        end.synchronize()?;
        if run > 0 {
            times.push(f64::from(start.elapsed_ms(&end)?) * 1e-3 / LAUNCHES as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

fn reference(op: Op, x: &[f64], sides: &[Vec<f64>]) -> Vec<f64> {
    let n = x.len() as f64;
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = x.iter().map(|v| (v - max).exp()).sum();
    let mean = x.iter().sum::<f64>() / n;
    match op {
        Op::Sum => vec![x.iter().sum()],
        Op::Max => vec![max],
        Op::ArgMax => vec![x.iter().position(|v| *v == max).unwrap_or(0) as f64],
        Op::LogSumExp => vec![max + total.ln()],
        Op::Softmax => x.iter().map(|v| (v - max).exp() / total).collect(),
        Op::LogSoftmax => x.iter().map(|v| v - max - total.ln()).collect(),
        Op::RmsNorm { eps } => {
            let r = 1. / (x.iter().map(|v| v * v).sum::<f64>() / n + eps).sqrt();
            x.iter().zip(&sides[0]).map(|(v, w)| v * r * w).collect()
        }
        Op::LayerNorm { eps } => {
            let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
            let r = 1. / (var + eps).sqrt();
            let affine = sides[0].iter().zip(&sides[1]);
            x.iter()
                .zip(affine)
                .map(|(v, (w, b))| (v - mean) * r * w + b)
                .collect()
        }
        _ => Vec::new(),
    }
}
