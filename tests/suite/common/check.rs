//! Comparing: against an expectation with its bound, or bit for bit.

use candle_core::{DType, Tensor};

use super::{float, values, Result};

/// The exact value, and how far the value before the last rounding may be from it.
#[derive(Debug, Clone, Copy)]
pub struct Expect {
    pub value: f64,
    pub bound: f64,
}

impl Expect {
    pub fn exactly(value: f64) -> Self {
        Self { value, bound: 0. }
    }

    /// True for what a value within the bound rounds to. For half types this allows one ulp where
    /// the bound reaches over a rounding boundary, and nothing else.
    fn accepts(&self, dtype: DType, got: f64) -> bool {
        if self.value.is_nan() || got.is_nan() {
            return self.value.is_nan() && got.is_nan();
        }
        if self.value.is_infinite() {
            return got == self.value;
        }
        let (low, high) = (self.value - self.bound, self.value + self.bound);
        float::round(dtype, low) <= got && got <= float::round(dtype, high)
    }

    /// The error in units of what is allowed.
    fn excess(&self, dtype: DType, got: f64) -> f64 {
        if self.accepts(dtype, got) && !got.is_finite() {
            return 0.;
        }
        let excess = (got - self.value).abs() / (self.bound + float::ulp(dtype, self.value) / 2.);
        if excess.is_nan() {
            f64::INFINITY
        } else {
            excess
        }
    }
}

/// Compares a result with what is expected, element by element.
#[track_caller]
pub fn check(what: &str, got: &Tensor, expected: &[Expect]) -> Result<()> {
    let got_values = values(got)?;
    assert_eq!(got_values.len(), expected.len(), "{what}: elements");
    let dtype = match got.dtype() {
        // Integers are exact.
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => DType::F64,
        dtype => dtype,
    };
    let pairs = got_values.iter().zip(expected).enumerate();
    let wrong: Vec<_> = pairs
        .clone()
        .filter(|(_, (got, expect))| !expect.accepts(dtype, **got))
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    let mut report = format!(
        "{what}: {} of {} elements of {:?} {:?} are wrong\n",
        wrong.len(),
        expected.len(),
        got.dtype(),
        got.shape()
    );
    for (i, (got, expect)) in wrong.iter().take(8) {
        report += &format!(
            "  [{i}] got {got:e}, expected {:e} within {:e}\n",
            expect.value, expect.bound
        );
    }
    let (worst, excess) = pairs
        .map(|(i, (got, expect))| (i, expect.excess(dtype, *got)))
        .fold((0, 0.), |a, b| if b.1 > a.1 { b } else { a });
    let error = (got_values[worst] - expected[worst].value).abs();
    panic!("{report}  worst: [{worst}], off by {error:e}, {excess:.2} times what is allowed");
}

/// Compares with values that are right to a relative error (or an absolute one, below 1e-30).
#[track_caller]
pub fn assert_close(what: &str, got: &Tensor, expected: &[f64], relative: f64) -> Result<()> {
    let expected: Vec<Expect> = expected
        .iter()
        .map(|&value| Expect {
            value,
            bound: (value.abs() * relative).max(1e-30),
        })
        .collect();
    check(what, got, &expected)
}

/// Compares with exact values.
#[track_caller]
pub fn assert_same(what: &str, got: &Tensor, expected: &[f64]) -> Result<()> {
    let expected: Vec<Expect> = expected.iter().map(|v| Expect::exactly(*v)).collect();
    check(what, got, &expected)
}

/// Compares two results bit for bit. All NaNs count as one.
#[track_caller]
pub fn assert_bits_eq(what: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    assert_eq!(a.shape(), b.shape(), "{what}: shapes");
    assert_eq!(a.dtype(), b.dtype(), "{what}: dtypes");
    // Every float converts to f64 exactly, the sign of a zero included.
    for (i, (x, y)) in values(a)?.iter().zip(values(b)?).enumerate() {
        let same = x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        assert!(same, "{what}: element {i} differs: {x:e} and {y:e}");
    }
    Ok(())
}
