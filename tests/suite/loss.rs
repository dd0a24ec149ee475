//! Cross-entropy: every option in every dtype against the f64 formula, its gradient against differences
//! of the loss and against a composed form, every tier, and the cases that name it.

use candle_core::IndexOp;
use candle_rowwise::nn;
use candle_rowwise::ops::{self, CrossEntropyOptions, Reduction};
use candle_rowwise::plan::Tier;

use crate::common::data::h_values;
use crate::common::ops::{forced, DTYPES};
use crate::common::reference::Total;
use crate::common::*;
use crate::errors::assert_error;

const SIZES: [usize; 8] = [1, 2, 31, 33, 257, 1000, 1025, 5003];

/// The options of a test, with what a reference needs of them.
#[derive(Clone, Default)]
pub struct Setup {
    pub ignore: Option<i64>,
    pub smoothing: f64,
    pub weights: Option<Vec<f64>>,
    pub z_loss: f64,
    pub cap: Option<f64>,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "(ignore {:?}, smoothing {}, weights: {}, z-loss {}, cap {:?})",
            self.ignore,
            self.smoothing,
            self.weights.is_some(),
            self.z_loss,
            self.cap
        )
    }
}

impl Setup {
    /// One by one, and all at once.
    fn all(classes: usize) -> Vec<Setup> {
        let weights: Vec<f64> = (0..classes).map(|j| 0.5 + (j % 4) as f64 / 2.).collect();
        let plain = Setup::default();
        vec![
            plain.clone(),
            Setup {
                ignore: Some(0),
                ..plain.clone()
            },
            Setup {
                smoothing: 0.1,
                ..plain.clone()
            },
            Setup {
                weights: Some(weights.clone()),
                ..plain.clone()
            },
            Setup {
                z_loss: 0.01,
                ..plain.clone()
            },
            Setup {
                cap: Some(3.),
                ..plain
            },
            Setup {
                ignore: Some(-100),
                smoothing: 0.2,
                weights: Some(weights),
                z_loss: 0.001,
                cap: Some(5.),
            },
        ]
    }

    fn weight(&self, class: usize) -> f64 {
        self.weights.as_ref().map_or(1., |weights| weights[class])
    }

    /// The class of a target that counts.
    pub fn class(&self, target: i64) -> Option<usize> {
        usize::try_from(target)
            .ok()
            .filter(|_| self.ignore != Some(target))
    }

    /// The loss of a row, by the formula.
    fn loss(&self, x: &[f64], target: i64) -> f64 {
        let Some(t) = self.class(target) else {
            return 0.;
        };
        let z: Vec<f64> = x
            .iter()
            .map(|x| self.cap.map_or(*x, |cap| cap * (x / cap).tanh()))
            .collect();
        let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !max.is_finite() || z.iter().any(|z| z.is_nan()) {
            return f64::NAN;
        }
        let log_sum = Total::of(z.iter().map(|z| (z - max).exp())).value().ln();
        // A class of no weight takes no part, be it as far away as can be.
        let distance = |c: usize| match self.weight(c) == 0. {
            true => 0.,
            false => (max - z[c]) + log_sum,
        };
        let mut loss = (1. - self.smoothing) * self.weight(t) * distance(t);
        if self.smoothing > 0. {
            let all = Total::of((0..x.len()).map(|c| self.weight(c) * distance(c)));
            loss += self.smoothing / x.len() as f64 * all.value();
        }
        loss + self.z_loss * (max + log_sum).powi(2)
    }

    /// The gradient of a row, by the formula.
    fn gradient(&self, x: &[f64], target: i64) -> Vec<f64> {
        let Some(t) = self.class(target) else {
            return vec![0.; x.len()];
        };
        let bent: Vec<f64> = x
            .iter()
            .map(|x| self.cap.map_or(0., |cap| (x / cap).tanh()))
            .collect();
        let z: Vec<f64> = x
            .iter()
            .zip(&bent)
            .map(|(x, bent)| self.cap.map_or(*x, |cap| cap * bent))
            .collect();
        let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = Total::of(z.iter().map(|z| (z - max).exp())).value();
        let hot = (1. - self.smoothing) * self.weight(t);
        let smooth = self.smoothing / x.len() as f64;
        let total: f64 = (0..x.len()).map(|c| self.weight(c)).sum();
        let of_p = hot + smooth * total + 2. * self.z_loss * (max + sum.ln());
        let element = |j: usize| {
            let at_target = if j == t { hot } else { 0. };
            let dz = of_p * (z[j] - max).exp() / sum - smooth * self.weight(j) - at_target;
            dz * (1. - bent[j] * bent[j])
        };
        (0..x.len()).map(element).collect()
    }

    /// The sum of the weights of the rows that count.
    pub fn divisor(&self, targets: &[i64]) -> f64 {
        let weight = |t: &i64| self.class(*t).map_or(0., |class| self.weight(class));
        targets.iter().map(weight).sum()
    }

    /// Calls with these options.
    pub fn call<R>(
        &self,
        logits: &Tensor,
        reduction: Reduction,
        f: impl FnOnce(&CrossEntropyOptions) -> candle_core::Result<R>,
    ) -> Result<R> {
        let wide = float::wide(logits.dtype());
        let weights = match &self.weights {
            Some(weights) => Some(tensor(weights, weights.len(), wide, logits.device())?),
            None => None,
        };
        let mut options = CrossEntropyOptions::default()
            .label_smoothing(self.smoothing)
            .z_loss(self.z_loss)
            .reduction(reduction);
        if let Some(ignore) = self.ignore {
            options = options.ignore_index(ignore);
        }
        if let Some(cap) = self.cap {
            options = options.soft_cap(cap);
        }
        if let Some(weights) = &weights {
            options = options.class_weights(weights);
        }
        Ok(f(&options)?)
    }

