//! T: ties, and axes of length one.

use candle_rowwise::ops;

use super::{gradient_of, var};
use crate::common::data::h_values;
use crate::common::ops::{Over, DTYPES};
use crate::common::*;

/// Ties go to the lowest index, and zeros of both signs tie.
fn t01(device: &Device) -> Result<()> {
    let mut long = vec![0.; 1_000_000];
    for place in [5, 500_001, 999_999] {
        long[place] = 7.;
    }
    let rows: [(Vec<f64>, f64); 7] = [
        (vec![1., 1., 1., 1.], 0.),
        (vec![0., 1., 1., 1.], 1.),
        (vec![1., 5., 5., 3.], 1.),
        (vec![2.; 16], 0.),
        (vec![-0., 0.], 0.),
        (vec![0., -0.], 0.),
        (long, 5.),
    ];
    for dtype in DTYPES {
        for (row, index) in &rows {
            let x = tensor(row, row.len(), dtype, device)?;
            let what = format!("{dtype:?} {}", row.len());
            assert_same(&what, &ops::argmax(&x, 0)?, &[*index])?;
            assert_same(&what, &ops::argmin(&x.neg()?, 0)?, &[*index])?;
        }
    }
    Ok(())
}

/// An axis of length one is not folded away.
fn t02(device: &Device) -> Result<()> {
    let cases: [((usize, usize), usize); 5] = [
        ((32768, 1), 1),
        ((1, 32768), 0),
        ((32, 1), 1),
        ((1, 3), 0),
        ((100_003, 1), 1),
    ];
    for (shape, dim) in cases {
        let n = shape.0 * shape.1;
        let x = h_values(n);
        // The function, its value at x, its derivative.
        let functions: [(&str, Over<usize>, Vec<f64>, f64); 9] = [
            ("sum", ops::sum, x.clone(), 1.),
            ("mean", ops::mean, x.clone(), 1.),
            ("prod", ops::prod, x.clone(), 1.),
            ("max", ops::max, x.clone(), 1.),
            ("min", ops::min, x.clone(), 1.),
            ("var", |x, dim| ops::var(x, dim, 0), vec![0.; n], 0.),
            ("logsumexp", ops::logsumexp, x.clone(), 1.),
            ("softmax", ops::softmax, vec![1.; n], 0.),
            ("log_softmax", ops::log_softmax, vec![0.; n], 0.),
        ];
        for (name, function, value, slope) in functions {
            let what = format!("{name} of {shape:?} over {dim}");
            let leaf = var(&x, shape, DType::F32, device)?;
            let y = function(leaf.as_tensor(), dim)?;
            assert_same(&what, &y, &value)?;
            let g = tensor(&h_values(n), y.shape(), DType::F32, device)?;
            let grads = (y * g)?.sum_all()?.backward()?;
            let expected: Vec<f64> = h_values(n).iter().map(|g| slope * g).collect();
            assert_same(&what, &gradient_of(&grads, &leaf), &expected)?;
        }
        let leaf = tensor(&x, shape, DType::F32, device)?;
        let index = ops::argmax(&leaf, dim)?;
        assert_same("argmax", &index, &vec![0.; n])?;
        assert_same("argmin", &ops::argmin(&leaf, dim)?, &vec![0.; n])?;
    }
    Ok(())
}

on_devices! {
    t01: t01_cpu, t01_cuda;
    t02: t02_cpu, t02_cuda;
}
