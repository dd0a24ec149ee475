//! Softmax with options, its gradients, and the gradients of the plain ones: against f64, against differences,
//! and bit for bit over tiers, threads and batches.

use candle_rowwise::ops::{log_softmax, log_softmax_with, softmax, softmax_with, SoftmaxOptions};
use candle_rowwise::plan::Tier;

use crate::common::ops::{forced, DTYPES};
use crate::common::reference::Total;
use crate::common::*;
use crate::errors::assert_error;

/// Which dims of x (batch, head, query, key) a tensor beside it has; the others are 1.
pub type Dims4 = [bool; 4];

#[derive(Debug, Clone, Copy)]
pub enum Mask {
    None,
    Kept(Dims4),
    Added(Dims4),
    AddedF32(Dims4),
}

/// Options to build.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub scale: f64,
    pub temperatures: Option<Dims4>,
    pub soft_cap: Option<f64>,
    pub mask: Mask,
    pub causal: bool,
    pub sinks: bool,
}

const PLAIN: Case = Case {
    scale: 1.,
    temperatures: None,
    soft_cap: None,
    mask: Mask::None,
    causal: false,
    sinks: false,
};
const ALL_DIMS: Dims4 = [true; 4];

fn cases() -> Vec<Case> {
    let with = |mask| Case { mask, ..PLAIN };
    let full = Case {
        scale: 0.7,
        temperatures: Some([true, false, true, false]),
        soft_cap: Some(3.),
        mask: Mask::Added([false, true, true, true]),
        causal: true,
        sinks: true,
    };
    vec![
        PLAIN,
        Case {
            scale: 0.5,
            ..PLAIN
        },
        Case {
            temperatures: Some([false, true, true, false]),
            ..PLAIN
        },
        Case {
            soft_cap: Some(2.),
            ..PLAIN
        },
        Case {
            causal: true,
            ..PLAIN
        },
        Case {
            sinks: true,
            ..PLAIN
        },
        with(Mask::Kept(ALL_DIMS)),
        with(Mask::Kept([false, false, true, true])),
        with(Mask::Kept([true, false, false, true])),
        with(Mask::Added(ALL_DIMS)),
        with(Mask::Added([false, true, true, true])),
        with(Mask::AddedF32([true, false, true, false])),
        full,
        Case {
            mask: Mask::Kept([true, false, true, true]),
            ..full
        },
        Case {
            mask: Mask::AddedF32([false, false, false, true]),
            causal: false,
            ..full
        },
    ]
}

/// The tensors of a case.
#[derive(Debug, Clone)]
pub struct Beside {
    pub mask: Option<Tensor>,
    pub temperatures: Option<Tensor>,
    pub sinks: Option<Tensor>,
}

impl Beside {
    pub fn new(case: &Case, shape: [usize; 4], dtype: DType, device: &Device) -> Result<Self> {
        let dims_of = |keep: Dims4| -> Vec<usize> {
            let dims = shape.iter().zip(keep);
            dims.map(|(len, keep)| if keep { *len } else { 1 })
                .collect()
        };
        let n = |dims: &[usize]| dims.iter().product::<usize>();
        let added = |keep, dtype| -> Result<Tensor> {
            let dims = dims_of(keep);
            let mut v = normal(51, n(&dims));
            v.iter_mut()
                .skip(3)
                .step_by(7)
                .for_each(|v| *v = f64::NEG_INFINITY);
            tensor(&v, dims, dtype, device)
        };
        let mask = match case.mask {
            Mask::None => None,
            Mask::Added(keep) => Some(added(keep, dtype)?),
            Mask::AddedF32(keep) => Some(added(keep, DType::F32)?),
            Mask::Kept(keep) => {
                let dims = dims_of(keep);
                let kept: Vec<u8> = (0..n(&dims)).map(|k| ((37 * k) % 101 % 3) as u8).collect();
                Some(Tensor::from_vec(kept, dims, device)?)
            }
        };
        let temperatures = case.temperatures.map(|keep| {
            let dims = dims_of(keep);
            let v: Vec<f64> = normal(52, n(&dims)).iter().map(|v| 1. + v.abs()).collect();
            tensor(&v, dims, dtype, device)
        });
        let sinks = case.sinks.then(|| {
            let dims = dims_of([false, true, false, false]);
            tensor(&normal(53, n(&dims)), dims, dtype, device)
        });
        Ok(Beside {
            mask,
            temperatures: temperatures.transpose()?,
            sinks: sinks.transpose()?,
        })
    }

