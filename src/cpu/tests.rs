//! Every op and dtype against f64, at odd widths, on every instruction set, split or not; and the
//! cases of special values.

use candle_core::{CpuStorage, DType, Layout, Shape};
use half::{bf16, f16};

use super::*;
use crate::engine::isa::Portable;
#[cfg(target_arch = "x86_64")]
use crate::engine::isa::{Avx2, Avx512};

const WIDTHS: [usize; 22] = [
    1, 2, 3, 5, 7, 31, 33, 63, 65, 127, 129, 255, 257, 511, 513, 1000, 1023, 1025, 4097, 5003,
    8193, 70000,
];
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
        CpuStorage::U32(v) => v.iter().map(|v| *v as u64).collect(),
        other => panic!("{:?}", other.dtype()),
    }
}

use candle_core::backend::BackendStorage;

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
        let sides = vec![(&side, self.x.dtype()); op.sides().len()];
        Problem::new(op, layout, self.x.dtype(), &sides).unwrap()
    }

    fn sides(&self, op: Op) -> Vec<&CpuStorage> {
        [&self.weight, &self.bias][..op.sides().len()].to_vec()
    }

    fn layout(&self) -> Layout {
        let rows = bits(&self.x).len() / self.width;
        Layout::contiguous((rows, self.width))
    }

    fn run(&self, op: Op) -> CpuStorage {
        self.run_layout(op, &self.layout())
    }

    fn run_layout(&self, op: Op, layout: &Layout) -> CpuStorage {
        run(&self.problem(op, layout), &self.x, &self.sides(op)).unwrap()
    }

    fn run_isa(&self, op: Op, isa: impl Isa) -> CpuStorage {
        let problem = self.problem(op, &self.layout());
        run_on(isa, &problem, &self.x, &self.sides(op)).unwrap()
    }
}

/// Runs `op` on rows of `x` in `dtype`, weight 1 and bias 0.
fn plain(op: Op, x: &[f64], width: usize, dtype: DType) -> Vec<f64> {
    to_f64(&Inputs::plain(x, width, dtype).run(op))
}

