//! The cases of special values, by their names in the list of cases.

use super::*;

#[test]
fn p01_softmax_of_half_sums_wide() {
    for (n, dtype) in [
        (4096, DType::F16),
        (512, DType::BF16),
        (262_144, DType::BF16),
    ] {
        let x = vec![0.0; n];
        let want = 1.0 / n as f64;
        assert!(plain(Op::Softmax, &x, n, dtype).iter().all(|v| *v == want));
    }
    let log = plain(Op::LogSoftmax, &vec![0.0; 4096], 4096, DType::F16);
    assert!(log.iter().all(|v| *v == -8.3203125));
}

#[test]
fn p02_p03_sums_do_not_stall() {
    assert_eq!(plain(Op::Sum, &vec![1.0; 4096], 4096, DType::F16), [4096.0]);
    assert_eq!(
        plain(Op::Sum, &vec![1.0; 70000], 70000, DType::BF16),
        [70144.0]
    );
    let overflow = plain(Op::Sum, &vec![1.0; 65520], 65520, DType::F16);
    assert_eq!(overflow, [f64::INFINITY]);
    let n = 17 << 20;
    assert_eq!(plain(Op::Sum, &vec![1.0; n], n, DType::F32), [17825792.0]);
}

#[test]
fn p05_small_eps_and_constant_rows() {
    for dtype in DTYPES {
        let rms = |x: &[f64], eps| plain(Op::RmsNorm { eps }, x, 8, dtype);
        let layer = |x: &[f64], eps| plain(Op::LayerNorm { eps }, x, 8, dtype);
        assert_eq!(rms(&[0.0; 16], 1e-12), [0.0; 16]);
        assert_eq!(layer(&[0.0; 16], 1e-12), [0.0; 16]);
        assert_eq!(layer(&[3.0; 16], 1e-12), [0.0; 16]);
        let small = rms(&[2f64.powi(-12); 8], 1e-6);
        assert!((small[0] - 0.23717457).abs() <= ulp(0.237, dtype).max(1e-8));
    }
    // No multiple of these is exact, whatever the order of summation.
    for n in [3, 7, 100, 1000, 5003] {
        for value in [0.1, 1234.567, -3e7, 1e-12] {
            let inputs = Inputs::new(&vec![value; n], n, DType::F32);
            let got = to_f64(&inputs.run(Op::LayerNorm { eps: 1e-12 }));
            assert_eq!(got, to_f64(&inputs.bias), "{n} times {value}");
        }
    }
}

#[test]
fn p06_log_softmax_of_large_logits() {
    let got = plain(Op::LogSoftmax, &[1e8, 1e8], 2, DType::F32);
    assert!(got
        .iter()
        .all(|v| (v + std::f64::consts::LN_2).abs() < 1e-7));
    let got = plain(Op::LogSoftmax, &[-1e7, -1e7, -1e7 + 1.0], 3, DType::F32);
    for (got, want) in got.iter().zip([-1.55144471, -1.55144471, -0.55144471]) {
        assert!((got - want).abs() < 2e-7, "{got}");
    }
}

#[test]
fn v01_layer_norm_of_values_far_from_zero() {
    let op = Op::LayerNorm { eps: 1e-5 };
    for (m, want) in [
        (0.0, -1.3416408),
        (100.0, -1.3415277),
        (1000.0, -1.3415078),
        (10000.0, -1.3313334),
    ] {
        let x: Vec<f64> = (0..16).map(|i| m + i as f64 * 1e-3).collect();
        let got = plain(op, &x, 16, DType::F32)[0];
        assert!((got - want).abs() < 3e-7, "{m}: {got}");
    }
    for m in [40000.0, 80000.0] {
        let got = plain(op, &[m, m + 1.0, m + 2.0, m + 3.0], 4, DType::F32);
        for (got, want) in got
            .iter()
            .zip([-1.3416354, -0.4472118, 0.4472118, 1.3416354])
        {
            assert!((got - want).abs() < 2e-7, "{got}");
        }
    }
    assert_eq!(plain(op, &[1234.0; 256], 256, DType::F32), [0.0; 256]);
}