    fn run(&self, case: &Case, log: bool, x: &Tensor) -> candle_core::Result<Tensor> {
        self.run_over(case, log, x, 3)
    }

    /// The same with the keys in dim `dim`, in which the tensors beside must lie as well.
    pub fn run_over(
        &self,
        case: &Case,
        log: bool,
        x: &Tensor,
        dim: usize,
    ) -> candle_core::Result<Tensor> {
        let mut options = SoftmaxOptions::new().scale(case.scale).causal(case.causal);
        if let Some(cap) = case.soft_cap {
            options = options.soft_cap(cap);
        }
        if let Some(mask) = &self.mask {
            options = options.mask(mask);
        }
        if let Some(t) = &self.temperatures {
            options = options.temperatures(t);
        }
        if let Some(sinks) = &self.sinks {
            options = options.sinks(sinks);
        }
        match log {
            false => softmax_with(x, dim, &options),
            true => log_softmax_with(x, dim, &options),
        }
    }

    /// The tensors that may have a gradient.
    fn floats(&mut self) -> Vec<&mut Tensor> {
        let mask = self.mask.as_mut().filter(|mask| mask.dtype() != DType::U8);
        [mask, self.temperatures.as_mut(), self.sinks.as_mut()]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// The results in f64, with bounds; and dx for the gradient `g`, from which hidden keys are left out. A row
/// whose logits have a NaN or +inf is NaN throughout.
pub fn expected(
    case: &Case,
    beside: &Beside,
    log: bool,
    x: &Tensor,
    g: &[f64],
) -> Result<(Vec<Expect>, Vec<Expect>)> {
    let [.., queries, keys] = *x.dims() else {
        panic!("four dims")
    };
    let full = |t: &Option<Tensor>| -> Result<Option<Vec<f64>>> {
        let full = t.as_ref().map(|t| values(&t.broadcast_as(x.shape())?));
        full.transpose()
    };
    let (mask, temperatures, sinks) = (
        full(&beside.mask)?,
        full(&beside.temperatures)?,
        full(&beside.sinks)?,
    );
    let is_kept = matches!(case.mask, Mask::Kept(_));
    let hides = case.causal || mask.is_some();
    let u = float::unit(float::wide(x.dtype()));
    let (mut y, mut dx) = (Vec::new(), Vec::new());
    for (r, row) in values(x)?.chunks(keys).enumerate() {
        let at = r * keys;
        let factor = case.scale / temperatures.as_ref().map_or(1., |t| t[at]);
        let mut size = 1f64;
        let (mut z, mut slope) = (vec![0.; keys], vec![factor; keys]);
        for j in 0..keys {
            z[j] = row[j] * factor;
            if z[j].is_finite() {
                size = size.max(z[j].abs());
            }
            if let Some(cap) = case.soft_cap {
                let t = (z[j] / cap).tanh();
                z[j] = cap * t;
                slope[j] = factor * (1. - t * t);
            }
            match &mask {
                Some(mask) if is_kept && mask[at + j] == 0. => z[j] = f64::NEG_INFINITY,
                Some(mask) if !is_kept => z[j] += mask[at + j],
                _ => {}
            }
            if case.causal && j + queries > r % queries + keys {
                z[j] = f64::NEG_INFINITY;
            }
            if z[j].is_finite() {
                size = size.max(z[j].abs());
            }
        }
        let sink = sinks.as_ref().map(|s| s[at]);
        let max = z
            .iter()
            .copied()
            .chain(sink)
            .fold(f64::NEG_INFINITY, f64::max);
        let poisoned = z.iter().any(|z| z.is_nan() || *z == f64::INFINITY)
            || (max == f64::NEG_INFINITY && !hides);
        if poisoned {
            y.extend(vec![Expect::exactly(f64::NAN); keys]);
            dx.extend(vec![Expect::exactly(f64::NAN); keys]);
            continue;
        }
        let dead = max == f64::NEG_INFINITY && hides;
        let exponentials = z.iter().copied().chain(sink).map(|z| (z - max).exp());
        let sum = Total::of(exponentials).value();
        let p: Vec<f64> = z
            .iter()
            .map(|z| if dead { 0. } else { (z - max).exp() / sum })
            .collect();
        let hidden = |j: usize| hides && z[j] == f64::NEG_INFINITY;
        // Of a logit, absolute: relative to the exponential of it.
        let error = u * (24. + 16. * size + 2. * (keys as f64).log2());
        let weight = |j: usize| match (hidden(j), log) {
            (true, _) => 0.,
            (_, true) => g[at + j],
            (_, false) => g[at + j] * p[j],
        };
        let total = Total::of((0..keys).map(weight));
        let (total, magnitude) = (total.value(), total.magnitude);
        for j in 0..keys {
            let value = match (log, dead || hidden(j)) {
                (true, true) => f64::NEG_INFINITY,
                (true, false) => z[j] - max - sum.ln(),
                (false, _) => p[j],
            };
            let bound = match log {
                true => error * (1. + value.abs()),
                false => error * value,
            };
            let bound = if bound.is_finite() { bound } else { 0. };
            y.push(Expect { value, bound });
            let g = g[at + j];
            let (dz, bound) = match log {
                true => (g - p[j] * total, g.abs() + p[j] * magnitude),
                false => (p[j] * (g - total), p[j] * (g.abs() + magnitude)),
            };
            dx.push(match hidden(j) {
                true => Expect::exactly(0.),
                // 1 - t^2 is good to u, which is much of it where t is near 1.
                false => Expect {
                    value: dz * slope[j],
                    bound: bound * (2. * error * slope[j].abs() + 8. * u * factor.abs()),
                },
            });
        }
    }
    Ok((y, dx))
}

fn widths() -> &'static [usize] {
    match devices::is_host_run() {
        true => &[1, 2, 31, 33, 257, 1025],
        false => &[1, 2, 31, 33, 257, 1000, 1025, 5003],
    }
}

fn forward_and_dx(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for &keys in widths() {
            let shape = [2, 2, 3, keys];
            for (i, case) in cases().iter().enumerate() {
                if devices::is_host_run() && keys > 257 && i % 3 != 0 {
                    continue;
                }
                let beside = Beside::new(case, shape, dtype, device)?;
                let n = 12 * keys;
                let x = tensor(&normal(54 + i as u64, n), shape.as_slice(), dtype, device)?;
                let g = tensor(&normal(55, n), shape.as_slice(), dtype, device)?;
                for log in [false, true] {
                    let what = format!("{dtype:?} {keys} log: {log} {case:?}");
                    let (y, dx) = expected(case, &beside, log, &x, &values(&g)?)?;
                    let leaf = Var::from_tensor(&x)?;
                    let got = beside.run(case, log, leaf.as_tensor())?;
                    check(&what, &got, &y)?;
                    let grads = weigh(&got, &g)?.backward()?;
                    check(&format!("{what} dx"), of(&grads, &leaf), &dx)?;
                }
            }
        }
    }
    Ok(())
}

