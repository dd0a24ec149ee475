//! The soft cap of logits.

use crate::engine::Float;

/// `cap * tanh(x / cap)`, and its derivative.
///
/// With `e = exp(-2|u|)`, `tanh|u| = (1 - e) / (1 + e)`, and its derivative `4e / (1 + e)^2`. Near 0,
/// where `1 - e` loses digits, its Taylor series: the first term left out is below 2^-55 of the first.
#[inline(always)]
pub(super) fn soft_capped<A: Float>(x: A, cap: A) -> (A, A) {
    const SERIES: [f64; 10] = [
        18888466084.0 / 194896477400625.0,
        -443861162.0 / 1856156927625.0,
        6404582.0 / 10854718875.0,
        -929569.0 / 638512875.0,
        21844.0 / 6081075.0,
        -1382.0 / 155925.0,
        62.0 / 2835.0,
        -17.0 / 315.0,
        2.0 / 15.0,
        -1.0 / 3.0,
    ];
    let u = x.div(cap);
    let magnitude = u.abs();
    let e = magnitude.mul(A::from_f64(-2.0)).exp();
    let inverse = A::ONE.div(A::ONE.add(e));
    let square = u.mul(u);
    let mut series = A::from_f64(SERIES[0]);
    for term in &SERIES[1..] {
        series = series.mul_add(square, A::from_f64(*term));
    }
    let near = u.mul(series.mul_add(square, A::ONE));
    let far = A::ONE.sub(e).mul(inverse);
    let far = if u < A::ZERO { A::ZERO.sub(far) } else { far };
    let bent = if magnitude < A::from_f64(0.25) {
        near
    } else {
        far
    };
    let slope = A::from_f64(4.0).mul(e).mul(inverse).mul(inverse);
    (bent.mul(cap), slope)
}
