//! The text: its characters as tokens, and batches of it.

use anyhow::{ensure, Result};
use candle_core::{Device, Tensor};
use rand::rngs::StdRng;
use rand::Rng;

/// A text as ids of its characters. The last tenth is held out from training.
pub struct Text {
    characters: Vec<char>,
    training: Vec<u32>,
    held_out: Vec<u32>,
}

impl Text {
    /// Takes a text apart; lines that start with `#` at its head are left out.
    pub fn new(text: &str, context: usize) -> Result<Self> {
        let lines = text.lines().skip_while(|line| line.starts_with('#'));
        let text: Vec<char> = lines.flat_map(|line| line.chars().chain(['\n'])).collect();
        let mut characters = text.clone();
        characters.sort();
        characters.dedup();
        // Both parts must hold a window and what follows it.
        let least = context.saturating_add(1).saturating_mul(10);
        ensure!(
            text.len() >= least,
            "a context of {context} needs a text of {least} characters at least, this one has {}",
            text.len()
        );
        let id = |c: &char| characters.partition_point(|other| other < c) as u32;
        let mut training: Vec<u32> = text.iter().map(id).collect();
        let held_out = training.split_off(text.len() - text.len() / 10);
        Ok(Self {
            characters,
            training,
            held_out,
        })
    }

    pub fn len(&self) -> usize {
        self.training.len() + self.held_out.len()
    }

    /// Kinds of characters.
    pub fn vocabulary(&self) -> usize {
        self.characters.len()
    }

    /// What training starts with.
    pub fn first(&self) -> u32 {
        self.training[0]
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        ids.iter().map(|id| self.characters[*id as usize]).collect()
    }

    /// Windows of `context` tokens from random places of the training part, and the tokens that
    /// follow each token: both (batch, context).
    pub fn batch(
        &self,
        batch: usize,
        context: usize,
        random: &mut StdRng,
        device: &Device,
    ) -> Result<(Tensor, Tensor)> {
        let last = self.training.len() - context - 1;
        let starts: Vec<usize> = (0..batch).map(|_| random.random_range(0..=last)).collect();
        windows(&self.training, &starts, context, device)
    }

    /// `count` windows (or as many as there are), evenly spread over the part that is held out.
    pub fn held_out(
        &self,
        count: usize,
        context: usize,
        device: &Device,
    ) -> Result<(Tensor, Tensor)> {
        let last = self.held_out.len() - context - 1;
        let count = count.clamp(1, last + 1);
        let starts: Vec<usize> = (0..count).map(|i| i * last / count).collect();
        windows(&self.held_out, &starts, context, device)
    }
}

fn windows(
    ids: &[u32],
    starts: &[usize],
    context: usize,
    device: &Device,
) -> Result<(Tensor, Tensor)> {
    let shifted = |by: usize| -> candle_core::Result<Tensor> {
        let windows = starts
            .iter()
            .flat_map(|start| &ids[start + by..][..context]);
        let ids = windows.copied().collect();
        Tensor::from_vec(ids, (starts.len(), context), device)
    };
    Ok((shifted(0)?, shifted(1)?))
}
