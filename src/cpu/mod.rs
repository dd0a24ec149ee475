//! CPU kernels: a plain first version, one row after the other in f64.

use candle_core::{CpuStorage, Result, WithDType};

use crate::problem::{Op, Problem};

/// Runs a problem.
pub(crate) fn run(problem: &Problem, x: &CpuStorage, sides: &[&CpuStorage]) -> Result<CpuStorage> {
    match x {
        CpuStorage::F16(_) => run_t::<half::f16>(problem, x, sides),
        CpuStorage::BF16(_) => run_t::<half::bf16>(problem, x, sides),
        CpuStorage::F32(_) => run_t::<f32>(problem, x, sides),
        CpuStorage::F64(_) => run_t::<f64>(problem, x, sides),
        _ => candle_core::bail!("{}: unsupported dtype", problem.op.name()),
    }
}

fn run_t<T: WithDType>(p: &Problem, x: &CpuStorage, sides: &[&CpuStorage]) -> Result<CpuStorage> {
    let x = x.as_slice::<T>()?;
    let side = |i: usize, j: usize| -> Result<f64> {
        Ok(sides[i].as_slice::<T>()?[p.sides[i] + j].to_f64())
    };
    let mut out: Vec<T> = Vec::with_capacity(p.output_len());
    let mut index: Vec<u32> = Vec::new();
    let n = p.width;
    for r in 0..p.rows {
        let start = p.input.start(r);
        let row: Vec<f64> = x[start..start + n].iter().map(|v| v.to_f64()).collect();
        let nan = row.iter().position(|v| v.is_nan());
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let shift = if max == f64::NEG_INFINITY { 0.0 } else { max };
        let total: f64 = row.iter().map(|v| (v - shift).exp()).sum();
        match p.op {
            Op::Sum => out.push(T::from_f64(row.iter().sum())),
            Op::Max => out.push(T::from_f64(if nan.is_some() { f64::NAN } else { max })),
            Op::ArgMax => index.push(
                nan.or_else(|| row.iter().position(|v| *v == max))
                    .unwrap_or(0) as u32,
            ),
            Op::LogSumExp => out.push(T::from_f64(if max == f64::INFINITY {
                max
            } else {
                max + total.ln()
            })),
            Op::Softmax => out.extend(row.iter().map(|v| T::from_f64((v - shift).exp() / total))),
            Op::LogSoftmax => out.extend(row.iter().map(|v| T::from_f64(v - shift - total.ln()))),
            Op::RmsNorm { eps } => {
                let ms = row.iter().map(|v| v * v).sum::<f64>() / n as f64;
                for (j, v) in row.iter().enumerate() {
                    out.push(T::from_f64(v / (ms + eps).sqrt() * side(0, j)?));
                }
            }
            Op::LayerNorm { eps } => {
                let mean = row.iter().sum::<f64>() / n as f64;
                let var = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
                for (j, v) in row.iter().enumerate() {
                    out.push(T::from_f64(
                        (v - mean) / (var + eps).sqrt() * side(0, j)? + side(1, j)?,
                    ));
                }
            }
        }
    }
    Ok(if p.op == Op::ArgMax {
        CpuStorage::U32(index)
    } else {
        T::to_cpu_storage_owned(out)
    })
}
