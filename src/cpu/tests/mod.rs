//! What the tests of the ops share: inputs of every dtype, and how to run an op on them.

mod cases;
mod sweep;

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, DType, Layout};
use half::{bf16, f16};

use super::*;

const DTYPES: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// `h(k)` of the case list: exact in every dtype.
fn h(k: usize) -> f64 {
    ((37 * k) % 101) as f64 / 16.0 - 50.0 / 16.0
}

/// Values as a storage of `dtype`, each rounded to it.
fn storage(values: &[f64], dtype: DType) -> CpuStorage {
    match dtype {
        DType::F16 => CpuStorage::F16(values.iter().map(|v| f16::from_f64(*v)).collect()),
        DType::BF16 => CpuStorage::BF16(values.iter().map(|v| bf16::from_f64(*v)).collect()),
        DType::F32 => CpuStorage::F32(values.iter().map(|v| *v as f32).collect()),
        _ => CpuStorage::F64(values.to_vec()),
    }
}

/// The values of a storage, exactly.
fn to_f64(storage: &CpuStorage) -> Vec<f64> {
    match storage {
        CpuStorage::F16(v) => v.iter().map(|v| v.to_f64()).collect(),
        CpuStorage::BF16(v) => v.iter().map(|v| v.to_f64()).collect(),
        CpuStorage::F32(v) => v.iter().map(|v| *v as f64).collect(),
        CpuStorage::F64(v) => v.clone(),
        CpuStorage::U8(v) => v.iter().map(|v| *v as f64).collect(),
        CpuStorage::U32(v) => v.iter().map(|v| *v as f64).collect(),
        other => panic!("{:?}", other.dtype()),
    }
}

/// The bits of a storage, NaN included.
fn bits(storage: &CpuStorage) -> Vec<u64> {
    match storage {
        CpuStorage::F16(v) => v.iter().map(|v| v.to_bits() as u64).collect(),
        CpuStorage::BF16(v) => v.iter().map(|v| v.to_bits() as u64).collect(),
        CpuStorage::F32(v) => v.iter().map(|v| v.to_bits() as u64).collect(),
        CpuStorage::F64(v) => v.iter().map(|v| v.to_bits()).collect(),
        CpuStorage::U8(v) => v.iter().map(|v| *v as u64).collect(),
        CpuStorage::U32(v) => v.iter().map(|v| *v as u64).collect(),
        other => panic!("{:?}", other.dtype()),
    }
}

/// The one result of a run.
fn one(results: Result<Vec<CpuStorage>>) -> CpuStorage {
    let mut results = results.unwrap();
    assert_eq!(results.len(), 1);
    results.remove(0)
}

/// An input with its sides.
struct Inputs {
    x: CpuStorage,
    weight: CpuStorage,
    bias: CpuStorage,
    width: usize,
}

impl Inputs {
    /// Rows of `x`, with sides that are not all alike.
    fn new(x: &[f64], width: usize, dtype: DType) -> Self {
        let side = |f: fn(f64) -> f64| -> Vec<f64> { (0..width).map(|j| f(h(j))).collect() };
        Inputs {
            x: storage(x, dtype),
            weight: storage(&side(|v| 1.0 + v / 8.0), dtype),
            bias: storage(&side(|v| v / 4.0), dtype),
            width,
        }
    }

    /// Rows of `x`, weight 1 and bias 0.
    fn plain(x: &[f64], width: usize, dtype: DType) -> Self {
        Inputs {
            weight: storage(&vec![1.0; width], dtype),
            bias: storage(&vec![0.0; width], dtype),
            ..Self::new(x, width, dtype)
        }
    }

    fn problem(&self, op: Op, layout: &Layout) -> Problem {
        let side = Layout::contiguous(self.width);
        let sides = vec![Some((&side, self.x.dtype())); self.sides(op).len()];
        Problem::new(op, layout, self.x.dtype(), &sides).unwrap()
    }

    fn sides(&self, op: Op) -> Vec<Option<&CpuStorage>> {
        match op {
            Op::RmsNorm { .. } => vec![Some(&self.weight)],
            Op::LayerNorm { .. } => vec![Some(&self.weight), Some(&self.bias)],
            _ => Vec::new(),
        }
    }

    fn layout(&self) -> Layout {
        let rows = bits(&self.x).len() / self.width;
        Layout::contiguous((rows, self.width))
    }

    fn run(&self, op: Op) -> CpuStorage {
        self.run_layout(op, &self.layout())
    }

    fn run_layout(&self, op: Op, layout: &Layout) -> CpuStorage {
        one(run(&self.problem(op, layout), &self.x, &self.sides(op)))
    }

    fn run_isa(&self, op: Op, isa: impl Isa) -> CpuStorage {
        let problem = self.problem(op, &self.layout());
        one(run_on(isa, &problem, &self.x, &self.sides(op)))
    }
}

/// Runs `op` on rows of `x` in `dtype`, weight 1 and bias 0.
fn plain(op: Op, x: &[f64], width: usize, dtype: DType) -> Vec<f64> {
    to_f64(&Inputs::plain(x, width, dtype).run(op))
}

/// The results of `op` row by row: those of a pair lie in two planes.
fn by_row<V: Copy>(op: Op, results: &[V], rows: usize) -> Vec<Vec<V>> {
    let per_row = results.len() / rows;
    let at = |r, i| match op.result() {
        RowResult::Pair => results[i * rows + r],
        _ => results[r * per_row + i],
    };
    (0..rows)
        .map(|r| (0..per_row).map(|i| at(r, i)).collect())
        .collect()
}

/// Half of the distance from 1 to the next number of a dtype.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        DType::F32 => 2f64.powi(-24),
        _ => 2f64.powi(-53),
    }
}

/// The distance between numbers of `dtype` around `value`.
fn ulp(value: f64, dtype: DType) -> f64 {
    let smallest_normal = match dtype {
        DType::F16 => 2f64.powi(-14),
        DType::BF16 | DType::F32 => 2f64.powi(-126),
        _ => f64::MIN_POSITIVE,
    };
    value.abs().max(smallest_normal).log2().floor().exp2() * 2.0 * unit(dtype)
}
