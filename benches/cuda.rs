//! Kernel times on a GPU, beside a copy of the same bytes in the same run.
//!
//! `cargo bench --features cuda --bench cuda -- [--quick] [--op softmax] [--csv FILE]`
//!
//! Device time between two events around at least 20 launches into preallocated outputs; the inputs
//! rotate through more memory than the L2 cache holds; the median of several such runs. The figure
//! that counts is the fraction of the copy's speed: single times drift with the machine, ratios of
//! one run do not. What is timed is checked against an f64 reference.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;

use anyhow::{bail, Context, Result};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::cudarc::driver::{sys::CUevent_flags, CudaStream};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, DType, Device, Layout, Shape, Storage, Tensor};
use candle_rowwise::cuda::run_into;
use candle_rowwise::plan::{DeviceLimits, Plan};
use candle_rowwise::problem::{
    accumulator_dtype, CrossEntropy, Op, Operand, OperandDType, OperandKind, Problem, RowResult,
};
use clap::Parser;

#[derive(Parser)]
struct Options {
    /// Only the ops whose name contains this, or one of these.
    #[arg(long)]
    op: Vec<String>,
    /// Only this dtype: bf16, f16, f32 or f64.
    #[arg(long)]
    dtype: Option<String>,
    /// Only this shape, or these: ROWSxWIDTH, or OUTERxWIDTHxINNER for rows that are columns in memory.
    #[arg(long)]
    shape: Vec<String>,
    /// The widths at which benches/peers.py times other libraries, of some 2^27 elements each.
    #[arg(long)]
    widths: bool,
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

/// Outer index, width of a row, and rows that lie side by side: 1 where rows are contiguous.
type Dims = (usize, usize, usize);

const QUICK_SHAPES: [(usize, usize); 3] = [(32768, 4096), (16384, 8192), (16384, 16384)];
/// Reduced over the first axis, and over the middle one, of ops that read columns where they lie.
const COLUMN_SHAPES: [Dims; 2] = [(1, 16384, 8192), (64, 4096, 512)];
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

/// Powers of two, and what vocabularies and careless models have.
const WIDTHS: [usize; 16] = [
    256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 257, 1000, 5003, 50257,
    151936,
];
const WIDTH_ELEMENTS: usize = 1 << 27;

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
        "{:28} {:5} {:>15} {:>10} {:>8} {:>10} {:>8}  checked",
        "op", "dtype", "shape", "us", "GB/s", "copy us", "of copy"
    );
    let mut csv = options
        .csv
        .as_ref()
        .map(std::fs::File::create)
        .transpose()
        .context("the CSV file")?;
    if let Some(csv) = &mut csv {
        writeln!(csv, "op,dtype,shape,us,gbs,copy_us,fraction")?;
    }
    let shapes: Vec<Dims> = if !options.shape.is_empty() {
        let shapes = options.shape.iter().map(|text| parse_shape(text));
        shapes.collect::<Result<_>>()?
    } else if options.widths {
        WIDTHS
            .iter()
            .map(|width| (rows_of(*width), *width, 1))
            .collect()
    } else {
        let rows: &[_] = if options.quick {
            &QUICK_SHAPES
        } else {
            &SHAPES
        };
        let rows = rows.iter().map(|(rows, width)| (*rows, *width, 1));
        rows.chain(COLUMN_SHAPES).collect()
    };
    let dtypes = match options.dtype.as_deref() {
        None => vec![DType::BF16, DType::F32],
        Some(name) => vec![name.parse()?],
    };
    for dtype in dtypes {
        for &dims in &shapes {
            let (outer, width, inner) = dims;
            let shown = match inner {
                1 => format!("{outer}x{width}"),
                _ => format!("{outer}x{width}x{inner}"),
            };
            for op in ops() {
                let wanted =
                    options.op.is_empty() || options.op.iter().any(|o| op.name().contains(o));
                if !wanted || (options.quick && op.result() == RowResult::Scalar) {
                    continue;
                }
                let Some(case) = Case::new(op, dtype, dims, &device)? else {
                    continue;
                };
                let seconds = case.time(&stream)?;
                case.check()?;
                let copy = case.time_copy(&stream)?;
                let bytes = case.problem.ideal_bytes() as f64;
                let (us, gbs, copy_us) = (seconds * 1e6, bytes / seconds * 1e-9, copy * 1e6);
                let fraction = copy / seconds;
                println!(
                    "{:28} {:5} {:>15} {us:>10.2} {gbs:>8.0} {copy_us:>10.2} {fraction:>8.3}  ok",
                    op.name(),
                    dtype.as_str(),
                    shown,
                );
                if let Some(csv) = &mut csv {
                    writeln!(
                        csv,
                        "{},{},{shown},{us:.3},{gbs:.1},{copy_us:.3},{fraction:.4}",
                        op.name(),
                        dtype.as_str()
                    )?;
                }
            }
        }
    }
    Ok(())
}