#[test]
fn v02_norms_of_huge_and_tiny_values() {
    let layer = [-1.3416408, -0.4472136, 0.4472136, 1.3416408];
    let rms = [0.36514838, 0.73029675, 1.0954451, 1.4605935];
    let check = |op, x: &[f64], want: &[f64], dtype| {
        let got = plain(op, x, x.len(), dtype);
        for (got, want) in got.iter().zip(want) {
            let tolerance = 3e-7f64.max(ulp(*want, dtype));
            assert!(
                (got - want).abs() <= tolerance,
                "{op:?} {x:?} {dtype:?}: {got}"
            );
        }
    };
    let huge = |scale: f64| [1.0, 2.0, 3.0, 4.0].map(|v| v * scale);
    for (scale, dtype) in [
        (1e30, DType::F32),
        (8e37, DType::F32),
        (1e30, DType::BF16),
        (1e200, DType::F64),
        (4e307, DType::F64),
    ] {
        if dtype != DType::BF16 {
            check(Op::LayerNorm { eps: 1e-5 }, &huge(scale), &layer, dtype);
        }
        check(Op::RmsNorm { eps: 1e-5 }, &huge(scale), &rms, dtype);
    }
    // Without eps to drown them.
    for (scale, dtype) in [
        (1e-30, DType::F32),
        (2f64.powi(-140), DType::F32),
        (1e-200, DType::F64),
        // 2^-1060, which `powi` underflows on its way to.
        (f64::from_bits(1 << 14), DType::F64),
    ] {
        check(Op::LayerNorm { eps: 0.0 }, &huge(scale), &layer, dtype);
        check(Op::RmsNorm { eps: 0.0 }, &huge(scale), &rms, dtype);
    }
    let mixed = [1e25, -1e25, 2e25, 0.0];
    let want = [0.81649658, -0.81649658, 1.6329932, 0.0];
    check(Op::RmsNorm { eps: 1e-6 }, &mixed, &want, DType::F32);
}

#[test]
fn norms_of_rows_with_infinities_and_nan() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for dtype in DTYPES {
        let rms = plain(Op::RmsNorm { eps: 1e-6 }, &[inf, 1.0, -2.0], 3, dtype);
        assert!(rms[0].is_nan() && rms[1] == 0.0 && rms[2] == 0.0, "{rms:?}");
        for special in [inf, -inf, nan] {
            let layer = plain(Op::LayerNorm { eps: 1e-6 }, &[special, 1.0, -2.0], 3, dtype);
            assert!(layer.iter().all(|v| v.is_nan()), "{layer:?}");
        }
        let rms = plain(Op::RmsNorm { eps: 1e-6 }, &[nan, 1.0, -2.0], 3, dtype);
        assert!(rms.iter().all(|v| v.is_nan()), "{rms:?}");
    }
}

#[test]
fn s01_softmax_of_nan_and_infinities_at_any_length() {
    let inf = f64::INFINITY;
    for n in [1, 2, 31, 32, 33, 127, 128, 1024, 1025, 8192, 70000] {
        for dtype in [DType::BF16, DType::F32, DType::F64] {
            for op in [Op::Softmax, Op::LogSoftmax] {
                let all_nan = |x: &[f64]| plain(op, x, n, dtype).iter().all(|v| v.is_nan());
                assert!(all_nan(&vec![-inf; n]), "{op:?} {n} -inf");
                for at in [0, n / 2, n - 1] {
                    for special in [inf, f64::NAN] {
                        let mut x: Vec<f64> = (0..n).map(h).collect();
                        x[at] = special;
                        assert!(all_nan(&x), "{op:?} {dtype:?} {n}: {special} at {at}");
                    }
                }
            }
        }
    }
}

#[test]
fn s03_logsumexp_of_infinities() {
    let inf = f64::INFINITY;
    for dtype in DTYPES {
        let lse = |x: &[f64]| plain(Op::LogSumExp, x, x.len(), dtype)[0];
        assert_eq!(lse(&[inf, 2.0, 3.0]), inf);
        assert_eq!(lse(&[-inf, -inf]), -inf);
        assert_eq!(lse(&[100.0, 0.0]), 100.0);
        assert_eq!(lse(&[3.25]), 3.25);
        assert!(lse(&[inf, f64::NAN]).is_nan());
        assert!((lse(&[-100.0, -100.0]) + 99.3068528).abs() <= ulp(99.3, dtype).max(1e-7));
    }
}