/// A loss whose gradient by y is g, where y is -inf as well.
fn weigh(y: &Tensor, g: &Tensor) -> Result<Tensor> {
    let finite = y.eq(f64::NEG_INFINITY)?;
    let y = finite.where_cond(&y.zeros_like()?, y)?;
    Ok((y * g)?.sum_all()?)
}

fn of<'a>(grads: &'a candle_core::backprop::GradStore, var: &Var) -> &'a Tensor {
    grads
        .get(var.as_tensor())
        .expect("no gradient for a tracked tensor")
}

/// Every gradient in f64, of the input and of what lies beside it, is what differences of the loss say.
fn central_differences(device: &Device) -> Result<()> {
    let keys = 5;
    let shape = [2, 2, 3, keys];
    for case in cases() {
        for log in [false, true] {
            let mut beside = Beside::new(&case, shape, DType::F64, device)?;
            if let Some(mask) = beside.mask.take() {
                // Differences of an f32 say nothing.
                let is_kept = mask.dtype() == DType::U8;
                beside.mask = Some(if is_kept {
                    mask
                } else {
                    mask.to_dtype(DType::F64)?
                });
            }
            let x = tensor(&normal(56, 12 * keys), shape.as_slice(), DType::F64, device)?;
            let g = tensor(&normal(57, 12 * keys), shape.as_slice(), DType::F64, device)?;
            let mut tensors = vec![x];
            tensors.extend(beside.floats().into_iter().map(|t| t.clone()));
            let loss = |tensors: &[Tensor]| -> Result<Tensor> {
                let mut beside = beside.clone();
                for (slot, t) in beside.floats().into_iter().zip(&tensors[1..]) {
                    *slot = t.clone();
                }
                weigh(&beside.run(&case, log, &tensors[0])?, &g)
            };
            let vars = tensors.iter().map(Var::from_tensor);
            let vars = vars.collect::<candle_core::Result<Vec<_>>>()?;
            let leaves: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
            let grads = loss(&leaves)?.backward()?;
            for (i, var) in vars.iter().enumerate() {
                let got = of(&grads, var);
                assert_eq!(got.shape(), tensors[i].shape());
                let v = values(&tensors[i])?;
                let mut differences = vec![0.; v.len()];
                for (k, difference) in differences.iter_mut().enumerate() {
                    let h = 1e-5;
                    let moved = |by: f64| -> Result<f64> {
                        let mut v = v.clone();
                        v[k] += by;
                        let mut tensors = tensors.clone();
                        tensors[i] = tensor(&v, tensors[i].shape(), DType::F64, device)?;
                        Ok(loss(&tensors)?.to_scalar::<f64>()?)
                    };
                    *difference = (moved(h)? - moved(-h)?) / (2. * h);
                }
                let largest = differences.iter().fold(1e-3, |a: f64, b| a.max(b.abs()));
                let expected: Vec<Expect> = differences
                    .iter()
                    .map(|&value| Expect {
                        value,
                        bound: 1e-6 * largest,
                    })
                    .collect();
                check(&format!("argument {i} log: {log} {case:?}"), got, &expected)?;
            }
        }
    }
    Ok(())
}

