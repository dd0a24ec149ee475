//! Cross-entropy with every option, and its gradient in the same pass.

use candle_rowwise::ops::{self, Reduction};
use candle_rowwise::plan::Tier;
use proptest::prelude::*;
use proptest::sample::select;

use super::input::{fills, floats, inputs, packed, Fill, Input};
use super::{check_form, check_tier, fuzz, regressions, tiers, Tally};
use crate::common::*;
use crate::loss::{expect, expect_gradient, index_tensor, Setup};

#[derive(Debug, Clone)]
struct Case {
    x: Input,
    /// The index that is ignored, as a class or none, and how many targets of eight have it.
    ignore: Option<(bool, u8)>,
    smoothing: f64,
    /// With zeros among them, or without.
    weights: Option<bool>,
    z_loss: f64,
    cap: Option<f64>,
    reduction: Reduction,
    signed: bool,
    /// Targets that are one column of several.
    column: bool,
    tier: Tier,
}

fn cases() -> BoxedStrategy<Case> {
    let fills = fills().prop_map(|fill| match fill {
        // Beyond the range of what is computed in, the loss itself is.
        Fill::Huge { .. } => Fill::Far,
        fill => fill,
    });
    let options = (
        proptest::option::of((any::<bool>(), 0u8..9)),
        select(vec![0., 0., 0.1, 0.7]),
        proptest::option::of(any::<bool>()),
        select(vec![0., 0., 1e-3]),
        proptest::option::of(select(vec![0.5, 5., 30.])),
    );
    let reductions = select(vec![Reduction::None, Reduction::Sum, Reduction::Mean]);
    let rest = (reductions, any::<bool>(), any::<bool>(), tiers());
    (inputs(floats(), fills), options, rest)
        .prop_map(|(x, options, rest)| {
            let (ignore, smoothing, weights, z_loss, cap) = options;
            let (reduction, signed, column, tier) = rest;
            Case {
                x,
                ignore,
                smoothing,
                weights,
                z_loss,
                cap,
                reduction,
                signed,
                column,
                tier,
            }
        })
        .boxed()
}

impl Case {
    fn setup(&self, classes: usize) -> Setup {
        let weight = |has_zeros: bool| {
            let of_class = |j: usize| (j % 4 + usize::from(!has_zeros)) as f64 / 2.;
            (0..classes).map(of_class).collect()
        };
        Setup {
            ignore: self.ignore.map(|(is_class, _)| match is_class {
                true => (self.x.seed % classes.max(1) as u64) as i64,
                false => -100,
            }),
            smoothing: self.smoothing,
            weights: self.weights.map(weight),
            z_loss: self.z_loss,
            cap: self.cap,
        }
    }

    fn targets(&self, setup: &Setup, rows: usize, classes: usize) -> Vec<i64> {
        let often = self.ignore.map_or(0, |(_, often)| often);
        (0..rows)
            .map(|row| {
                let k = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.x.seed;
                match setup.ignore {
                    Some(ignore) if (k >> 17) % 8 < often.into() => ignore,
                    _ => (k % classes.max(1) as u64) as i64,
                }
            })
            .collect()
    }
}

fn test(case: &Case, tally: &Tally, device: &Device) -> Result<()> {
    let what = format!("{case:?}");
    let (dtype, reduction) = (case.x.dtype, case.reduction);
    let wide = float::wide(dtype);
    let x = case.x.build(device)?;
    let classes = x.dim(D::Minus1)?;
    let outer = &x.dims()[..x.rank() - 1];
    let rows: usize = outer.iter().product();
    let setup = case.setup(classes);
    let t = case.targets(&setup, rows, classes);
    let unsigned = !case.signed && t.iter().all(|t| *t >= 0);
    let index = if unsigned { DType::U32 } else { DType::I64 };
    let index = index_tensor(&t, index, &Device::Cpu)?.reshape(outer)?;
    let last = index.rank();
    let index = match case.column {
        true => Tensor::stack(&[&index.zeros_like()?, &index], last)?
            .narrow(last, 1, 1)?
            .squeeze(last)?,
        false => index,
    };
    let index = index.to_device(device)?;
    let both = |x: &Tensor| {
        setup.call(x, reduction, |options| {
            ops::cross_entropy_with_gradient(x, &index, options)
        })
    };
    tally.add(format!("{reduction:?}"));
    if classes == 0 {
        let message = both(&x).unwrap_err().to_string();
        assert!(message.contains("empty"), "{message}");
        return Ok(());
    }
    let (loss, dx) = both(&x)?;
    let shape = if reduction == Reduction::None {
        outer
    } else {
        &[]
    };
    check_form(&what, &loss, shape, wide);
    check_form(&what, &dx, x.dims(), dtype);
    let alone = setup.call(&x, reduction, |options| {
        ops::cross_entropy(&x, &index, options)
    })?;
    assert_bits_eq(&format!("{what}: alone"), &alone, &loss)?;

    let xs = values(&x)?;
    let losses = expect(&setup, &xs, classes, &t, wide);
    let divisor = setup.divisor(&t);
    let scale = match reduction {
        Reduction::Mean => 1. / divisor,
        _ => 1.,
    };
    let due = match reduction {
        Reduction::None => losses.clone(),
        _ => {
            let sum = reference::Total::of(losses.iter().map(|e| e.value));
            let bound: f64 = losses.iter().map(|e| e.bound).sum();
            let adding = reference::depth(rows) * float::unit(wide) * (sum.magnitude + bound);
            vec![Expect {
                value: sum.value() * scale,
                bound: (bound + adding) * scale,
            }]
        }
    };
    // A loss over no weight at all is the quotient of zeros, or of a z-loss and zero.
    let has_weight = reduction != Reduction::Mean || divisor > 0.;
    let counts = t.iter().any(|t| setup.class(*t).is_some());
    if has_weight || !counts {
        check(&what, &loss, &due)?;
    }
    let finite = losses.iter().all(|e| e.value.is_finite());
    if finite && has_weight {
        let g = vec![scale; rows];
        let due = expect_gradient(&setup, &xs, classes, &t, &g, wide);
        check(&format!("{what} dx"), &dx, &due)?;
    } else if !counts {
        assert_same(&format!("{what} dx"), &dx, &vec![0.; xs.len()])?;
    }

    let of_packed = both(&packed(&x)?)?;
    assert_bits_eq(&format!("{what}: packed"), &loss, &of_packed.0)?;
    assert_bits_eq(&format!("{what}: packed dx"), &dx, &of_packed.1)?;
    check_tier(&what, case.tier, device, tally, &[loss, dx], || {
        let (loss, dx) = both(&x).map_err(candle_core::Error::wrap)?;
        Ok(vec![loss, dx])
    })
}

pub fn cross_entropy(device: &Device) -> Result<()> {
    let file = regressions!("cross_entropy");
    fuzz("cross-entropy", file, cases(), |case, tally| {
        test(case, tally, device)
    })
}