/// The power of two that brings the rows nearest to [`WIDTH_ELEMENTS`].
fn rows_of(width: usize) -> usize {
    1 << (WIDTH_ELEMENTS as f64 / width as f64).log2().round() as u32
}

fn parse_shape(text: &str) -> Result<Dims> {
    let sizes: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
    match sizes?[..] {
        [rows, width] => Ok((rows, width, 1)),
        [outer, width, inner] => Ok((outer, width, inner)),
        _ => bail!("a shape is ROWSxWIDTH, such as 32768x4096, or OUTERxWIDTHxINNER, not {text}"),
    }
}

/// The ops that are timed: those of [`Op::ALL`], and the gradients' kernels.
fn ops() -> Vec<Op> {
    let loss = CrossEntropy {
        ignore_index: None,
        label_smoothing: 0.,
        z_loss: 0.,
        soft_cap: None,
    };
    let gradients = [
        Op::SoftmaxGradient { log: false },
        Op::SoftmaxGradient { log: true },
        Op::CrossEntropy(loss),
        Op::CrossEntropyWithGradient(loss),
    ];
    let fused = Op::FUSED.into_iter();
    // Who wants no gradients of weight and bias waits for the same kernel.
    let fused = fused.filter(|op| op.sums_over_rows() || !op.goes_by_bands());
    Op::ALL.into_iter().chain(fused).chain(gradients).collect()
}

/// Of what may be left out, norms are given what models give them.
fn is_given(op: Op, operand: &Operand) -> bool {
    match op {
        Op::RmsNorm { .. } | Op::AddRmsNorm { .. } => operand.name != "bias",
        Op::LayerNorm { .. }
        | Op::AddLayerNorm { .. }
        | Op::RmsNormGradient { .. }
        | Op::LayerNormGradient { .. } => true,
        _ => !operand.optional,
    }
}

/// One op on one shape, with its rotating inputs and outputs.
struct Case {
    problem: Problem,
    dims: Dims,
    sets: Vec<Set>,
}

/// What one launch reads and writes.
struct Set {
    x: Tensor,
    operands: Vec<Option<Tensor>>,
    results: RefCell<Vec<CudaStorage>>,
}

