//! Inputs, and reading results back.

use candle_core::{DType, Device, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use super::Result;

/// The `k`th value of the sequence that CASES uses; exact in every float dtype.
pub fn h(k: usize) -> f64 {
    (((37 * k) % 101) as f64 - 50.) / 16.
}

/// The first `n` values of [`h`].
pub fn h_values(n: usize) -> Vec<f64> {
    (0..n).map(h).collect()
}

/// Standard normal values.
pub fn normal(seed: u64, n: usize) -> Vec<f64> {
    let rng = StdRng::seed_from_u64(seed);
    StandardNormal.sample_iter(rng).take(n).collect()
}

/// Values of either sign whose magnitudes are spread evenly over `2^-reach .. 2^reach`.
pub fn spread(seed: u64, n: usize, reach: f64) -> Vec<f64> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..n)
        .map(|_| {
            let magnitude = rng.random_range(-reach..reach).exp2();
            if rng.random() {
                magnitude
            } else {
                -magnitude
            }
        })
        .collect()
}

/// A tensor of these values, rounded to `dtype`.
pub fn tensor(
    values: &[f64],
    shape: impl Into<candle_core::Shape>,
    dtype: DType,
    device: &Device,
) -> Result<Tensor> {
    let t = Tensor::from_slice(values, shape, &Device::Cpu)?;
    Ok(t.to_dtype(dtype)?.to_device(device)?)
}

/// The elements in logical order, exactly.
pub fn values(t: &Tensor) -> Result<Vec<f64>> {
    // Of no elements candle slices what is not there, where they begin behind an offset.
    if t.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let t = t.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(t.flatten_all()?.to_vec1()?)
}