#[test]
fn s04_extrema_start_from_true_infinities() {
    for n in [1, 10, 100_000] {
        for dtype in DTYPES {
            for value in [f64::NEG_INFINITY, f64::INFINITY] {
                assert_eq!(plain(Op::Max, &vec![value; n], n, dtype), [value]);
                assert_eq!(plain(Op::ArgMax, &vec![value; n], n, dtype), [0.0]);
            }
        }
    }
}

#[test]
fn s05_nan_wins_and_the_first_is_found() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for dtype in DTYPES {
        let arg = |x: &[f64]| plain(Op::ArgMax, x, x.len(), dtype)[0];
        assert!(plain(Op::Max, &[3.0, nan, 1.0, 5.0], 4, dtype)[0].is_nan());
        assert_eq!(arg(&[3.0, nan, 1.0, 5.0]), 1.0);
        assert_eq!(arg(&[inf, nan, -inf]), 1.0);
        for n in [400, 4000, 100_000] {
            let mut x: Vec<f64> = (0..n).map(h).collect();
            x[77] = nan;
            assert_eq!(arg(&x), 77.0);
            x[0] = nan;
            assert_eq!(arg(&x), 0.0);
        }
        let mut x: Vec<f64> = (0..1027).map(h).collect();
        x[1026] = nan;
        assert_eq!(arg(&x), 1026.0);
    }
}

#[test]
fn s06_rows_that_begin_with_minus_infinity() {
    let inf = f64::INFINITY;
    let mut x = vec![-inf; 8192];
    for (k, v) in x.iter_mut().enumerate().skip(6144) {
        *v = h(k);
    }
    let got = plain(Op::Softmax, &x, 8192, DType::F32);
    assert!(got[..6144].iter().all(|v| *v == 0.0));
    assert!((got.iter().sum::<f64>() - 1.0).abs() < 1e-6);
    let mut x = vec![-inf; 70000];
    x[69999] = 1.5;
    let got = plain(Op::Softmax, &x, 70000, DType::F32);
    assert!(got[..69999].iter().all(|v| *v == 0.0) && got[69999] == 1.0);
    assert_eq!(plain(Op::LogSumExp, &x, 70000, DType::F32), [1.5]);
    let log = plain(Op::LogSoftmax, &x, 70000, DType::F32);
    assert!(log[..69999].iter().all(|v| *v == -inf) && log[69999] == 0.0);
}

#[test]
fn t01_ties_go_to_the_lowest_index() {
    for dtype in DTYPES {
        let arg = |x: &[f64]| plain(Op::ArgMax, x, x.len(), dtype)[0];
        assert_eq!(arg(&[1.0; 4]), 0.0);
        assert_eq!(arg(&[0.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(arg(&[1.0, 5.0, 5.0, 3.0]), 1.0);
        assert_eq!(arg(&[2.0; 16]), 0.0);
        assert_eq!(arg(&[-0.0, 0.0]), 0.0);
        assert_eq!(arg(&[0.0, -0.0]), 0.0);
    }
    let mut x = vec![0.0; 1_000_000];
    for at in [5, 500_001, 999_999] {
        x[at] = 7.0;
    }
    assert_eq!(plain(Op::ArgMax, &x, 1_000_000, DType::F32), [5.0]);
}

#[test]
fn t02_rows_of_one_element() {
    let x: Vec<f64> = (0..32768).map(h).collect();
    for dtype in DTYPES {
        for op in [Op::Sum, Op::Max, Op::LogSumExp] {
            assert_eq!(plain(op, &x, 1, dtype), x, "{op:?} {dtype:?}");
        }
        assert_eq!(plain(Op::ArgMax, &x, 1, dtype), vec![0.0; x.len()]);
        assert_eq!(plain(Op::Softmax, &x, 1, dtype), vec![1.0; x.len()]);
        assert_eq!(plain(Op::LogSoftmax, &x, 1, dtype), vec![0.0; x.len()]);
    }
    let zero = bits(&Inputs::plain(&[-0.0], 1, DType::F32).run(Op::Sum));
    assert_eq!(zero, [(-0.0f32).to_bits() as u64], "a sum of -0.0 is -0.0");
}