    /// How far the loss of a row may be off, before it is rounded: some units of the dtype that is
    /// computed in for each number that it is made of, and for the depth of its sums.
    fn loss_bound(&self, x: &[f64], wide: DType) -> f64 {
        let largest = largest(x);
        let largest = self.cap.map_or(largest, |cap| largest.min(cap).max(1.));
        let weight = (0..x.len()).map(|c| self.weight(c)).fold(1., f64::max);
        let depth = 16. + 2. * (x.len() as f64).log2();
        let lse = largest + (x.len() as f64).ln();
        depth * float::unit(wide) * (weight * 2. * lse + self.z_loss * lse * lse)
    }

    /// The same of an element of the gradient.
    fn gradient_bound(&self, x: &[f64], wide: DType) -> f64 {
        let largest = largest(x);
        let weight = (0..x.len()).map(|c| self.weight(c)).fold(1., f64::max);
        let lse = largest + (x.len() as f64).ln();
        let depth = 16. + 2. * (x.len() as f64).log2() + 4. * largest;
        depth * float::unit(wide) * (2. * weight + 2. * self.z_loss * lse)
    }
}

/// The largest magnitude that counts, at least 1.
fn largest(x: &[f64]) -> f64 {
    let finite = x.iter().filter(|x| x.is_finite());
    finite.fold(1., |a, x| a.max(x.abs()))
}

fn targets(rows: usize, classes: usize, setup: &Setup) -> Vec<i64> {
    (0..rows)
        .map(|row| match row % 5 {
            3 if setup.ignore.is_some() => setup.ignore.unwrap_or(0),
            _ => ((row * 7919 + 3) % classes) as i64,
        })
        .collect()
}

pub fn index_tensor(targets: &[i64], dtype: DType, device: &Device) -> Result<Tensor> {
    Ok(Tensor::new(targets, device)?.to_dtype(dtype)?)
}

/// What is expected of all rows.
pub fn expect(setup: &Setup, x: &[f64], classes: usize, t: &[i64], wide: DType) -> Vec<Expect> {
    let rows = x.chunks(classes).zip(t);
    rows.map(|(x, t)| Expect {
        value: setup.loss(x, *t),
        bound: setup.loss_bound(x, wide),
    })
    .collect()
}

pub fn expect_gradient(
    setup: &Setup,
    x: &[f64],
    classes: usize,
    t: &[i64],
    g: &[f64],
    wide: DType,
) -> Vec<Expect> {
    let mut all = Vec::new();
    for ((x, t), g) in x.chunks(classes).zip(t).zip(g) {
        let ignored = setup.class(*t).is_none();
        let bound = setup.gradient_bound(x, wide) * g.abs();
        let value = |dx: f64| match ignored {
            true => Expect::exactly(0.),
            false => Expect {
                value: dx * g,
                bound,
            },
        };
        all.extend(setup.gradient(x, *t).into_iter().map(value));
    }
    all
}

/// Forward, backward and both at once, by every way that a loss is used.
fn every_option_and_dtype(device: &Device) -> Result<()> {
    let host = devices::is_host_run();
    for dtype in DTYPES {
        let wide = float::wide(dtype);
        for classes in SIZES {
            if host && classes > 1100 && dtype != DType::BF16 {
                continue;
            }
            let rows = if host || classes > 1100 { 4 } else { 11 };
            let x = normal(61, rows * classes);
            let x: Vec<f64> = x.iter().map(|x| 3. * x).collect();
            let logits = tensor(&x, (rows, classes), dtype, device)?;
            let x = values(&logits)?;
            for setup in Setup::all(classes) {
                let t = targets(rows, classes, &setup);
                // Unsigned targets where none is negative.
                let index = match t.iter().all(|t| *t >= 0) {
                    true => DType::U32,
                    false => DType::I64,
                };
                let index = index_tensor(&t, index, device)?;
                let what = format!("{dtype:?} {classes} {setup:?}");
                let expected = expect(&setup, &x, classes, &t, wide);

                let leaf = Var::from_tensor(&logits)?;
                let losses = setup.call(&logits, Reduction::None, |options| {
                    ops::cross_entropy(leaf.as_tensor(), &index, options)
                })?;
                assert_eq!(losses.dtype(), wide, "{what}");
                check(&format!("{what}: losses"), &losses, &expected)?;
                let g = normal(62, rows);
                let weighted = (&losses * tensor(&g, rows, wide, device)?)?.sum_all()?;
                let grads = weighted.backward()?;
                let dx = grads.get(leaf.as_tensor()).unwrap();
                assert_eq!(dx.dtype(), dtype, "{what}");
                let g = values(&tensor(&g, rows, wide, device)?)?;
                let expected_dx = expect_gradient(&setup, &x, classes, &t, &g, wide);
                check(&format!("{what}: dx"), dx, &expected_dx)?;

                let divisor = setup.divisor(&t);
                for reduction in [Reduction::Sum, Reduction::Mean] {
                    let scale = match reduction {
                        Reduction::Mean => 1. / divisor,
                        _ => 1.,
                    };
                    let loss = setup.call(&logits, reduction, |options| {
                        ops::cross_entropy(leaf.as_tensor(), &index, options)
                    })?;
                    let size: f64 = expected.iter().map(|e| e.value.abs() + e.bound).sum();
                    let bound: f64 = expected.iter().map(|e| e.bound).sum();
                    let total: f64 = expected.iter().map(|e| e.value).sum();
                    let expected_loss = Expect {
                        value: total * scale,
                        bound: (bound + 8. * float::unit(wide) * size) * scale,
                    };
                    check(&format!("{what}: {reduction:?}"), &loss, &[expected_loss])?;
                    let grads = loss.backward()?;
                    let dx = grads.get(leaf.as_tensor()).unwrap();
                    let g = vec![scale; rows];
                    let expected_dx = expect_gradient(&setup, &x, classes, &t, &g, wide);
                    check(&format!("{what}: {reduction:?} dx"), dx, &expected_dx)?;

                    let (both, dx) = setup.call(&logits, reduction, |options| {
                        ops::cross_entropy_with_gradient(&logits, &index, options)
                    })?;
                    assert_bits_eq(&format!("{what}: {reduction:?} at once"), &both, &loss)?;
                    check(&format!("{what}: {reduction:?} at once"), &dx, &expected_dx)?;
                }
            }
        }
    }
    Ok(())
}

