//! Norms with and without weight, bias, offset and residual.

use candle_rowwise::ops::{self, NormOptions};
use candle_rowwise::plan::Tier;
use proptest::prelude::*;
use proptest::sample::select;

use super::input::{fills, floats, inputs, packed, views, Input, View};
use super::{check_form, check_tier, fuzz, regressions, tiers, Tally};
use crate::common::*;

#[derive(Debug, Clone)]
struct Case {
    centred: bool,
    x: Input,
    /// How the residual lies, where there is one.
    residual: Option<View>,
    weight: Option<Side>,
    bias: Option<Side>,
    offset: f64,
    eps: f64,
    tier: Tier,
}

/// A weight or a bias: whether f32 beside a half type, and whether one of several columns.
#[derive(Debug, Clone, Copy)]
struct Side {
    wide: bool,
    column: bool,
}

fn sides() -> impl Strategy<Value = Option<Side>> {
    let side = (any::<bool>(), any::<bool>()).prop_map(|(wide, column)| Side { wide, column });
    proptest::option::of(side)
}

fn cases() -> BoxedStrategy<Case> {
    let options = (
        select(vec![0., 1., -0.5]),
        select(vec![1e-5, 1e-6, 1e-12, 0.1]),
    );
    let x = inputs(floats(), fills());
    let residual = proptest::option::of(views());
    let sides = (sides(), sides());
    (any::<bool>(), x, residual, sides, options, tiers())
        .prop_map(
            |(centred, x, residual, (weight, bias), (offset, eps), tier)| Case {
                centred,
                x,
                residual,
                weight,
                bias,
                offset,
                eps,
                tier,
            },
        )
        .boxed()
}

impl Case {
    fn side(&self, side: Side, centre: f64, width: usize, device: &Device) -> Result<Tensor> {
        let dtype = match side.wide {
            true => float::wide(self.x.dtype),
            false => self.x.dtype,
        };
        let seed = self.x.seed ^ centre.to_bits();
        let columns = if side.column { 3 } else { 1 };
        let v = normal(seed, columns * width);
        let v: Vec<f64> = v.iter().map(|v| centre + 0.5 * v).collect();
        let t = tensor(&v, (width, columns), dtype, device)?;
        Ok(t.narrow(1, columns - 1, 1)?.squeeze(1)?)
    }

    fn call(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        options: &NormOptions,
    ) -> candle_core::Result<Vec<Tensor>> {
        match (self.centred, residual) {
            (false, None) => Ok(vec![ops::rms_norm_with(x, options)?]),
            (true, None) => Ok(vec![ops::layer_norm_with(x, options)?]),
            (false, Some(r)) => ops::add_rms_norm(x, r, options).map(|(y, s)| vec![y, s]),
            (true, Some(r)) => ops::add_layer_norm(x, r, options).map(|(y, s)| vec![y, s]),
        }
    }
}

fn test(case: &Case, tally: &Tally, device: &Device) -> Result<()> {
    let what = format!("{case:?}");
    let dtype = case.x.dtype;
    let wide = float::wide(dtype);
    let x = case.x.build(device)?;
    let width = x.dim(D::Minus1)?;
    let residual = case.residual.as_ref().map(|view| {
        let residual = Input {
            view: view.clone(),
            seed: case.x.seed ^ 1,
            ..case.x.clone()
        };
        residual.build(device)
    });
    let residual = residual.transpose()?;
    let side = |side: Option<Side>, centre| -> Result<Option<Tensor>> {
        side.map(|side| case.side(side, centre, width, device))
            .transpose()
    };
    let (weight, bias) = (side(case.weight, 1.)?, side(case.bias, 0.)?);
    let mut options = NormOptions::new(case.eps).weight_offset(case.offset);
    if let Some(weight) = &weight {
        options = options.weight(weight);
    }
    if let Some(bias) = &bias {
        options = options.bias(bias);
    }
    let got = case.call(&x, residual.as_ref(), &options)?;
    tally.add(match (case.centred, residual.is_some()) {
        (false, false) => "rms-norm",
        (true, false) => "layer-norm",
        (false, true) => "add-rms-norm",
        (true, true) => "add-layer-norm",
    });
    for got in &got {
        check_form(&what, got, x.dims(), dtype);
    }

    let mut input = values(&x)?;
    if let Some(residual) = &residual {
        let sums = input.iter().zip(values(residual)?);
        input = sums.map(|(x, r)| float::round(dtype, x + r)).collect();
        assert_same(&format!("{what}: sum"), &got[1], &input)?;
        let apart = Case {
            residual: None,
            ..case.clone()
        };
        let apart = apart.call(&got[1], None, &options)?;
        assert_bits_eq(&format!("{what}: apart"), &got[0], &apart[0])?;
    }
    let factor = |w: &f64| float::round(wide, w + case.offset);
    let of_side = |side: &Option<Tensor>, otherwise: f64| match side {
        Some(side) => values(side),
        None => Ok(vec![otherwise; width]),
    };
    let weights = match &weight {
        Some(weight) => values(weight)?.iter().map(factor).collect(),
        None => vec![1.; width],
    };
    let of_sides = [weights, of_side(&bias, 0.)?];
    let op = match case.centred {
        true => Op::LayerNorm { eps: case.eps },
        false => Op::RmsNorm { eps: case.eps },
    };
    if width > 0 {
        let due: Vec<Expect> = input
            .chunks(width)
            .flat_map(|row| reference::forward(op, row, &of_sides, dtype))
            .collect();
        check(&what, &got[0], &due)?;
    }

    let packed_residual = residual.as_ref().map(packed).transpose()?;
    let of_packed = case.call(&packed(&x)?, packed_residual.as_ref(), &options)?;
    for (got, of_packed) in got.iter().zip(&of_packed) {
        assert_bits_eq(&format!("{what}: packed"), got, of_packed)?;
    }
    check_tier(&what, case.tier, device, tally, &got, || {
        case.call(&x, residual.as_ref(), &options)
    })
}

pub fn norms(device: &Device) -> Result<()> {
    fuzz("norms", regressions!("norms"), cases(), |case, tally| {
        test(case, tally, device)
    })
}
