//! Initial weights that follow from a seed. (Candle's generator on the CPU cannot be seeded.)

use anyhow::{anyhow, Result};
use candle_core::{Device, Tensor};
use candle_nn::VarMap;
use rand::rngs::StdRng;
use rand::SeedableRng;
use rand_distr::{Distribution, Normal};

/// Sets every variable of a map, in the order of their names: vectors, the weights of norms, to 1;
/// matrices to normally distributed values that keep the size of what passes through them.
pub fn initialise(map: &VarMap, seed: u64) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let variables = map.data().lock();
    let variables =
        variables.map_err(|_| anyhow!("a thread panicked while it held the weights"))?;
    let mut named: Vec<_> = variables.iter().collect();
    named.sort_by_key(|(name, _)| *name);
    for (_, var) in named {
        let value = match *var.dims() {
            [_, columns] => {
                let normal = Normal::new(0f32, (columns as f32).sqrt().recip())?;
                let values = normal.sample_iter(&mut random).take(var.elem_count());
                Tensor::from_vec(values.collect::<Vec<_>>(), var.shape(), &Device::Cpu)?
            }
            _ => var.ones_like()?,
        };
        var.set(&value.to_dtype(var.dtype())?.to_device(var.device())?)?;
    }
    Ok(())
}

/// How many numbers the variables of a map hold.
pub fn count(map: &VarMap) -> usize {
    map.all_vars().iter().map(|var| var.elem_count()).sum()
}
