//! Sampling: the frequencies are the probabilities, and temperature 0 is the argmax.

use candle_rowwise::nn::sampling::gumbel_softmax;

use crate::common::*;
use crate::errors::assert_error;

fn frequencies(device: &Device) -> Result<()> {
    let rows = 40_000;
    let logits = [0., 1., f64::NEG_INFINITY, 2.];
    for temperature in [1., 2.5] {
        let x = tensor(&logits, (1, 4), DType::F32, device)?.broadcast_as((rows, 4))?;
        let drawn = values(&gumbel_softmax(&x, temperature, D::Minus1)?)?;
        assert_eq!(drawn.len(), rows);
        let weights = logits.map(|v| (v / temperature).exp());
        let total: f64 = weights.iter().sum();
        for (class, weight) in weights.iter().enumerate() {
            let count = drawn.iter().filter(|v| **v == class as f64).count();
            let (got, expected) = (count as f64 / rows as f64, weight / total);
            // Five standard deviations, and what the cut of the noise moves.
            let allowed = 5. * (expected * (1. - expected) / rows as f64).sqrt() + 1e-3 * expected;
            assert!(
                (got - expected).abs() <= allowed,
                "class {class} at {temperature}: {got}, not {expected}"
            );
        }
    }
    Ok(())
}

fn without_noise(device: &Device) -> Result<()> {
    let x = tensor(&[1., 5., 2., 7., 0., 7.], (2, 3), DType::BF16, device)?;
    for temperature in [0., -1.] {
        assert_same("rows", &gumbel_softmax(&x, temperature, 1)?, &[1., 0.])?;
        assert_same(
            "columns",
            &gumbel_softmax(&x, temperature, 0)?,
            &[1., 0., 1.],
        )?;
    }
    for (temperature, shown) in [(f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let parts = ["gumbel-softmax", "temperature", shown, "[2, 3]"];
        assert_error(gumbel_softmax(&x, temperature, 1), &parts);
    }
    Ok(())
}

on_devices! {
    frequencies: frequencies_cpu, frequencies_cuda;
    without_noise: without_noise_cpu, without_noise_cuda;
}