impl Case {
    /// `None` for rows in columns of an op that reads none.
    fn new(op: Op, dtype: DType, dims: Dims, device: &Device) -> Result<Option<Self>> {
        let (outer, width, inner) = dims;
        if inner > 1 && !op.operands().is_empty() {
            return Ok(None);
        }
        let random = |shape: &Shape, dtype: DType| -> Result<Tensor> {
            Ok(match dtype {
                // Classes.
                DType::U32 | DType::I64 => {
                    Tensor::rand(0f32, width as f32 - 0.5, shape, device)?.to_dtype(dtype)?
                }
                dtype => Tensor::randn(0f32, 1f32, shape, device)?.to_dtype(dtype)?,
            })
        };
        let shape = match inner {
            1 => Shape::from((outer, width)),
            _ => Shape::from(dims),
        };
        let layout = match inner {
            1 => Layout::contiguous(&shape),
            _ => Layout::contiguous(&shape).transpose(1, 2)?,
        };
        let kinds: Vec<_> = op
            .operands()
            .iter()
            .map(|operand| {
                let operand_dtype = match operand.dtype {
                    OperandDType::OneOf(dtypes) => dtypes[0],
                    OperandDType::Accumulator => accumulator_dtype(dtype),
                    _ => dtype,
                };
                is_given(op, operand)
                    .then(|| (operand.kind, operand.shape(op, &shape), operand_dtype))
            })
            .collect();
        // Operands of a row or a value for each row rotate like the input.
        let shared: Vec<_> = kinds
            .iter()
            .map(|kind| match kind {
                Some((OperandKind::Vector, shape, dtype)) => random(shape, *dtype).map(Some),
                _ => Ok(None),
            })
            .collect::<Result<_>>()?;
        let layouts: Vec<_> = kinds
            .iter()
            .map(|kind| {
                kind.as_ref()
                    .map(|(_, shape, dtype)| (Layout::contiguous(shape), *dtype))
            })
            .collect();
        let layouts: Vec<_> = layouts
            .iter()
            .map(|kind| kind.as_ref().map(|(layout, dtype)| (layout, *dtype)))
            .collect();
        let problem = Problem::new(op, &layout, dtype, &layouts)?;
        if inner > 1 && Plan::select(&problem, &DeviceLimits::H200).is_err() {
            return Ok(None);
        }
        let count = (ROTATION_BYTES / problem.ideal_bytes().max(1)).clamp(2, 4096);
        let sets = (0..count).map(|_| {
            let operands = kinds.iter().zip(&shared);
            let operands = operands.map(|(kind, shared)| match (kind, shared) {
                (Some((_, shape, dtype)), None) => random(shape, *dtype).map(Some),
                (_, shared) => Ok(shared.clone()),
            });
            let results = (0..op.results().len()).map(|i| {
                let shape = problem.result_shape(i);
                // Poisoned, so that an element that is not written shows in the check.
                let poison = match op.result_dtype(i, dtype) {
                    DType::U32 => Tensor::full(u32::MAX, shape, device)?,
                    dtype => Tensor::full(f32::NAN, shape, device)?.to_dtype(dtype)?,
                };
                let (storage, layout) = poison.storage_and_layout();
                Ok(cuda(&storage)?.try_clone(layout)?)
            });
            Ok(Set {
                x: random(&shape, dtype)?,
                operands: operands.collect::<Result<_>>()?,
                results: RefCell::new(results.collect::<Result<_>>()?),
            })
        });
        let sets = sets.collect::<Result<_>>()?;
        device.synchronize()?;
        Ok(Some(Self {
            problem,
            dims,
            sets,
        }))
    }

    fn launch(&self, set: &Set) -> Result<()> {
        let (x, _) = set.x.storage_and_layout();
        let operands: Vec<_> = set
            .operands
            .iter()
            .map(|operand| operand.as_ref().map(|t| t.storage_and_layout().0))
            .collect();
        let operands = operands
            .iter()
            .map(|operand| operand.as_ref().map(|s| cuda(s)).transpose())
            .collect::<candle_core::Result<Vec<_>>>()?;
        let mut results = set.results.borrow_mut();
        let mut results: Vec<_> = results.iter_mut().collect();
        Ok(run_into(&self.problem, cuda(&x)?, &operands, &mut results)?)
    }

    fn time(&self, stream: &Arc<CudaStream>) -> Result<f64> {
        median_launch_time(stream, |i| self.launch(&self.sets[i % self.sets.len()]))
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

    /// Rows at the ends and in the middle of the results against f64.
    fn check(&self) -> Result<()> {
        let Problem { op, width, .. } = self.problem;
        // Where terms of size 1 cancel, so may their roundings.
        let floor = match op {
            Op::Sum => (width as f64).sqrt() * 10.,
            Op::Softmax | Op::L2Normalize { .. } => 1e-30,
            // Times a probability, of which few are larger.
            Op::SoftmaxGradient { log: false } => 30. / width as f64,
            _ => 1.,
        };
        // A coarse net for kernels that are wrong; the test suite is the fine one.
        let unit = match self.problem.dtype {
            DType::BF16 => 2f64.powi(-7),
            DType::F16 => 2f64.powi(-10),
            _ => 1e-5,
        };
        for set in self.sets.iter().take(LAUNCHES) {
            let (storage, shape) = {
                let results = set.results.borrow();
                let shape = self.problem.output_shape();
                (results[0].try_clone(&Layout::contiguous(&shape))?, shape)
            };
            let y = Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false);
            self.check_set(set, &y, |got, want| {
                (got - want).abs() <= unit * want.abs().max(floor)
            })?;
        }
        Ok(())
    }

    /// A row of a tensor that lies as the input does.
    fn row(&self, t: &Tensor, row: usize) -> Result<Tensor> {
        let (_, _, inner) = self.dims;
        Ok(match inner {
            1 => t.get(row)?,
            _ => t.get(row / inner)?.narrow(1, row % inner, 1)?,
        })
    }