/// Half types beside what is summed over many rows: as in f32, rounded once.
fn sums_are_wide(device: &Device) -> Result<()> {
    let case = Case {
        mask: Mask::Added([false, true, false, true]),
        temperatures: Some([false, true, false, false]),
        ..PLAIN
    };
    let sink = Case {
        sinks: true,
        temperatures: None,
        ..case
    };
    let rows = if devices::is_host_run() { 20 } else { 400 };
    let shape = [rows, 2, 3, 8];
    for case in [case, sink] {
        for dtype in [DType::BF16, DType::F16] {
            let beside = Beside::new(&case, shape, dtype, device)?;
            let x = tensor(&normal(58, rows * 48), shape.as_slice(), dtype, device)?;
            let g = tensor(&vec![1.5; rows * 48], shape.as_slice(), dtype, device)?;
            let gradients = |wide: bool| -> Result<Vec<Tensor>> {
                let to = |t: &Tensor| match wide {
                    true => t.to_dtype(DType::F64),
                    false => Ok(t.clone()),
                };
                let mut beside = beside.clone();
                let mut vars = Vec::new();
                for t in beside.floats() {
                    let var = Var::from_tensor(&to(t)?)?;
                    *t = var.as_tensor().clone();
                    vars.push(var);
                }
                let y = beside.run(&case, true, &to(&x)?)?;
                let grads = weigh(&y, &to(&g)?)?.backward()?;
                Ok(vars.iter().map(|var| of(&grads, var).clone()).collect())
            };
            let size = 1.5 * 8. * 3. * rows as f64;
            for (got, wide) in gradients(false)?.iter().zip(gradients(true)?) {
                let expected: Vec<Expect> = values(&wide)?
                    .iter()
                    .map(|&value| Expect {
                        value,
                        bound: size * 40. * float::unit(DType::F32),
                    })
                    .collect();
                check(&format!("{dtype:?} {case:?}"), got, &expected)?;
            }
        }
    }
    Ok(())
}