/// The gradient of f64 is what differences of the loss say, for every option.
fn differences(device: &Device) -> Result<()> {
    let (rows, classes) = (3, 7);
    let x: Vec<f64> = normal(63, rows * classes).iter().map(|x| 2. * x).collect();
    let logits = tensor(&x, (rows, classes), DType::F64, device)?;
    for setup in Setup::all(classes) {
        let t = targets(rows, classes, &setup);
        let index = index_tensor(&t, DType::I64, device)?;
        let loss = |x: &[f64]| -> Result<f64> {
            let logits = tensor(x, (rows, classes), DType::F64, device)?;
            let loss = setup.call(&logits, Reduction::Mean, |options| {
                ops::cross_entropy(&logits, &index, options)
            })?;
            Ok(values(&loss)?[0])
        };
        let leaf = Var::from_tensor(&logits)?;
        let of_leaf = setup.call(&logits, Reduction::Mean, |options| {
            ops::cross_entropy(leaf.as_tensor(), &index, options)
        })?;
        let dx = values(of_leaf.backward()?.get(leaf.as_tensor()).unwrap())?;
        let (_, at_once) = setup.call(&logits, Reduction::Mean, |options| {
            ops::cross_entropy_with_gradient(&logits, &index, options)
        })?;
        let at_once = values(&at_once)?;
        let largest = dx.iter().fold(0f64, |a, d| a.max(d.abs()));
        assert!(largest > 0.01, "{setup:?}");
        for k in 0..x.len() {
            // Of the fourth order: the error of the step is below that of rounding.
            let step = 1e-3;
            let at = |by: f64| {
                let mut x = x.clone();
                x[k] += by * step;
                loss(&x)
            };
            let slope = (8. * (at(1.)? - at(-1.)?) - (at(2.)? - at(-2.)?)) / (12. * step);
            for dx in [dx[k], at_once[k]] {
                assert!(
                    (dx - slope).abs() <= 1e-6 * slope.abs().max(1e-4 * largest),
                    "{setup:?}: element {k}: {dx:e}, differences say {slope:e}"
                );
            }
        }
    }
    Ok(())
}

/// The gradient is that of the formula written in candle's own ops.
fn composed(device: &Device) -> Result<()> {
    let (rows, classes) = (6, 40);
    let logits = tensor(
        &normal(64, rows * classes),
        (rows, classes),
        DType::F64,
        device,
    )?;
    for setup in Setup::all(classes) {
        let t: Vec<i64> = (0..rows as i64).map(|row| 5 * row + 1).collect();
        let index = index_tensor(&t, DType::I64, device)?;
        let leaf = Var::from_tensor(&logits)?;
        let z = match setup.cap {
            Some(cap) => ((leaf.as_tensor() / cap)?.tanh()? * cap)?,
            None => leaf.as_tensor().clone(),
        };
        let lse = z.exp()?.sum_keepdim(1)?.log()?;
        let distances = lse.broadcast_sub(&z)?;
        let weights: Vec<f64> = (0..classes).map(|c| setup.weight(c)).collect();
        let weights = tensor(&weights, (1, classes), DType::F64, device)?;
        let distances = distances.broadcast_mul(&weights)?;
        let mut loss = (distances.gather(&index.unsqueeze(1)?, 1)? * (1. - setup.smoothing))?;
        loss = (loss + (distances.sum_keepdim(1)? * (setup.smoothing / classes as f64))?)?;
        loss = (loss + (lse.sqr()? * setup.z_loss)?)?;
        let expected = (loss.sum_all()? / setup.divisor(&t))?;
        let expected_dx = expected.backward()?;
        let expected_dx = values(expected_dx.get(leaf.as_tensor()).unwrap())?;
        let got = setup.call(&logits, Reduction::Mean, |options| {
            ops::cross_entropy(leaf.as_tensor(), &index, options)
        })?;
        let what = format!("{setup:?}");
        assert_close(&what, &got, &values(&expected)?, 1e-13)?;
        let dx = values(got.backward()?.get(leaf.as_tensor()).unwrap())?;
        for (dx, expected) in dx.iter().zip(&expected_dx) {
            assert!((dx - expected).abs() < 4e-15, "{what}: {dx:e} {expected:e}");
        }
    }
    Ok(())
}