    fn check_set(&self, set: &Set, y: &Tensor, close: impl Fn(f64, f64) -> bool) -> Result<()> {
        let Problem {
            op, rows, width, ..
        } = self.problem;
        let f64s = |t: &Tensor| -> Result<Vec<f64>> {
            Ok(t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?)
        };
        for row in [0, rows / 2, rows - 1] {
            let x = f64s(&self.row(&set.x, row)?)?;
            let beside = set.operands.iter().zip(op.operands());
            let beside = beside.map(|(tensor, operand)| match tensor {
                Some(vector) if operand.kind == OperandKind::Vector => f64s(vector),
                Some(rows) => f64s(&rows.get(row)?),
                None => Ok(Vec::new()),
            });
            let beside = beside.collect::<Result<Vec<_>>>()?;
            let x = match op {
                // The norm is that of the sum as it is stored.
                Op::AddRmsNorm { .. } | Op::AddLayerNorm { .. } => {
                    f64s(&(set.x.get(row)? + operand_row(set, 0, row)?)?)?
                }
                _ => x,
            };
            let expected = reference(op, &x, &beside);
            let y = match op.is_reduction() {
                true => y.flatten_all()?.narrow(0, row, 1)?,
                false => self.row(y, row)?,
            };
            for (i, (got, want)) in f64s(&y)?.iter().zip(&expected).enumerate() {
                if !close(*got, *want) {
                    bail!(
                        "{} {rows}x{width}: row {row}, element {i}: {got}, f64 says {want}",
                        op.name()
                    );
                }
            }
        }
        Ok(())
    }
}

fn operand_row(set: &Set, index: usize, row: usize) -> Result<Tensor> {
    match &set.operands[index] {
        Some(rows) => Ok(rows.get(row)?),
        None => bail!("operand {index} was left out"),
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

/// The first result for a row, by its operands' vectors, rows or values for it.
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
        Op::AddRmsNorm { .. } | Op::AddLayerNorm { .. } => {
            // `x` is the sum.
            let (op, sides) = match op {
                Op::AddRmsNorm { eps } => (Op::RmsNorm { eps }, &sides[1..2]),
                Op::AddLayerNorm { eps } => (Op::LayerNorm { eps }, &sides[1..3]),
                _ => return Vec::new(),
            };
            reference(op, x, sides)
        }
        Op::RmsNormGradient { eps, .. } | Op::LayerNormGradient { eps, .. } => {
            let mean = match op {
                Op::LayerNormGradient { .. } => mean,
                _ => 0.,
            };
            let square = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
            let r = 1. / (square + eps).sqrt();
            let h: Vec<f64> = x.iter().map(|v| (v - mean) * r).collect();
            let t: Vec<f64> = sides[0].iter().zip(&sides[1]).map(|(g, w)| g * w).collect();
            let along = h.iter().zip(&t).map(|(h, t)| h * t).sum::<f64>() / n;
            let total = match op {
                Op::LayerNormGradient { .. } => t.iter().sum::<f64>() / n,
                _ => 0.,
            };
            let both = h.iter().zip(&t);
            both.map(|(h, t)| r * (t - total - h * along)).collect()
        }
        Op::L2Normalize { eps } => {
            let length = x.iter().map(|v| v * v).sum::<f64>().sqrt().max(eps);
            x.iter().map(|v| v / length).collect()
        }
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
        Op::SoftmaxGradient { log } => {
            let p: Vec<f64> = x.iter().map(|v| (v - max).exp() / total).collect();
            let g = &sides[0];
            let weighted: f64 = p.iter().zip(g).map(|(p, g)| p * g).sum();
            let plain: f64 = g.iter().sum();
            let both = p.iter().zip(g);
            both.map(|(p, g)| match log {
                true => g - p * plain,
                false => p * (g - weighted),
            })
            .collect()
        }
        Op::CrossEntropy(_) => vec![max + total.ln() - x[sides[0][0] as usize]],
        Op::CrossEntropyWithGradient(_) => {
            let target = sides[0][0] as usize;
            let hot = |i| if i == target { 1. } else { 0. };
            let p = x.iter().map(|v| (v - max).exp() / total);
            p.enumerate().map(|(i, p)| p - hot(i)).collect()
        }
        _ => Vec::new(),
    }
}