/// Mask, temperatures and sinks tracked at once, which candle's custom ops have no room for.
fn all_tracked(device: &Device) -> Result<()> {
    let case = cases()[12];
    let shape = [2, 2, 3, 9];
    let beside = Beside::new(&case, shape, DType::F64, device)?;
    let x = tensor(&normal(59, 108), shape.as_slice(), DType::F64, device)?;
    let g = tensor(&normal(60, 108), shape.as_slice(), DType::F64, device)?;
    let gradients = |tracked: &dyn Fn(usize) -> bool| -> Result<Vec<Option<Tensor>>> {
        let mut beside = beside.clone();
        let mut vars = Vec::new();
        for (i, t) in beside.floats().into_iter().enumerate() {
            let var = Var::from_tensor(t)?;
            if tracked(i) {
                *t = var.as_tensor().clone();
            }
            vars.push(var);
        }
        let grads = weigh(&beside.run(&case, false, &x)?, &g)?.backward()?;
        Ok(vars
            .iter()
            .map(|var| grads.get(var.as_tensor()).cloned())
            .collect())
    };
    let all = gradients(&|_| true)?;
    for i in 0..3 {
        let alone = gradients(&|j| i == j)?;
        for (j, (alone, all)) in alone.iter().zip(&all).enumerate() {
            assert_eq!(alone.is_some(), i == j);
            if let (Some(alone), Some(all)) = (alone, all) {
                assert_close(&format!("argument {i}"), alone, &values(all)?, 1e-11)?;
            }
        }
    }
    Ok(())
}

/// Transposed, cut out, over another dim, and a gradient of one broadcast value: as packed.
fn layouts(device: &Device) -> Result<()> {
    for case in cases() {
        for dtype in [DType::BF16, DType::F32] {
            for log in [false, true] {
                let what = format!("{dtype:?} log: {log} {case:?}");
                let shape = [2, 2, 5, 37];
                let beside = Beside::new(&case, shape, dtype, device)?;
                let flat = tensor(&normal(61, 2 * 2 * 5 * 37 + 1), 741, dtype, device)?;
                let offset = flat.narrow(0, 1, 740)?.reshape(shape.as_slice())?;
                let packed = flat.narrow(0, 1, 740)?.contiguous()?.copy()?;
                let packed = packed.reshape(shape.as_slice())?;
                let transposed = packed.transpose(1, 3)?.contiguous()?.transpose(1, 3)?;
                let gradient = |x: &Tensor, broadcast: bool| -> Result<(Tensor, Tensor)> {
                    let leaf = Var::from_tensor(x)?;
                    // A variable is packed: the view is made again.
                    let leaf_view = match x.is_contiguous() {
                        true => leaf.as_tensor().clone(),
                        false => leaf.transpose(1, 3)?.contiguous()?.transpose(1, 3)?,
                    };
                    let y = beside.run(&case, log, &leaf_view)?;
                    let grads = match (broadcast, log) {
                        (true, false) => y.sum_all()?.backward()?,
                        _ => weigh(&y, &y.ones_like()?)?.backward()?,
                    };
                    Ok((y, of(&grads, &leaf).clone()))
                };
                let (y, dx) = gradient(&packed, false)?;
                for x in [&packed, &offset, &transposed] {
                    for broadcast in [false, true] {
                        let (got, got_dx) = gradient(x, broadcast)?;
                        assert_bits_eq(&what, &got, &y)?;
                        assert_bits_eq(&format!("{what} dx"), &got_dx, &dx)?;
                    }
                }
            }
        }
    }
    // Over a dim that is not the last, the keys are there and the queries last.
    let x = tensor(&normal(62, 2 * 7 * 5), (2, 7, 5), DType::F32, device)?;
    let options = SoftmaxOptions::new().causal(true).scale(0.3);
    let got = softmax_with(&x, 1, &options)?;
    assert!(got.is_contiguous());
    let moved = softmax_with(&x.transpose(1, 2)?.contiguous()?, 2, &options)?;
    assert_bits_eq("dim 1", &got, &moved.transpose(1, 2)?.contiguous()?)
}