/// Logits, targets and upstream gradients of any strides, and more dims.
fn layouts(device: &Device) -> Result<()> {
    let (a, b, classes) = (3, 4, 33);
    let flat = normal(65, a * b * classes);
    let packed = tensor(&flat, (a, b, classes), DType::F32, device)?;
    let t: Vec<i64> = (0..a * b).map(|k| ((k * 5) % classes) as i64).collect();
    let index = index_tensor(&t, DType::I64, device)?.reshape((a, b))?;
    let g = tensor(&normal(66, a * b), (a, b), DType::F32, device)?;
    let setup = Setup {
        smoothing: 0.1,
        z_loss: 0.01,
        ..Setup::default()
    };
    let run = |x: &Tensor, t: &Tensor, g: &Tensor| -> Result<(Tensor, Tensor, Tensor)> {
        let leaf = Var::from_tensor(x)?;
        // The strides of the tensor that was given, and its gradient in logical order.
        let strided = leaf
            .as_tensor()
            .transpose(0, 2)?
            .contiguous()?
            .transpose(0, 2)?;
        let used = if x.is_contiguous() {
            leaf.as_tensor()
        } else {
            &strided
        };
        let losses = setup.call(x, Reduction::None, |options| {
            ops::cross_entropy(used, t, options)
        })?;
        assert_eq!(losses.dims(), [a, b]);
        let grads = (&losses * g)?.sum_all()?.backward()?;
        let dx = grads.get(leaf.as_tensor()).unwrap().clone();
        let (_, at_once) = setup.call(x, Reduction::None, |options| {
            ops::cross_entropy_with_gradient(used, t, options)
        })?;
        let at_once = (&at_once + at_once.zeros_like()?)?;
        Ok((losses, dx, at_once))
    };
    let expected = run(&packed, &index, &g)?;
    let wider = Tensor::cat(&[&packed, &packed], 2)?;
    let cut = wider.narrow(2, classes, classes)?;
    let columns = packed.transpose(0, 2)?.contiguous()?.transpose(0, 2)?;
    let index_columns = index.t()?.contiguous()?.t()?;
    let index_cut = index.to_dtype(DType::U32)?;
    let index_cut = Tensor::cat(&[&index_cut, &index_cut], 1)?.narrow(1, b, b)?;
    let g_columns = g.t()?.contiguous()?.t()?;
    for (what, x, t, g) in [
        ("cut", &cut, &index, &g),
        ("columns", &columns, &index_columns, &g_columns),
        ("u32, cut", &packed, &index_cut, &g_columns),
    ] {
        let (losses, dx, at_once) = run(x, t, g)?;
        assert_bits_eq(what, &losses, &expected.0)?;
        assert_bits_eq(what, &dx, &expected.1)?;
        assert_bits_eq(what, &at_once, &expected.2)?;
    }
    // One target and one row for all, repeated.
    let one = packed.i((0, 0))?;
    let t = index.i((0, 0))?;
    let single = ops::cross_entropy(&one, &t, &CrossEntropyOptions::default())?;
    let all = ops::cross_entropy(
        &one.broadcast_as((a, b, classes))?,
        &t.broadcast_as((a, b))?,
        &CrossEntropyOptions::default().reduction(Reduction::None),
    )?;
    for value in values(&all)? {
        assert_eq!(value, values(&single)?[0]);
    }
    // G04: without reduction, then a plain sum.
    let leaf = Var::from_tensor(&packed)?;
    let options = CrossEntropyOptions::default().reduction(Reduction::None);
    let grads = ops::cross_entropy(leaf.as_tensor(), &index, &options)?
        .sum_all()?
        .backward()?;
    let x = values(&packed)?;
    let targets: Vec<i64> = values(&index)?.iter().map(|t| *t as i64).collect();
    let plain = Setup::default();
    let ones = vec![1.; a * b];
    let expected = expect_gradient(&plain, &x, classes, &targets, &ones, DType::F32);
    check("G04", grads.get(leaf.as_tensor()).unwrap(), &expected)
}

/// A row's bits are the same in any batch and, on kernels, on every tier that takes it.
fn bits(device: &Device) -> Result<()> {
    let host = devices::is_host_run();
    let cases: &[(DType, usize)] = match host {
        true => &[
            (DType::BF16, 33),
            (DType::F32, 1000),
            (DType::BF16, 1025),
            (DType::F16, 9001),
            (DType::F64, 1025),
            (DType::BF16, 20_001),
        ],
        false => &[
            (DType::F16, 33),
            (DType::BF16, 1025),
            (DType::F32, 5003),
            (DType::F64, 5003),
            (DType::BF16, 128_256),
            (DType::F16, 300_001),
            (DType::F32, 1 << 20),
        ],
    };
    let mut ran = Vec::new();
    for &(dtype, classes) in cases {
        let rows = 3;
        let x = tensor(&normal(67, rows * classes), (rows, classes), dtype, device)?;
        let t = [0, classes as i64 / 2, classes as i64 - 1];
        let index = index_tensor(&t, DType::I64, device)?;
        let sets = Setup::all(classes);
        let setups = if host { &sets[6..] } else { &sets[..] };
        for setup in setups {
            let run = |x: &Tensor, index: &Tensor| -> Result<[Tensor; 4]> {
                let leaf = Var::from_tensor(x)?;
                let losses = setup.call(x, Reduction::None, |options| {
                    ops::cross_entropy(leaf.as_tensor(), index, options)
                })?;
                let dx = losses.sum_all()?.backward()?;
                let dx = dx.get(leaf.as_tensor()).unwrap().clone();
                let (again, at_once) = setup.call(x, Reduction::None, |options| {
                    ops::cross_entropy_with_gradient(x, index, options)
                })?;
                // As candle adds gradients up, which leaves no -0.
                let at_once = (&at_once + at_once.zeros_like()?)?;
                Ok([losses, dx, again, at_once])
            };
            let what = format!("{dtype:?} {classes} {setup:?}");
            let all = run(&x, &index)?;
            assert_bits_eq(&what, &all[2], &all[0])?;
            assert_bits_eq(&what, &all[3], &all[1])?;
            if !host || classes < 2000 {
                for row in 0..rows {
                    let alone = run(&x.narrow(0, row, 1)?, &index.narrow(0, row, 1)?)?;
                    for (alone, all) in alone.iter().zip(&all) {
                        assert_bits_eq(&what, alone, &all.narrow(0, row, 1)?)?;
                    }
                }
            }
            if !(host || device.is_cuda()) {
                continue;
            }
            for tier in Tier::ALL {
                // The ops around the loss are of one row, which not every tier takes.
                let got = forced(tier, || {
                    setup.call(&x, Reduction::None, |options| {
                        ops::cross_entropy_with_gradient(&x, &index, options)
                    })
                })?;
                if let Some((losses, dx)) = got {
                    let dx = (&dx + dx.zeros_like()?)?;
                    ran.push(tier);
                    assert_bits_eq(&format!("{what} {tier:?}"), &losses, &all[0])?;
                    assert_bits_eq(&format!("{what} {tier:?}"), &dx, &all[1])?;
                }
                let losses = forced(tier, || {
                    setup.call(&x, Reduction::None, |options| {
                        ops::cross_entropy(&x, &index, options)
                    })
                })?;
                if let Some(losses) = losses {
                    assert_bits_eq(&format!("{what} {tier:?} alone"), &losses, &all[0])?;
                }
            }
        }
    }
    if host || device.is_cuda() {
        for tier in [Tier::Warp, Tier::Block, Tier::Cluster, Tier::SplitK] {
            assert!(ran.contains(&tier), "{tier:?} was never forced");
        }
    }
    Ok(())
}