/// The result of a row in f64, and beside each value the size of what was added up to it: what
/// rounding errors are relative to.
fn reference(op: Op, x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<(f64, f64)> {
    let n = x.len() as f64;
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum_exp: f64 = x.iter().map(|v| (v - max).exp()).sum();
    match op {
        Op::Sum => vec![(x.iter().sum(), x.iter().map(|v| v.abs()).sum())],
        Op::Max => vec![(max, 0.0)],
        Op::ArgMax => vec![(x.iter().position(|v| *v == max).unwrap() as f64, 0.0)],
        Op::LogSumExp => vec![(max + sum_exp.ln(), max.abs() + sum_exp.ln() + 1.0)],
        Op::Softmax => x
            .iter()
            .map(|v| {
                // The rounding of `v - max` is relative to itself, and an absolute error there is a
                // relative one here.
                let y = (v - max).exp() / sum_exp;
                (y, y * (1.0 + max - v))
            })
            .collect(),
        Op::LogSoftmax => x
            .iter()
            .map(|v| (v - max - sum_exp.ln(), max - v + sum_exp.ln() + 1.0))
            .collect(),
        Op::RmsNorm { eps } => {
            let rstd = (x.iter().map(|v| v * v).sum::<f64>() / n + eps)
                .sqrt()
                .recip();
            let row = x.iter().zip(weight).map(|(v, w)| v * rstd * w);
            row.map(|y| (y, y.abs())).collect()
        }
        Op::LayerNorm { eps } => {
            let mean = x.iter().sum::<f64>() / n;
            let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
            let rstd = (var + eps).sqrt().recip();
            x.iter()
                .zip(weight.iter().zip(bias))
                .map(|(v, (w, b))| {
                    let normed = (v - mean) * rstd;
                    // The mean is off by a rounding of the mean deviation, which is below 1 / rstd.
                    (normed * w + b, (normed.abs() + 1.0) * w.abs() + b.abs())
                })
                .collect()
        }
    }
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

/// What a result may be off by. `magnitude` is the size of what was added up.
///
/// The fold: 32 additions per lane, 5 to join the lanes, and two per doubling of the number of
/// chunks, each one rounding. The arithmetic around it: four roundings. The output: for halves one
/// ulp, for the others what the arithmetic has already.
fn tolerance(op: Op, want: f64, magnitude: f64, width: usize, dtype: DType) -> f64 {
    if let Op::Max | Op::ArgMax = op {
        return 0.0;
    }
    let chunks = (width as f64 / 1024.0).max(1.0);
    let folds = (width as f64).min(32.0 + 5.0) + 2.0 * chunks.log2().ceil();
    let accumulator = match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let arithmetic = magnitude * (folds + 4.0) * unit(accumulator);
    match dtype {
        DType::F16 | DType::BF16 => ulp(want, dtype) + arithmetic,
        // The reference is an f64 computation itself, one addition after the other.
        DType::F64 => 4.0 * ulp(want, dtype) + arithmetic + magnitude * width as f64 * unit(dtype),
        _ => 4.0 * ulp(want, dtype) + arithmetic,
    }
}

fn check_against_reference(op: Op, inputs: &Inputs) {
    let (dtype, width) = (inputs.x.dtype(), inputs.width);
    let (x, got) = (to_f64(&inputs.x), to_f64(&inputs.run(op)));
    let (weight, bias) = (to_f64(&inputs.weight), to_f64(&inputs.bias));
    let per_row = got.len() / (x.len() / width);
    for (r, (x, got)) in x.chunks(width).zip(got.chunks(per_row)).enumerate() {
        let want = reference(op, x, &weight, &bias);
        assert_eq!(want.len(), got.len());
        for (j, (got, (want, magnitude))) in got.iter().zip(want).enumerate() {
            let tolerance = tolerance(op, want, magnitude, width, dtype);
            assert!(
                (got - want).abs() <= tolerance,
                "{op:?} {dtype:?} width {width} row {r} element {j}: got {got:e}, want {want:e}, \
                 tolerance {tolerance:e}"
            );
        }
    }
}

#[test]
fn n01_every_op_and_dtype_at_odd_widths() {
    for width in WIDTHS {
        let rows = if width > 5000 { 2 } else { 3 };
        let x: Vec<f64> = (0..rows * width)
            .map(|k| h(k) + (k / width) as f64 / 2.0)
            .collect();
        for dtype in DTYPES {
            let inputs = Inputs::new(&x, width, dtype);
            for op in Op::ALL {
                check_against_reference(op, &inputs);
            }
        }
    }
}

#[test]
fn bits_are_the_same_on_every_instruction_set() {
    for width in [1, 7, 31, 33, 257, 1025, 5003, 70000] {
        let x: Vec<f64> = (0..2 * width)
            .map(|k| h(k) * 1.37 + h(3 * k) / 64.0)
            .collect();
        for dtype in DTYPES {
            let inputs = Inputs::new(&x, width, dtype);
            for op in Op::ALL {
                let want = bits(&inputs.run_isa(op, Portable));
                assert_eq!(want, bits(&inputs.run(op)), "{op:?} {dtype:?} {width} best");
                #[cfg(target_arch = "x86_64")]
                {
                    if let Some(isa) = Avx2::detect() {
                        let got = bits(&inputs.run_isa(op, isa));
                        assert_eq!(want, got, "{op:?} {dtype:?} {width} AVX2");
                    }
                    if let Some(isa) = Avx512::detect() {
                        let got = bits(&inputs.run_isa(op, isa));
                        assert_eq!(want, got, "{op:?} {dtype:?} {width} AVX-512");
                    }
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_splits_or_other_rows() {
    // The last two widths are of two segments and more, so that few rows are split.
    for width in [33, 1025, 70000, 100_003] {
        let rows = 5;
        let x: Vec<f64> = (0..rows * width)
            .map(|k| h(k) * 1.37 + h(3 * k) / 64.0)
            .collect();
        for dtype in [DType::BF16, DType::F32] {
            let all = Inputs::new(&x, width, dtype);
            let alone = Inputs::new(&x[2 * width..3 * width], width, dtype);
            for op in Op::ALL {
                let with_threads = |threads, inputs: &Inputs| {
                    rayon::ThreadPoolBuilder::new()
                        .num_threads(threads)
                        .build()
                        .unwrap()
                        .install(|| bits(&inputs.run(op)))
                };
                let want = with_threads(1, &all);
                for threads in [2, 16] {
                    assert_eq!(
                        want,
                        with_threads(threads, &all),
                        "{op:?} {dtype:?} {width}"
                    );
                }
                let per_row = want.len() / rows;
                for threads in [1, 2, 16] {
                    assert_eq!(
                        want[2 * per_row..3 * per_row],
                        with_threads(threads, &alone),
                        "{op:?} {dtype:?} {width} alone, {threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn strided_and_offset_rows_are_read_in_place() {
    let width = 131;
    let x: Vec<f64> = (0..4 * 3 * 400).map(h).collect();
    for dtype in DTYPES {
        let inputs = Inputs::new(&x, width, dtype);
        let whole = Layout::contiguous((4, 3, 400));
        // Columns 7.., rows of a transposed outer dim, and one row broadcast.
        let cut = whole.narrow(2, 7, width).unwrap();
        let swapped = cut.transpose(0, 1).unwrap();
        let broadcast = cut.narrow(0, 1, 1).unwrap();
        let broadcast = broadcast.broadcast_as(Shape::from((5, 3, width))).unwrap();
        for layout in [cut, swapped, broadcast] {
            let dims = layout.dims().to_vec();
            let mut packed = Vec::new();
            for i in 0..dims[0] {
                for j in 0..dims[1] {
                    let at =
                        layout.start_offset() + i * layout.stride()[0] + j * layout.stride()[1];
                    packed.extend_from_slice(&x[at..at + width]);
                }
            }
            let packed = Inputs::new(&packed, width, dtype);
            for op in Op::ALL {
                let got = bits(&inputs.run_layout(op, &layout));
                assert_eq!(got, bits(&packed.run(op)), "{op:?} {dtype:?} {dims:?}");
            }
        }
    }
}

#[test]
fn a_storage_that_ends_early_is_an_error() {
    let inputs = Inputs::new(&vec![1.0; 99], 10, DType::F32);
    for op in Op::ALL {
        let problem = inputs.problem(op, &Layout::contiguous((10, 10)));
        let err = run(&problem, &inputs.x, &inputs.sides(op)).unwrap_err();
        assert!(err.to_string().contains(op.name()), "{err}");
    }
    let problem = inputs.problem(Op::ALL[6], &Layout::contiguous((9, 10)));
    assert!(run(&problem, &inputs.x, &[]).is_err(), "no weight");
}

#[test]
fn rows_without_elements() {
    let x = storage(&[], DType::F32);
    let problem = |op| Problem::new(op, &Layout::contiguous((3, 0)), DType::F32, &[]).unwrap();
    assert_eq!(to_f64(&run(&problem(Op::Sum), &x, &[]).unwrap()), [0.0; 3]);
    let lse = to_f64(&run(&problem(Op::LogSumExp), &x, &[]).unwrap());
    assert_eq!(lse, [f64::NEG_INFINITY; 3]);
    assert_eq!(
        to_f64(&run(&problem(Op::Softmax), &x, &[]).unwrap()).len(),
        0
    );
    let none = Problem::new(Op::Max, &Layout::contiguous((0, 5)), DType::F32, &[]).unwrap();
    assert_eq!(to_f64(&run(&none, &x, &[]).unwrap()).len(), 0);
}

#[test]
fn p01_softmax_of_half_sums_wide() {
    for (n, dtype) in [
        (4096, DType::F16),
        (512, DType::BF16),
        (262_144, DType::BF16),
    ] {
        let x = vec![0.0; n];
        let want = 1.0 / n as f64;
        assert!(plain(Op::Softmax, &x, n, dtype).iter().all(|v| *v == want));
    }
    let log = plain(Op::LogSoftmax, &vec![0.0; 4096], 4096, DType::F16);
    assert!(log.iter().all(|v| *v == -8.3203125));
}

#[test]
fn p02_p03_sums_do_not_stall() {
    assert_eq!(plain(Op::Sum, &vec![1.0; 4096], 4096, DType::F16), [4096.0]);
    assert_eq!(
        plain(Op::Sum, &vec![1.0; 70000], 70000, DType::BF16),
        [70144.0]
    );
    let overflow = plain(Op::Sum, &vec![1.0; 65520], 65520, DType::F16);
    assert_eq!(overflow, [f64::INFINITY]);
    let n = 17 << 20;
    assert_eq!(plain(Op::Sum, &vec![1.0; n], n, DType::F32), [17825792.0]);
}

#[test]
fn p05_small_eps_and_constant_rows() {
    for dtype in DTYPES {
        let rms = |x: &[f64], eps| plain(Op::RmsNorm { eps }, x, 8, dtype);
        let layer = |x: &[f64], eps| plain(Op::LayerNorm { eps }, x, 8, dtype);
        assert_eq!(rms(&[0.0; 16], 1e-12), [0.0; 16]);
        assert_eq!(layer(&[0.0; 16], 1e-12), [0.0; 16]);
        assert_eq!(layer(&[3.0; 16], 1e-12), [0.0; 16]);
        let small = rms(&[2f64.powi(-12); 8], 1e-6);
        assert!((small[0] - 0.23717457).abs() <= ulp(0.237, dtype).max(1e-8));
    }
    // No multiple of these is exact, whatever the order of summation.
    for n in [3, 7, 100, 1000, 5003] {
        for value in [0.1, 1234.567, -3e7, 1e-12] {
            let inputs = Inputs::new(&vec![value; n], n, DType::F32);
            let got = to_f64(&inputs.run(Op::LayerNorm { eps: 1e-12 }));
            assert_eq!(got, to_f64(&inputs.bias), "{n} times {value}");
        }
    }
}

#[test]
fn p06_log_softmax_of_large_logits() {
    let got = plain(Op::LogSoftmax, &[1e8, 1e8], 2, DType::F32);
    assert!(got.iter().all(|v| (v + 0.69314718).abs() < 1e-7));
    let got = plain(Op::LogSoftmax, &[-1e7, -1e7, -1e7 + 1.0], 3, DType::F32);
    for (got, want) in got.iter().zip([-1.55144471, -1.55144471, -0.55144471]) {
        assert!((got - want).abs() < 2e-7, "{got}");
    }
}

#[test]
fn v01_layer_norm_of_values_far_from_zero() {
    let op = Op::LayerNorm { eps: 1e-5 };
    for (m, want) in [
        (0.0, -1.3416408),
        (100.0, -1.3415277),
        (1000.0, -1.3415078),
        (10000.0, -1.3313334),
    ] {
        let x: Vec<f64> = (0..16).map(|i| m + i as f64 * 1e-3).collect();
        let got = plain(op, &x, 16, DType::F32)[0];
        assert!((got - want).abs() < 3e-7, "{m}: {got}");
    }
    for m in [40000.0, 80000.0] {
        let got = plain(op, &[m, m + 1.0, m + 2.0, m + 3.0], 4, DType::F32);
        for (got, want) in got
            .iter()
            .zip([-1.3416354, -0.4472118, 0.4472118, 1.3416354])
        {
            assert!((got - want).abs() < 2e-7, "{got}");
        }
    }
    assert_eq!(plain(op, &[1234.0; 256], 256, DType::F32), [0.0; 256]);
}

#[test]
fn v02_norms_of_huge_and_tiny_values() {
    let layer = [-1.3416408, -0.4472136, 0.4472136, 1.3416408];
    let rms = [0.36514838, 0.73029675, 1.0954451, 1.4605935];
    let check = |op, x: &[f64], want: &[f64], dtype| {
        let got = plain(op, x, x.len(), dtype);
        for (got, want) in got.iter().zip(want) {
            let tolerance = 3e-7f64.max(ulp(*want, dtype));
            assert!(
                (got - want).abs() <= tolerance,
                "{op:?} {x:?} {dtype:?}: {got}"
            );
        }
    };
    let huge = |scale: f64| [1.0, 2.0, 3.0, 4.0].map(|v| v * scale);
    for (scale, dtype) in [
        (1e30, DType::F32),
        (8e37, DType::F32),
        (1e30, DType::BF16),
        (1e200, DType::F64),
        (4e307, DType::F64),
    ] {
        if dtype != DType::BF16 {
            check(Op::LayerNorm { eps: 1e-5 }, &huge(scale), &layer, dtype);
        }
        check(Op::RmsNorm { eps: 1e-5 }, &huge(scale), &rms, dtype);
    }
    // Without eps to drown them.
    for (scale, dtype) in [
        (1e-30, DType::F32),
        (2f64.powi(-140), DType::F32),
        (1e-200, DType::F64),
        // 2^-1060, which `powi` underflows on its way to.
        (f64::from_bits(1 << 14), DType::F64),
    ] {
        check(Op::LayerNorm { eps: 0.0 }, &huge(scale), &layer, dtype);
        check(Op::RmsNorm { eps: 0.0 }, &huge(scale), &rms, dtype);
    }
    let mixed = [1e25, -1e25, 2e25, 0.0];
    let want = [0.81649658, -0.81649658, 1.6329932, 0.0];
    check(Op::RmsNorm { eps: 1e-6 }, &mixed, &want, DType::F32);
}

#[test]
fn norms_of_rows_with_infinities_and_nan() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for dtype in DTYPES {
        let rms = plain(Op::RmsNorm { eps: 1e-6 }, &[inf, 1.0, -2.0], 3, dtype);
        assert!(rms[0].is_nan() && rms[1] == 0.0 && rms[2] == 0.0, "{rms:?}");
        for special in [inf, -inf, nan] {
            let layer = plain(Op::LayerNorm { eps: 1e-6 }, &[special, 1.0, -2.0], 3, dtype);
            assert!(layer.iter().all(|v| v.is_nan()), "{layer:?}");
        }
        let rms = plain(Op::RmsNorm { eps: 1e-6 }, &[nan, 1.0, -2.0], 3, dtype);
        assert!(rms.iter().all(|v| v.is_nan()), "{rms:?}");
    }
}

#[test]
fn s01_softmax_of_nan_and_infinities_at_any_length() {
    let inf = f64::INFINITY;
    for n in [1, 2, 31, 32, 33, 127, 128, 1024, 1025, 8192, 70000] {
        for dtype in [DType::BF16, DType::F32, DType::F64] {
            for op in [Op::Softmax, Op::LogSoftmax] {
                let all_nan = |x: &[f64]| plain(op, x, n, dtype).iter().all(|v| v.is_nan());
                assert!(all_nan(&vec![-inf; n]), "{op:?} {n} -inf");
                for at in [0, n / 2, n - 1] {
                    for special in [inf, f64::NAN] {
                        let mut x: Vec<f64> = (0..n).map(h).collect();
                        x[at] = special;
                        assert!(all_nan(&x), "{op:?} {dtype:?} {n}: {special} at {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn s03_logsumexp_of_infinities() {
    let inf = f64::INFINITY;
    for dtype in DTYPES {
        let lse = |x: &[f64]| plain(Op::LogSumExp, x, x.len(), dtype)[0];
        assert_eq!(lse(&[inf, 2.0, 3.0]), inf);
        assert_eq!(lse(&[-inf, -inf]), -inf);
        assert_eq!(lse(&[100.0, 0.0]), 100.0);
        assert_eq!(lse(&[3.25]), 3.25);
        assert!(lse(&[inf, f64::NAN]).is_nan());
        assert!((lse(&[-100.0, -100.0]) + 99.3068528).abs() <= ulp(99.3, dtype).max(1e-7));
    }
}

#[test]
fn s04_extrema_start_from_true_infinities() {
    for n in [1, 10, 100_000] {
        for dtype in DTYPES {
            for value in [f64::NEG_INFINITY, f64::INFINITY] {
                assert_eq!(plain(Op::Max, &vec![value; n], n, dtype), [value]);
                assert_eq!(plain(Op::ArgMax, &vec![value; n], n, dtype), [0.0]);
            }
        }
    }
}

#[test]
fn s05_nan_wins_and_the_first_is_found() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for dtype in DTYPES {
        let arg = |x: &[f64]| plain(Op::ArgMax, x, x.len(), dtype)[0];
        assert!(plain(Op::Max, &[3.0, nan, 1.0, 5.0], 4, dtype)[0].is_nan());
        assert_eq!(arg(&[3.0, nan, 1.0, 5.0]), 1.0);
        assert_eq!(arg(&[inf, nan, -inf]), 1.0);
        for n in [400, 4000, 100_000] {
            let mut x: Vec<f64> = (0..n).map(h).collect();
            x[77] = nan;
            assert_eq!(arg(&x), 77.0);
            x[0] = nan;
            assert_eq!(arg(&x), 0.0);
        }
        let mut x: Vec<f64> = (0..1027).map(h).collect();
        x[1026] = nan;
        assert_eq!(arg(&x), 1026.0);
    }
}

#[test]
fn s06_rows_that_begin_with_minus_infinity() {
    let inf = f64::INFINITY;
    let mut x = vec![-inf; 8192];
    for (k, v) in x.iter_mut().enumerate().skip(6144) {
        *v = h(k);
    }
    let got = plain(Op::Softmax, &x, 8192, DType::F32);
    assert!(got[..6144].iter().all(|v| *v == 0.0));
    assert!((got.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    let mut x = vec![-inf; 70000];
    x[69999] = 1.5;
    let got = plain(Op::Softmax, &x, 70000, DType::F32);
    assert!(got[..69999].iter().all(|v| *v == 0.0) && got[69999] == 1.0);
    assert_eq!(plain(Op::LogSumExp, &x, 70000, DType::F32), [1.5]);
    let log = plain(Op::LogSoftmax, &x, 70000, DType::F32);
    assert!(log[..69999].iter().all(|v| *v == -inf) && log[69999] == 0.0);
}

#[test]
fn t01_ties_go_to_the_lowest_index() {
    for dtype in DTYPES {
        let arg = |x: &[f64]| plain(Op::ArgMax, x, x.len(), dtype)[0];
        assert_eq!(arg(&[1.0; 4]), 0.0);
        assert_eq!(arg(&[0.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(arg(&[1.0, 5.0, 5.0, 3.0]), 1.0);
        assert_eq!(arg(&[2.0; 16]), 0.0);
        assert_eq!(arg(&[-0.0, 0.0]), 0.0);
        assert_eq!(arg(&[0.0, -0.0]), 0.0);
    }
    let mut x = vec![0.0; 1_000_000];
    for at in [5, 500_001, 999_999] {
        x[at] = 7.0;
    }
    assert_eq!(plain(Op::ArgMax, &x, 1_000_000, DType::F32), [5.0]);
}

#[test]
fn t02_rows_of_one_element() {
    let x: Vec<f64> = (0..32768).map(h).collect();
    for dtype in DTYPES {
        for op in [Op::Sum, Op::Max, Op::LogSumExp] {
            assert_eq!(plain(op, &x, 1, dtype), x, "{op:?} {dtype:?}");
        }
        assert_eq!(plain(Op::ArgMax, &x, 1, dtype), vec![0.0; x.len()]);
        assert_eq!(plain(Op::Softmax, &x, 1, dtype), vec![1.0; x.len()]);
        assert_eq!(plain(Op::LogSoftmax, &x, 1, dtype), vec![0.0; x.len()]);
    }
    let zero = bits(&Inputs::plain(&[-0.0], 1, DType::F32).run(Op::Sum));
    assert_eq!(zero, [(-0.0f32).to_bits() as u64], "a sum of -0.0 is -0.0");
}