/// With the defaults, and with a mask that hides nothing, within rounding what the plain ones are.
fn defaults_change_nothing(device: &Device) -> Result<()> {
    let x = tensor(&normal(63, 4 * 100), (4, 100), DType::F64, device)?;
    let ones = Tensor::ones(100, DType::U8, device)?;
    for options in [SoftmaxOptions::new(), SoftmaxOptions::new().mask(&ones)] {
        let y = values(&softmax(&x, 1)?)?;
        assert_close("softmax", &softmax_with(&x, 1, &options)?, &y, 1e-14)?;
        let y = values(&log_softmax(&x, 1)?)?;
        assert_close(
            "log_softmax",
            &log_softmax_with(&x, 1, &options)?,
            &y,
            1e-14,
        )?;
    }
    Ok(())
}

/// R3: of hidden keys nothing is read, rows of them are zeros forward and backward, and with a sink as well;
/// without a mask, a row of -inf is NaN.
fn hidden_keys(device: &Device) -> Result<()> {
    let inf = f64::INFINITY;
    for dtype in DTYPES {
        for keys in [3, 40, 700] {
            let mut v = normal(64, 2 * keys);
            v[1] = f64::NAN;
            v[keys..].fill(f64::NAN);
            let x = Var::from_tensor(&tensor(&v, (2, keys), dtype, device)?)?;
            let mut kept = vec![1u8; 2 * keys];
            kept[1] = 0;
            kept[keys..].fill(0);
            let mask = Tensor::from_vec(kept, (2, keys), device)?;
            let sinks = tensor(&[0.5, -0.5], (2, 1), dtype, device)?;
            let options = SoftmaxOptions::new().mask(&mask);
            for options in [options, options.sinks(&sinks)] {
                let y = softmax_with(x.as_tensor(), 1, &options)?;
                let got = values(&y)?;
                assert!(got.iter().all(|v| v.is_finite()) && got[1] == 0., "{got:?}");
                assert!(
                    got[0] > 0. && got[keys..].iter().all(|v| *v == 0.),
                    "{got:?}"
                );
                let g = tensor(&normal(65, 2 * keys), (2, keys), dtype, device)?;
                let dx = values(of(&(&y * &g)?.sum_all()?.backward()?, &x))?;
                assert!(dx.iter().all(|v| v.is_finite()) && dx[0] != 0., "{dx:?}");
                assert!(dx[1] == 0. && dx[keys..].iter().all(|v| *v == 0.), "{dx:?}");
                let y = log_softmax_with(x.as_tensor(), 1, &options)?;
                let got = values(&y)?;
                assert!(
                    got[1] == -inf && got[keys..].iter().all(|v| *v == -inf),
                    "{got:?}"
                );
                let dx = values(of(&weigh(&y, &g)?.backward()?, &x))?;
                assert!(dx.iter().all(|v| v.is_finite()) && dx[0] != 0., "{dx:?}");
                assert!(dx[1] == 0. && dx[keys..].iter().all(|v| *v == 0.), "{dx:?}");
            }
            let row = tensor(&vec![-inf; keys], (1, keys), dtype, device)?;
            let scaled = SoftmaxOptions::new().scale(0.5);
            let nan = vec![f64::NAN; keys];
            assert_same("no mask", &softmax_with(&row, 1, &scaled)?, &nan)?;
            assert_same("no mask", &log_softmax_with(&row, 1, &scaled)?, &nan)?;
        }
    }
    // More queries than keys: the first ones see none.
    let x = tensor(
        &[f64::NAN, f64::NAN, 1., f64::NAN, 1., 1.],
        (3, 2),
        DType::F32,
        device,
    )?;
    let y = softmax_with(&x, 1, &SoftmaxOptions::new().causal(true))?;
    assert_same("causal", &y, &[0., 0., 1., 0., 0.5, 0.5])
}