/// Few rows of a large vocabulary.
fn large_vocabulary(device: &Device) -> Result<()> {
    let classes = if devices::is_host_run() {
        40_000
    } else {
        1 << 20
    };
    for dtype in [DType::BF16, DType::F32] {
        let logits = tensor(&normal(68, 2 * classes), (2, classes), dtype, device)?;
        let x = values(&logits)?;
        let setup = Setup {
            smoothing: 0.1,
            ..Setup::default()
        };
        let t = [17, classes as i64 - 1];
        let index = index_tensor(&t, DType::I64, device)?;
        let (losses, dx) = setup.call(&logits, Reduction::None, |options| {
            ops::cross_entropy_with_gradient(&logits, &index, options)
        })?;
        let what = format!("{dtype:?} {classes}");
        check(&what, &losses, &expect(&setup, &x, classes, &t, DType::F32))?;
        let expected = expect_gradient(&setup, &x, classes, &t, &[1., 1.], DType::F32);
        check(&what, &dx, &expected)?;
    }
    Ok(())
}

/// G05: logits are never written to, and backward may run as often as it likes.
fn g05(device: &Device) -> Result<()> {
    let z = Var::from_tensor(&tensor(&h_values(40), (4, 10), DType::F32, device)?)?;
    let p = ops::softmax(z.as_tensor(), 1)?;
    let before = values(&p)?;
    let (t1, t2) = ([0, 3, 9, 5], [1, 1, 2, 2]);
    let options = CrossEntropyOptions::default();
    let first = ops::cross_entropy(&p, &index_tensor(&t1, DType::U32, device)?, &options)?;
    let second = ops::cross_entropy(&p, &index_tensor(&t2, DType::U32, device)?, &options)?;
    let loss = (first + (second * 0.5)?)?;
    assert_eq!(values(&p)?, before);
    let once = loss.backward()?;
    assert_eq!(values(&p)?, before);
    let twice = loss.backward()?;
    assert_eq!(values(&p)?, before);
    let dz = once.get(z.as_tensor()).unwrap();
    assert_bits_eq("twice", twice.get(z.as_tensor()).unwrap(), dz)?;
    // dz of the softmax by hand, in f64.
    let zs = values(z.as_tensor())?;
    let setup = Setup::default();
    let mut expected = Vec::new();
    for (row, z) in zs.chunks(10).enumerate() {
        let max = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exps: Vec<f64> = z.iter().map(|z| (z - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        let p: Vec<f64> = exps.iter().map(|e| e / sum).collect();
        let (a, b) = (setup.gradient(&p, t1[row]), setup.gradient(&p, t2[row]));
        let g: Vec<f64> = a.iter().zip(&b).map(|(a, b)| (a + 0.5 * b) / 4.).collect();
        let along: f64 = p.iter().zip(&g).map(|(p, g)| p * g).sum();
        expected.extend(p.iter().zip(&g).map(|(p, g)| Expect {
            value: p * (g - along),
            bound: 1e-7,
        }));
    }
    check("dz", dz, &expected)
}

/// P06: a normaliser beside large numbers, and half logits with an f32 loss.
fn p06(device: &Device) -> Result<()> {
    let options = CrossEntropyOptions::default().reduction(Reduction::None);
    let rows = |x: &[f64], classes: usize, t: &[i64]| -> Result<Tensor> {
        let x = tensor(x, (t.len(), classes), DType::F32, device)?;
        Ok(ops::cross_entropy(
            &x,
            &index_tensor(t, DType::I64, device)?,
            &options,
        )?)
    };
    assert_close("1e8", &rows(&[1e8, 1e8], 2, &[1])?, &[2f64.ln()], 1e-7)?;
    for (x, losses) in [
        ([0., 0., 0.], [1.09861229; 3]),
        ([0., 0., 1.], [1.55144471, 1.55144471, 0.55144471]),
        ([1., 1., 0.], [0.86199480, 0.86199480, 1.86199480]),
    ] {
        let row: Vec<f64> = x.iter().map(|x| x - 1e7).collect();
        let got = rows(&row.repeat(3), 3, &[0, 1, 2])?;
        assert_close("-1e7", &got, &losses, 2e-7)?;
    }
    // And its gradient: the probability of each of two equal logits is a half.
    let x = tensor(&[1e8, 1e8], (1, 2), DType::F32, device)?;
    let t = index_tensor(&[1], DType::U32, device)?;
    let leaf = Var::from_tensor(&x)?;
    let dx = ops::cross_entropy(leaf.as_tensor(), &t, &options)?.backward()?;
    assert_same("1e8 dx", dx.get(leaf.as_tensor()).unwrap(), &[0.5, -0.5])?;
    // R12.
    let half = tensor(&normal(69, 800), (8, 100), DType::BF16, device)?;
    let t = index_tensor(&[1, 5, 99, 0, 31, 32, 64, 7], DType::I64, device)?;
    let got = ops::cross_entropy(&half, &t, &options)?;
    assert_eq!(got.dtype(), DType::F32);
    let wide = ops::cross_entropy(&half.to_dtype(DType::F32)?, &t, &options)?;
    assert_close("bf16", &got, &values(&wide)?, 1e-6)?;
    let double = half.to_dtype(DType::F64)?;
    assert_eq!(
        ops::cross_entropy(&double, &t, &options)?.dtype(),
        DType::F64
    );
    Ok(())
}

/// C01 and R6: nothing counts.
fn c01(device: &Device) -> Result<()> {
    let leaf = Var::from_tensor(&tensor(&h_values(50), (5, 10), DType::F32, device)?)?;
    for ignore in [-1, 4] {
        let t = index_tensor(&[ignore; 5], DType::I64, device)?;
        for (reduction, expected) in [
            (Reduction::None, vec![0.; 5]),
            (Reduction::Sum, vec![0.]),
            (Reduction::Mean, vec![f64::NAN]),
        ] {
            let options = CrossEntropyOptions::default()
                .ignore_index(ignore)
                .label_smoothing(0.1)
                .reduction(reduction);
            let loss = ops::cross_entropy(leaf.as_tensor(), &t, &options)?;
            assert_same("C01", &loss, &expected)?;
            let grads = loss.sum_all()?.backward()?;
            let dx = grads.get(leaf.as_tensor()).unwrap();
            assert_same("C01 dx", dx, &[0.; 50])?;
            let (loss, dx) = ops::cross_entropy_with_gradient(leaf.as_tensor(), &t, &options)?;
            assert_same("C01 at once", &loss, &expected)?;
            assert_same("C01 dx at once", &dx, &[0.; 50])?;
        }
    }
    // Not even what makes other rows NaN.
    let x = [f64::NAN, f64::INFINITY, 1., 1.];
    let x = tensor(&x, (2, 2), DType::F32, device)?;
    let t = index_tensor(&[-1, 0], DType::I64, device)?;
    let options = CrossEntropyOptions::default().ignore_index(-1);
    let (loss, dx) = ops::cross_entropy_with_gradient(&x, &t, &options)?;
    assert_close("a NaN that is ignored", &loss, &[2f64.ln()], 1e-7)?;
    assert_same("a NaN that is ignored", &dx, &[0., 0., -0.5, 0.5])
}

/// C02: class weights, smoothing and an ignored row.
fn c02(device: &Device) -> Result<()> {
    let x = tensor(&[1., 2., 3., 0.4], (2, 2), DType::F32, device)?;
    let weights = tensor(&[0.2, 0.3], 2, DType::F32, device)?;
    let t = index_tensor(&[-100, 1], DType::I64, device)?;
    let options = CrossEntropyOptions::default()
        .ignore_index(-100)
        .class_weights(&weights)
        .label_smoothing(0.1);
    let loss = ops::cross_entropy(&x, &t, &options)?;
    assert_close("C02 mean", &loss, &[2.54045061], 3e-7)?;

    let x = [0., 1., 2., 2., 1., 0., 1., 1., 1.];
    let x = tensor(&x, (3, 3), DType::F64, device)?;
    let weights = tensor(&[1., 2., 4.], 3, DType::F32, device)?;
    let t = index_tensor(&[0, -1, 2], DType::I64, device)?;
    let options = CrossEntropyOptions::default()
        .ignore_index(-1)
        .class_weights(&weights)
        .label_smoothing(0.1);
    let mean = ops::cross_entropy(&x, &t, &options)?;
    assert_close("C02 mean", &mean, &[1.32132677], 4e-9)?;
    let rows = ops::cross_entropy(&x, &t, &options.reduction(Reduction::None))?;
    assert_close("C02 rows", &rows, &[2.39528676, 0., 4.21134711], 3e-9)
}

/// C03 and R10: a target that is no class.
fn c03(device: &Device) -> Result<()> {
    let logits = tensor(&h_values(76), (4, 19), DType::F32, device)?;
    let x = values(&logits)?;
    let t = [3, 19, -4, 18];
    let index = index_tensor(&t, DType::I64, device)?;
    let on_kernels = device.is_cuda() || devices::is_host_run();
    for reduction in [Reduction::None, Reduction::Sum, Reduction::Mean] {
        let options = CrossEntropyOptions::default()
            .ignore_index(255)
            .reduction(reduction);
        let parts = [
            "cross-entropy",
            "row 1 is 19",
            "row 1",
            "19 classes",
            "[4, 19]",
        ];
        let checked = options.clone().checked(true);
        assert_error(ops::cross_entropy(&logits, &index, &checked), &parts);
        let both = ops::cross_entropy_with_gradient(&logits, &index, &checked);
        assert_error(both, &parts);
        if !on_kernels {
            assert_error(ops::cross_entropy(&logits, &index, &options), &parts);
            continue;
        }
        let leaf = Var::from_tensor(&logits)?;
        let loss = ops::cross_entropy(leaf.as_tensor(), &index, &options)?;
        let setup = Setup::default();
        let nan = f64::NAN;
        if reduction != Reduction::None {
            assert_same("C03", &loss, &[nan])?;
            continue;
        }
        let mut expected = expect(&setup, &x[..19], 19, &t[..1], DType::F32);
        expected.extend([Expect::exactly(nan), Expect::exactly(nan)]);
        expected.extend(expect(&setup, &x[57..], 19, &t[3..], DType::F32));
        check("C03", &loss, &expected)?;
        let dx = loss.sum_all()?.backward()?;
        let dx = dx.get(leaf.as_tensor()).unwrap();
        let (_, at_once) = ops::cross_entropy_with_gradient(&logits, &index, &options)?;
        let row = |row: usize| {
            let x = &x[19 * row..19 * row + 19];
            expect_gradient(&setup, x, 19, &t[row..row + 1], &[1.], DType::F32)
        };
        let mut expected = row(0);
        expected.extend([Expect::exactly(nan); 38]);
        expected.extend(row(3));
        check("C03 dx", dx, &expected)?;
        check("C03 dx at once", &at_once, &expected)?;
    }
    // The largest of unsigned ones.
    let index = Tensor::new(&[u32::MAX, 0, 0, 0], device)?;
    let checked = CrossEntropyOptions::default().checked(true);
    let parts = ["cross-entropy", "row 0 is 4294967295"];
    assert_error(ops::cross_entropy(&logits, &index, &checked), &parts);
    Ok(())
}

/// C04: logits of -inf.
fn c04(device: &Device) -> Result<()> {
    let inf = f64::INFINITY;
    let x = tensor(&[0., -inf, 1.], (1, 3), DType::F32, device)?;
    let (p, q) = (0.26894142, 0.73105858);
    for (target, smoothing, loss, dx) in [
        (2, 0., 0.31326169, Some([p, 0., -p])),
        (2, 0.1, inf, None),
        (1, 0., inf, Some([p, -1., q])),
    ] {
        let t = index_tensor(&[target], DType::I64, device)?;
        let options = CrossEntropyOptions::default().label_smoothing(smoothing);
        let leaf = Var::from_tensor(&x)?;
        let got = ops::cross_entropy(leaf.as_tensor(), &t, &options)?;
        assert_close("C04", &got, &[loss], 2e-7)?;
        let grads = got.backward()?;
        let of_graph = grads.get(leaf.as_tensor()).unwrap().clone();
        let (got, at_once) = ops::cross_entropy_with_gradient(&x, &t, &options)?;
        assert_close("C04 at once", &got, &[loss], 2e-7)?;
        for got in [of_graph, at_once] {
            match dx {
                Some(dx) => assert_close("C04 dx", &got, &dx, 2e-7)?,
                None => assert!(values(&got)?.iter().all(|dx| dx.is_finite())),
            }
        }
    }
    // A class of no weight takes no part: neither as target nor by smoothing.
    let weights = tensor(&[1., 0., 1.], 3, DType::F32, device)?;
    let options = CrossEntropyOptions::default()
        .class_weights(&weights)
        .label_smoothing(0.3)
        .reduction(Reduction::None);
    for target in [1, 2] {
        let t = index_tensor(&[target], DType::I64, device)?;
        let (loss, dx) = ops::cross_entropy_with_gradient(&x, &t, &options)?;
        assert!(values(&loss)?[0].is_finite() && values(&dx)?.iter().all(|dx| dx.is_finite()));
    }
    // A NaN makes its own row NaN, and a soft cap takes infinities in.
    let x = tensor(&[0., f64::NAN, 1., 0., 0., 0.], (2, 3), DType::F32, device)?;
    let t = index_tensor(&[0, 1], DType::I64, device)?;
    let plain = CrossEntropyOptions::default().reduction(Reduction::None);
    let got = values(&ops::cross_entropy(&x, &t, &plain)?)?;
    assert!(got[0].is_nan() && (got[1] - 3f64.ln()).abs() < 1e-6);
    let x = tensor(&[inf, -inf], (1, 2), DType::F32, device)?;
    let t = index_tensor(&[0], DType::I64, device)?;
    let (loss, dx) = ops::cross_entropy_with_gradient(&x, &t, &plain.soft_cap(2.))?;
    assert_close("capped", &loss, &[(1. + (-4f64).exp()).ln()], 4e-6)?;
    assert_same("capped dx", &dx, &[0., 0.])
}

/// E02: no rows.
fn e02(device: &Device) -> Result<()> {
    let x = Var::from_tensor(&Tensor::zeros((0, 10), DType::F32, device)?)?;
    let t = Tensor::zeros(0, DType::U32, device)?;
    let options = CrossEntropyOptions::default();
    let none = ops::cross_entropy(
        x.as_tensor(),
        &t,
        &options.clone().reduction(Reduction::None),
    )?;
    assert_eq!(none.dims(), [0]);
    let sum = options.clone().reduction(Reduction::Sum);
    assert_same("sum", &ops::cross_entropy(x.as_tensor(), &t, &sum)?, &[0.])?;
    assert_same(
        "mean",
        &ops::cross_entropy(x.as_tensor(), &t, &options)?,
        &[f64::NAN],
    )?;
    let (loss, dx) = ops::cross_entropy_with_gradient(x.as_tensor(), &t, &sum)?;
    assert_same("sum", &loss, &[0.])?;
    assert_eq!(dx.dims(), [0, 10]);
    // N04: no padding joins in.
    let classes = if devices::is_host_run() {
        5_025
    } else {
        50_257
    };
    let x = tensor(&h_values(8 * classes), (8, classes), DType::F32, device)?;
    let mut t = vec![-100; 8];
    t[0] = classes as i64 - 1;
    let setup = Setup {
        ignore: Some(-100),
        ..Setup::default()
    };
    let index = index_tensor(&t, DType::I64, device)?;
    let losses = setup.call(&x, Reduction::None, |options| {
        ops::cross_entropy(&x, &index, options)
    })?;
    let expected = expect(&setup, &values(&x)?, classes, &t, DType::F32);
    check("N04", &losses, &expected)
}

/// No targets, which begin behind an offset into nothing: candle makes no vector of such a view.
fn no_targets_behind_an_offset(device: &Device) -> Result<()> {
    let x = Tensor::zeros((0, 10), DType::F32, device)?;
    for dtype in [DType::U32, DType::I64] {
        let t = Tensor::zeros((0, 2), dtype, device)?.narrow(1, 1, 1)?;
        let t = t.squeeze(1)?;
        assert_eq!(t.layout().start_offset(), 1);
        let options = CrossEntropyOptions::default()
            .reduction(Reduction::None)
            .checked(true);
        assert_eq!(ops::cross_entropy(&x, &t, &options)?.dims(), [0]);
        let nan = [f64::NAN];
        assert_same("cross-entropy", &nn::loss::cross_entropy(&x, &t)?, &nan)?;
        assert_same("nll", &nn::loss::nll(&x, &t)?, &nan)?;
    }
    Ok(())
}

fn errors(device: &Device) -> Result<()> {
    let x = tensor(&h_values(12), (3, 4), DType::F32, device)?;
    let t = index_tensor(&[0, 1, 2], DType::U32, device)?;
    let options = CrossEntropyOptions::default();
    let call = |x: &Tensor, t: &Tensor, options: &CrossEntropyOptions, parts: &[&str]| {
        let parts: Vec<_> = [&["cross-entropy"], parts].concat();
        assert_error(ops::cross_entropy(x, t, options), &parts);
        assert_error(ops::cross_entropy_with_gradient(x, t, options), &parts);
    };
    for dtype in [DType::F32, DType::U8] {
        let bad = t.to_dtype(dtype)?;
        let got = format!("{dtype:?}");
        call(&x, &bad, &options, &["targets", &got, "u32, i64", "[3, 4]"]);
    }
    for shape in [&[3, 1][..], &[2], &[]] {
        let bad = Tensor::zeros(shape, DType::U32, device)?;
        let got = format!("{shape:?}");
        call(&x, &bad, &options, &["targets", &got, "[3, 4]", "[3]"]);
    }
    for classes in [3, 5] {
        let bad = Tensor::ones(classes, DType::F32, device)?;
        let with = options.clone().class_weights(&bad);
        let got = format!("[{classes}]");
        call(&x, &t, &with, &["class weights", &got, "[3, 4]", "[4]"]);
    }
    let bad = Tensor::ones(4, DType::F64, device)?;
    let with = options.clone().class_weights(&bad);
    call(&x, &t, &with, &["class weights", "F64", "F32", "[3, 4]"]);
    for smoothing in [-0.1, 1., 1.5, f64::NAN] {
        let with = options.clone().label_smoothing(smoothing);
        let shown = smoothing.to_string();
        call(&x, &t, &with, &["label_smoothing", &shown, "[3, 4]"]);
    }
    for z_loss in [-1e-4, f64::NAN, f64::INFINITY] {
        let with = options.clone().z_loss(z_loss);
        call(&x, &t, &with, &["z_loss", &z_loss.to_string(), "[3, 4]"]);
    }
    for cap in [0., -3., f64::NAN, f64::INFINITY, 1e-60] {
        let with = options.clone().soft_cap(cap);
        call(&x, &t, &with, &["soft_cap", &cap.to_string(), "[3, 4]"]);
    }
    let integers = x.to_dtype(DType::I64)?;
    call(&integers, &t, &options, &["I64", "[3, 4]", "f16, bf16"]);
    let scalar = tensor(&[1.], (), DType::F32, device)?;
    let target = index_tensor(&[0], DType::U32, device)?.squeeze(0)?;
    call(&scalar, &target, &options, &["dim -1", "[]"]);
    let empty = Tensor::zeros((3, 0), DType::F32, device)?;
    call(&empty, &t, &options, &["dim 1", "[3, 0]", "empty"]);
    Ok(())
}

on_devices! {
    every_option_and_dtype: every_option_and_dtype_cpu, every_option_and_dtype_cuda;
    differences: differences_cpu, differences_cuda;
    composed: composed_cpu, composed_cuda;
    layouts: layouts_cpu, layouts_cuda;
    bits: bits_cpu, bits_cuda;
    large_vocabulary: large_vocabulary_cpu, large_vocabulary_cuda;
    g05: g05_cpu, g05_cuda;
    p06: p06_cpu, p06_cuda;
    c01: c01_cpu, c01_cuda;
    c02: c02_cpu, c02_cuda;
    c03: c03_cpu, c03_cuda;
    c04: c04_cpu, c04_cuda;
    e02: e02_cpu, e02_cuda;
    no_targets_behind_an_offset: no_targets_behind_an_offset_cpu, no_targets_behind_an_offset_cuda;
    errors: errors_cpu, errors_cuda;
}

/// The same bits from any number of threads, for rows one to a thread and rows that all share.
#[test]
fn threads_cpu() -> Result<()> {
    let device = &Device::Cpu;
    for (rows, classes) in [(700, 1000), (2, 300_001)] {
        let x = tensor(
            &normal(70, rows * classes),
            (rows, classes),
            DType::F32,
            device,
        )?;
        let setup = &Setup::all(classes)[6];
        let t = targets(rows, classes, setup);
        let index = index_tensor(&t, DType::I64, device)?;
        let run = |threads: usize| -> Result<(Tensor, Tensor)> {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()?;
            pool.install(|| {
                setup.call(&x, Reduction::Mean, |options| {
                    ops::cross_entropy_with_gradient(&x, &index, options)
                })
            })
        };
        let one = run(1)?;
        for threads in [2, 16] {
            let many = run(threads)?;
            assert_bits_eq("loss", &many.0, &one.0)?;
            assert_bits_eq("dx", &many.1, &one.1)?;
        }
    }
    Ok(())
}
