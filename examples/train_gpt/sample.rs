//! Text from a trained model.

use anyhow::Result;
use candle_core::{Device, Tensor};
use candle_rowwise::nn::ops::softmax_last_dim;
use rand::distr::weighted::WeightedIndex;
use rand::distr::Distribution;
use rand::rngs::StdRng;
use rand::SeedableRng;

use crate::model::{Config, Gpt};

/// `count` tokens after `first`, drawn with the model's probabilities at a temperature.
pub fn sample(
    gpt: &Gpt,
    config: &Config,
    first: u32,
    count: usize,
    temperature: f64,
    seed: u64,
    device: &Device,
) -> Result<Vec<u32>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut ids = vec![first];
    for _ in 0..count {
        let seen = &ids[ids.len().saturating_sub(config.context)..];
        let logits = gpt.forward(&Tensor::new(seen, device)?.unsqueeze(0)?)?;
        let last = (logits.get(0)?.get(seen.len() - 1)? / temperature)?;
        let weights: Vec<f32> = softmax_last_dim(&last)?.to_vec1()?;
        ids.push(WeightedIndex::new(weights)?.sample(&mut random) as u32);
    }
    Ok(ids)
}