/// Rows have their bits on every tier (on the CPU: with every number of threads), and alone.
fn one_answer(device: &Device) -> Result<()> {
    let on_kernels = devices::is_host_run() || device.is_cuda();
    let widths: &[usize] = match (devices::is_host_run(), on_kernels) {
        (true, _) => &[5, 257, 2500, 9000],
        (_, true) => &[1, 5, 31, 257, 2500, 9000, 40_000, 300_000],
        _ => &[5, 257, 9000, 200_000],
    };
    let everything = cases()[12];
    for dtype in [DType::BF16, DType::F32] {
        for &keys in widths {
            let shape = [1, 1, 3, keys];
            let beside = Beside::new(&everything, shape, dtype, device)?;
            let x = tensor(&normal(66, 3 * keys), shape.as_slice(), dtype, device)?;
            let g = tensor(&normal(67, 3 * keys), shape.as_slice(), dtype, device)?;
            type Function<'a> = &'a (dyn Fn(&Tensor) -> candle_core::Result<Tensor> + Sync);
            let functions: [Function; 4] = [
                &|x| softmax(x, D::Minus1),
                &|x| log_softmax(x, D::Minus1),
                &|x| beside.run(&everything, false, x),
                &|x| beside.run(&everything, true, x),
            ];
            for (i, function) in functions.into_iter().enumerate() {
                let what = format!("function {i} {dtype:?} {keys}");
                let both = |x: &Tensor, g: &Tensor| -> Result<[Tensor; 2]> {
                    let leaf = Var::from_tensor(x)?;
                    let y = function(leaf.as_tensor())?;
                    let dx = of(&weigh(&y, g)?.backward()?, &leaf).clone();
                    Ok([y, dx])
                };
                let chosen = both(&x, &g)?;
                let compare = |what: &str, got: [Tensor; 2]| -> Result<()> {
                    assert_bits_eq(what, &got[0], &chosen[0])?;
                    assert_bits_eq(&format!("{what} dx"), &got[1], &chosen[1])
                };
                if on_kernels {
                    for tier in Tier::ALL {
                        if let Some(got) = forced(tier, || both(&x, &g))? {
                            compare(&format!("{what} {tier:?}"), got)?;
                        }
                    }
                } else {
                    for threads in [1, 2, 16] {
                        let pool = rayon::ThreadPoolBuilder::new()
                            .num_threads(threads)
                            .build()?;
                        compare(
                            &format!("{what} {threads} threads"),
                            pool.install(|| both(&x, &g))?,
                        )?;
                    }
                }
                if i < 2 {
                    for q in 0..3 {
                        let row = |t: &Tensor| t.narrow(2, q, 1)?.contiguous();
                        let got = both(&row(&x)?, &row(&g)?)?;
                        assert_bits_eq(&what, &got[0], &row(&chosen[0])?)?;
                        assert_bits_eq(&format!("{what} dx alone"), &got[1], &row(&chosen[1])?)?;
                    }
                }
            }
        }
    }
    Ok(())
}

