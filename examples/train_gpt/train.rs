//! Training: a model from a seed, and the loss of each step.

use anyhow::{ensure, Result};
use candle_core::{DType, Device};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap};
use rand::rngs::StdRng;
use rand::SeedableRng;

use super::model::{Config, Gpt, RowOps};
use super::text::Text;
use super::weights;

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub steps: usize,
    /// Windows of text in a step.
    pub batch: usize,
    /// The largest learning rate of the schedule.
    pub lr: f64,
    /// Of the initial weights and of the order of the text.
    pub seed: u64,
}

/// A model with its variables.
pub struct Trained {
    pub gpt: Gpt,
    pub parameters: usize,
    pub losses: Vec<f32>,
    /// Mean loss over windows that training has not seen, before and after it.
    pub held_out: [f32; 2],
}

/// Trains a model on `rows`. Weights and data follow from the seed, whatever the ops. `report` is
/// called after each step with its loss.
pub fn train(
    config: &Config,
    rows: RowOps,
    text: &Text,
    plan: &Plan,
    device: &Device,
    mut report: impl FnMut(f32),
) -> Result<Trained> {
    let map = VarMap::new();
    let gpt = Gpt::new(
        config,
        rows,
        VarBuilder::from_varmap(&map, DType::F32, device),
    )?;
    weights::initialise(&map, plan.seed)?;
    let mut optimizer = AdamW::new(map.all_vars(), ParamsAdamW::default())?;
    let mut random = StdRng::seed_from_u64(plan.seed.wrapping_add(1));

    let (ids, following) = text.held_out(plan.batch.saturating_mul(4), config.context, device)?;
    let held_out = || gpt.loss(&ids, &following)?.to_scalar::<f32>();
    let before = held_out()?;
    let mut losses = Vec::with_capacity(plan.steps);
    for step in 0..plan.steps {
        optimizer.set_learning_rate(learning_rate(plan, step));
        let (ids, following) = text.batch(plan.batch, config.context, &mut random, device)?;
        let loss = gpt.loss(&ids, &following)?;
        optimizer.backward_step(&loss)?;
        let loss = loss.to_scalar()?;
        ensure!(f32::is_finite(loss), "the loss of step {step} is {loss}");
        losses.push(loss);
        report(loss);
    }
    let held_out = [before, held_out()?];
    Ok(Trained {
        gpt,
        parameters: weights::count(&map),
        losses,
        held_out,
    })
}

/// Up over the first twentieth of the steps, then down to a tenth along a cosine.
fn learning_rate(plan: &Plan, step: usize) -> f64 {
    let warmup = plan.steps.div_ceil(20);
    if step < warmup {
        return plan.lr * (step + 1) as f64 / warmup as f64;
    }
    let done = (step - warmup) as f64 / (plan.steps - warmup) as f64;
    let cosine = (1. + (done * std::f64::consts::PI).cos()) / 2.;
    plan.lr * (0.1 + 0.9 * cosine)
}

/// The largest difference of two curves.
pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0., f32::max)
}
