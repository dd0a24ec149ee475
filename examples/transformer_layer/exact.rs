//! Each op on one row in f64, straight from its formula, and the yardstick for errors.

use candle_core::DType;

use crate::layer::EPS;

/// An element of a result.
pub struct Exact {
    pub value: f64,
    /// The size of what was added to make it. The error is measured in last places of that: where
    /// terms cancel, a result much smaller than they are cannot be exact to its own last place.
    pub scale: f64,
}

impl Exact {
    fn plain(value: f64) -> Self {
        Exact {
            value,
            scale: value.abs(),
        }
    }

    fn sum(value: f64, terms: f64) -> Self {
        Exact {
            value,
            scale: value.abs().max(terms.abs()),
        }
    }
}

/// A row and what goes with it.
pub struct Row<'a> {
    pub x: &'a [f64],
    pub weight: &'a [f64],
    pub bias: &'a [f64],
}

impl Row<'_> {
    fn mean_of(&self, f: impl Fn(f64) -> f64) -> f64 {
        self.x.iter().map(|v| f(*v)).sum::<f64>() / self.x.len() as f64
    }

    fn largest(&self) -> f64 {
        self.x.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// The size of the row's sum if no terms cancelled more than those of random signs do.
    fn size_of_sum(&self) -> f64 {
        self.x.iter().map(|v| v * v).sum::<f64>().sqrt()
    }

    fn log_sum_exp(&self) -> f64 {
        let largest = self.largest();
        let sum: f64 = self.x.iter().map(|v| (v - largest).exp()).sum();
        largest + sum.ln()
    }

    pub fn rms_norm(&self) -> Vec<Exact> {
        let scale = (self.mean_of(|v| v * v) + f64::from(EPS)).sqrt().recip();
        let weighted = self.x.iter().zip(self.weight);
        weighted.map(|(v, w)| Exact::plain(v * scale * w)).collect()
    }

    pub fn layer_norm(&self) -> Vec<Exact> {
        let mean = self.mean_of(|v| v);
        let variance = self.mean_of(|v| (v - mean) * (v - mean));
        let scale = (variance + f64::from(EPS)).sqrt().recip();
        let mean_size = self.size_of_sum() / self.x.len() as f64;
        let columns = self.x.iter().zip(self.weight).zip(self.bias);
        columns
            .map(|((v, w), b)| {
                let terms = [v * scale * w, mean_size * scale * w, *b];
                let largest = terms.iter().fold(0.0, |most: f64, t| most.max(t.abs()));
                Exact::sum((v - mean) * scale * w + b, largest)
            })
            .collect()
    }

    pub fn softmax(&self) -> Vec<Exact> {
        let total = self.log_sum_exp();
        let probabilities = self.x.iter().map(|v| Exact::plain((v - total).exp()));
        probabilities.collect()
    }

    pub fn log_softmax(&self) -> Vec<Exact> {
        let total = self.log_sum_exp();
        let logs = self
            .x
            .iter()
            .map(|v| Exact::sum(v - total, v.abs().max(total.abs())));
        logs.collect()
    }

    pub fn logsumexp(&self) -> Vec<Exact> {
        vec![Exact::sum(self.log_sum_exp(), self.largest())]
    }

    pub fn sum(&self) -> Vec<Exact> {
        vec![Exact::sum(self.x.iter().sum(), self.size_of_sum())]
    }

    pub fn max(&self) -> Vec<Exact> {
        vec![Exact::plain(self.largest())]
    }

    pub fn argmax(&self) -> Vec<Exact> {
        let largest = self.largest();
        let index = self.x.iter().position(|v| *v == largest);
        vec![Exact::plain(index.unwrap_or(0) as f64)]
    }
}

/// The distance of two neighbours of `dtype` at `value` (1 for integers).
pub fn last_place(dtype: DType, value: f64) -> f64 {
    let (mantissa_bits, least_exponent) = match dtype {
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        DType::F32 => (23, -126),
        DType::F64 => (52, -1022),
        _ => return 1.0,
    };
    let exponent = ((value.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    2f64.powi(exponent.max(least_exponent) - mantissa_bits)
}