fn wrong_options(device: &Device) -> Result<()> {
    let x = tensor(&normal(68, 24), (2, 3, 4), DType::F16, device)?;
    let plain = SoftmaxOptions::new();
    let with = |options: SoftmaxOptions| softmax_with(&x, 2, &options);
    let shape = "[2, 3, 4]";
    for cap in [0., -1., f64::NAN, f64::INFINITY, 1e-60] {
        assert_error(
            with(plain.soft_cap(cap)),
            &["softmax-with", "soft cap", shape],
        );
    }
    for t in [0., -1., f64::NAN, f64::INFINITY] {
        assert_error(
            with(plain.temperature(t)),
            &["softmax-with", "temperature", shape],
        );
    }
    assert_error(
        with(plain.scale(f64::NAN)),
        &["softmax-with", "scale", shape],
    );
    let narrow = tensor(&[0.; 6], (2, 3), DType::F16, device)?;
    assert_error(
        with(plain.mask(&narrow)),
        &["softmax-with", "mask", "[2, 3]", shape],
    );
    let wide = tensor(&[0.; 24], (1, 2, 3, 4), DType::F16, device)?;
    assert_error(with(plain.mask(&wide)), &["mask", "[1, 2, 3, 4]", shape]);
    let double = tensor(&[0.; 4], 4, DType::F64, device)?;
    assert_error(with(plain.mask(&double)), &["mask", "F64", shape]);
    let ints = Tensor::ones(4, DType::U32, device)?;
    assert_error(with(plain.mask(&ints)), &["mask", "U32", shape]);
    let row = tensor(&[1.; 4], 4, DType::F16, device)?;
    assert_error(with(plain.sinks(&row)), &["sinks", "[4]", "[2, 3, 1]"]);
    assert_error(
        with(plain.temperatures(&row)),
        &["temperature", "[4]", "[2, 3, 1]"],
    );
    let bytes = Tensor::ones(1, DType::U8, device)?;
    assert_error(with(plain.sinks(&bytes)), &["sinks", "U8", shape]);
    assert_error(
        softmax_with(&x, 3, &plain),
        &["softmax-with", "dim 3", shape],
    );
    assert_error(
        log_softmax_with(&ints, 0, &plain),
        &["log-softmax-with", "U32", "[4]"],
    );
    // Without elements there is nothing to do, forward or backward.
    let empty = Var::from_tensor(&Tensor::zeros((2, 0, 4), DType::F32, device)?)?;
    let y = softmax_with(empty.as_tensor(), 2, &plain.causal(true).mask(&bytes))?;
    assert_eq!(y.dims(), [2, 0, 4]);
    assert_eq!(of(&y.sum_all()?.backward()?, &empty).dims(), [2, 0, 4]);
    Ok(())
}

on_devices! {
    forward_and_dx: forward_and_dx_cpu, forward_and_dx_cuda;
    central_differences: central_differences_cpu, central_differences_cuda;
    sums_are_wide: sums_are_wide_cpu, sums_are_wide_cuda;
    all_tracked: all_tracked_cpu, all_tracked_cuda;
    layouts: layouts_cpu, layouts_cuda;
    defaults_change_nothing: defaults_change_nothing_cpu, defaults_change_nothing_cuda;
    hidden_keys: hidden_keys_cpu, hidden_keys_cuda;
    one_answer: one_answer_cpu, one_answer_cuda;
    wrong_options: wrong_options_cpu, wrong_options_cuda;
}

/// Composed gradients are those of the kernels.
#[test]
fn composed_gradients() -> Result<()> {
    composed::run_again(&["softmax::central_differences_cpu"])
}
