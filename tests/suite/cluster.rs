//! Exchanges within clusters: every rank's copy has the bits of a fold in the order of the ranks, on
//! every device.

use candle_rowwise::ops::{cluster_allgather, cluster_allreduce, ClusterCombine};

use crate::common::*;
use crate::errors::assert_error;

const DTYPES: [DType; 3] = [DType::F32, DType::I32, DType::U32];

/// Words whose sums overflow, round, and depend on their order; with every kind of float among them.
fn words(dtype: DType, n: usize) -> Vec<u32> {
    let mut state = 0x2545_f491u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0., -0., 1e-40];
    (0..n)
        .map(|k| match dtype {
            DType::F32 if k % 13 == 5 => special[(next() % 6) as usize].to_bits(),
            // Magnitudes of 2^-8 to 2^8.
            DType::F32 => (next() & 0x807f_ffff) | ((119 + next() % 16) << 23),
            _ => next() >> (next() % 32),
        })
        .collect()
}

/// A tensor of these bits.
fn tensor_of(words: &[u32], shape: [usize; 3], dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.to_vec();
    Ok(match dtype {
        DType::F32 => {
            let floats: Vec<f32> = words.iter().map(|w| f32::from_bits(*w)).collect();
            Tensor::from_vec(floats, shape, device)?
        }
        DType::I32 => {
            let integers: Vec<i32> = words.iter().map(|w| *w as i32).collect();
            Tensor::from_vec(integers, shape, device)?
        }
        _ => Tensor::from_vec(words.to_vec(), shape, device)?,
    })
}

/// The bits of a tensor.
fn words_of(t: &Tensor) -> Result<Vec<u32>> {
    let t = t.to_device(&Device::Cpu)?.flatten_all()?;
    Ok(match t.dtype() {
        DType::F32 => t.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect(),
        DType::I32 => t.to_vec1::<i32>()?.into_iter().map(|v| v as u32).collect(),
        _ => t.to_vec1()?,
    })
}

/// Two values combined, bit for bit.
fn combined(combine: ClusterCombine, dtype: DType, a: u32, b: u32) -> u32 {
    let (x, y) = (f32::from_bits(a), f32::from_bits(b));
    match (dtype, combine) {
        (DType::F32, _) if x.is_nan() || y.is_nan() => f32::NAN.to_bits(),
        (DType::F32, ClusterCombine::Add) => (x + y).to_bits(),
        // The order of all floats but NaN, with -0 below +0.
        (DType::F32, ClusterCombine::Max) if x.total_cmp(&y).is_lt() => b,
        (DType::F32, ClusterCombine::Min) if x.total_cmp(&y).is_gt() => b,
        (DType::F32, _) => a,
        (_, ClusterCombine::Add) => a.wrapping_add(b),
        (DType::I32, ClusterCombine::Max) => (a as i32).max(b as i32) as u32,
        (DType::I32, _) => (a as i32).min(b as i32) as u32,
        (_, ClusterCombine::Max) => a.max(b),
        (..) => a.min(b),
    }
}

/// One NaN for all: what combining leaves of a value.
fn canonical(dtype: DType, word: u32) -> u32 {
    match dtype {
        DType::F32 if f32::from_bits(word).is_nan() => f32::NAN.to_bits(),
        _ => word,
    }
}

/// What an exchange of vectors gives; `None` gathers.
fn expected(
    combine: Option<ClusterCombine>,
    dtype: DType,
    x: &[u32],
    [_, ranks, width]: [usize; 3],
) -> Vec<u32> {
    let of_cluster = |x: &[u32]| -> Vec<u32> {
        let Some(combine) = combine else {
            return x.to_vec();
        };
        let vectors = x.chunks(width).map(<[u32]>::to_vec);
        let folded = vectors.reduce(|a, b| {
            let pairs = a.iter().zip(&b);
            pairs
                .map(|(a, b)| combined(combine, dtype, *a, *b))
                .collect()
        });
        let folded = folded.unwrap_or_default();
        folded.iter().map(|w| canonical(dtype, *w)).collect()
    };
    x.chunks(ranks * width)
        .flat_map(|x| of_cluster(x).repeat(ranks))
        .collect()
}

/// The exchanges: every combine, and the gather.
fn exchanges() -> Vec<Option<ClusterCombine>> {
    let combines = ClusterCombine::ALL.into_iter().map(Some);
    combines.chain([None]).collect()
}

fn run(combine: Option<ClusterCombine>, x: &Tensor) -> candle_core::Result<Tensor> {
    match combine {
        Some(combine) => cluster_allreduce(x, combine),
        None => cluster_allgather(x),
    }
}

fn assert_words(what: &str, got: &Tensor, expected: &[u32]) -> Result<()> {
    let got = words_of(got)?;
    assert_eq!(got.len(), expected.len(), "{what}: elements");
    let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(i) = wrong {
        panic!(
            "{what}: element {i} is {:#x}, not {:#x}",
            got[i], expected[i]
        );
    }
    Ok(())
}

/// Every size of cluster, widths on both sides of what is exchanged at once.
fn every_size_and_width(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        for ranks in 1..=16 {
            if devices::is_sanitized() && ![1, 2, 3, 8, 16].contains(&ranks) {
                continue;
            }
            let widths: &[usize] = devices::at_pace(
                &[1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 23, 67],
                &[1, 3, 67],
                &[1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 23, 67],
            );
            for &width in widths {
                let shape = [3, ranks, width];
                let x = words(dtype, 3 * ranks * width);
                let t = tensor_of(&x, shape, dtype, device)?;
                for combine in exchanges() {
                    let what = format!("{combine:?} {dtype:?} {shape:?}");
                    let y = run(combine, &t)?;
                    assert_eq!(y.dtype(), dtype, "{what}");
                    let per_rank = if combine.is_some() {
                        width
                    } else {
                        ranks * width
                    };
                    assert_eq!(y.dims(), [3, ranks, per_rank], "{what}");
                    assert_words(&what, &y, &expected(combine, dtype, &x, shape))?;
                }
            }
        }
    }
    Ok(())
}

/// More clusters than fit on a device at once.
fn many_clusters(device: &Device) -> Result<()> {
    let shape = [devices::at_pace(5000, 500, 5000), 4, 6];
    for dtype in DTYPES {
        let x = words(dtype, shape.iter().product());
        let t = tensor_of(&x, shape, dtype, device)?;
        for combine in exchanges() {
            let what = format!("{combine:?} {dtype:?}");
            assert_words(
                &what,
                &run(combine, &t)?,
                &expected(combine, dtype, &x, shape),
            )?;
        }
    }
    Ok(())
}

/// Strides are taken as they are, of every dtype.
fn layouts(device: &Device) -> Result<()> {
    for dtype in DTYPES {
        let x = words(dtype, 4 * 6 * 10);
        let t = tensor_of(&x, [4, 6, 10], dtype, device)?;
        let host = tensor_of(&x, [4, 6, 10], dtype, &Device::Cpu)?;
        let views: [fn(&Tensor) -> candle_core::Result<Tensor>; 4] = [
            |t| t.narrow(0, 1, 2)?.narrow(1, 2, 3)?.narrow(2, 1, 9),
            |t| t.transpose(1, 2),
            |t| t.permute((2, 0, 1)),
            |t| t.narrow(1, 3, 1)?.broadcast_as((4, 8, 10)),
        ];
        for (i, view) in views.iter().enumerate() {
            let packed = view(&host)?.contiguous()?;
            let shape: [usize; 3] = std::array::from_fn(|i| packed.dims()[i]);
            let x = words_of(&packed)?;
            for combine in exchanges() {
                let what = format!("view {i} {combine:?} {dtype:?}");
                let y = run(combine, &view(&t)?)?;
                assert!(y.is_contiguous(), "{what}");
                assert_words(&what, &y, &expected(combine, dtype, &x, shape))?;
            }
        }
    }
    Ok(())
}

/// The sum adds the upstream gradients of all ranks up; an extremum gives that to the ranks that hold
/// it; a gather adds up the gradients of a vector's copies.
fn gradients(device: &Device) -> Result<()> {
    let x = Var::new(&[[[1f32, 7.], [3., 7.], [2., 5.]]], device)?;
    let weights = Tensor::new(&[[[1f32, 10.], [2., 20.], [3., 30.]]], device)?;
    for (combine, expected) in [
        (ClusterCombine::Add, [6., 60., 6., 60., 6., 60.]),
        (ClusterCombine::Max, [0., 30., 6., 30., 0., 0.]),
        (ClusterCombine::Min, [6., 0., 0., 0., 0., 60.]),
    ] {
        let y = cluster_allreduce(x.as_tensor(), combine)?;
        let grads = (y * &weights)?.sum_all()?.backward()?;
        let dx = grads.get(x.as_tensor()).expect("a gradient");
        assert_same(&format!("{combine:?}"), dx, &expected)?;
    }
    let y = cluster_allgather(x.as_tensor())?;
    let weights: Vec<f64> = (0..18).map(f64::from).collect();
    let weights = tensor(&weights, (1, 3, 6), DType::F32, device)?;
    let grads = (y * &weights)?.sum_all()?.backward()?;
    let dx = grads.get(x.as_tensor()).expect("a gradient");
    assert_same("gather", dx, &[18., 21., 24., 27., 30., 33.])?;
    // Of integers there is none, and of nothing it is nothing.
    let integers = Var::new(&[[[1u32], [2]]], device)?;
    for combine in exchanges() {
        assert!(!run(combine, integers.as_tensor())?.track_op());
        let nothing = Var::zeros((0, 2, 3), DType::F32, device)?;
        let grads = run(combine, nothing.as_tensor())?.sum_all()?.backward()?;
        assert_eq!(
            grads.get(nothing.as_tensor()).expect("a gradient").dims(),
            [0, 2, 3]
        );
    }
    Ok(())
}

fn name(combine: Option<ClusterCombine>) -> &'static str {
    match combine {
        Some(_) => "cluster-allreduce",
        None => "cluster-allgather",
    }
}

fn errors(device: &Device) -> Result<()> {
    for combine in exchanges() {
        let name = name(combine);
        for shape in [&[][..], &[3], &[2, 3], &[1, 2, 3, 4]] {
            let x = Tensor::zeros(shape, DType::F32, device)?;
            let shown = format!("{shape:?}");
            assert_error(run(combine, &x), &[name, &shown, "three dims"]);
        }
        for dtype in [DType::F16, DType::F64, DType::U8, DType::I64] {
            let x = Tensor::zeros((1, 2, 3), dtype, device)?;
            let shown = format!("{dtype:?}");
            let parts = [name, &shown, "[1, 2, 3]", "f32, i32, u32"];
            assert_error(run(combine, &x), &parts);
        }
        for ranks in [0, 17, 1000] {
            for (clusters, width) in [(2, 3), (0, 3), (2, 0)] {
                let x = Tensor::zeros((clusters, ranks, width), DType::F32, device)?;
                let size = format!("clusters of {ranks} blocks");
                let shown = format!("{:?}", x.dims());
                assert_error(run(combine, &x), &[name, &size, &shown, "1 to "]);
            }
        }
        for shape in [(0, 4, 3), (2, 4, 0)] {
            let y = run(combine, &Tensor::zeros(shape, DType::U32, device)?)?;
            assert_eq!(y.elem_count(), 0);
        }
    }
    Ok(())
}

on_devices! {
    every_size_and_width: every_size_and_width_cpu, every_size_and_width_cuda;
    many_clusters: many_clusters_cpu, many_clusters_cuda;
    layouts: layouts_cpu, layouts_cuda;
    gradients: gradients_cpu, gradients_cuda;
    errors: errors_cpu, errors_cuda;
}

/// A thousand exchanges in one launch, each of other values, with one rank late from the start and
/// another slow to leave: none reads what another one has left, and none leaves while it is read.
#[cfg(feature = "cuda")]
#[test]
fn a_thousand_in_a_row_cuda() -> Result<()> {
    use candle_rowwise::ops::{cluster_trial, Trial};
    let repeats = devices::at_pace(1000, 20, 20);
    let Some(device) = devices::cuda("a_thousand_in_a_row_cuda") else {
        return Ok(());
    };
    for (ranks, width) in [(1, 3), (2, 1), (4, 6), (5, 8), (8, 4), (16, 7), (16, 13)] {
        for dtype in DTYPES {
            let shape = [2, ranks, width];
            let x: Vec<u32> = words(dtype, 2 * ranks * width)
                .into_iter()
                // Of a NaN, other bits may be no NaN.
                .map(|w| {
                    if f32::from_bits(w).is_finite() {
                        w
                    } else {
                        0x3f80_0000
                    }
                })
                .collect();
            let t = tensor_of(&x, shape, dtype, device)?;
            for combine in exchanges() {
                let mut all = vec![0; expected(combine, dtype, &x, shape).len()];
                for k in 0..repeats {
                    let varied: Vec<u32> = x.iter().map(|w| w ^ k).collect();
                    for (all, word) in all.iter_mut().zip(expected(combine, dtype, &varied, shape))
                    {
                        *all ^= word;
                    }
                }
                for single_slot in [false, true] {
                    for (late, lingering) in [(0, ranks - 1), (ranks - 1, 0)] {
                        let trial = Trial {
                            repeats,
                            single_slot,
                            late_rank: Some(late),
                            lingering_rank: Some(lingering),
                            spin_cycles: 1 << devices::at_pace(20, 8, 20),
                        };
                        let y = cluster_trial(&t, combine, trial)?;
                        let what = format!("{combine:?} {dtype:?} {shape:?} {trial:?}");
                        assert_words(&what, &y, &all)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// A device is asked for no more than it runs, or is said to run.
#[cfg(feature = "cuda")]
#[test]
fn limits_cuda() -> Result<()> {
    use candle_rowwise::plan::{with_limits, DeviceLimits};
    let Some(device) = devices::cuda("limits_cuda") else {
        return Ok(());
    };
    let x = Tensor::zeros((1, 4, 3), DType::F32, device)?;
    for combine in exchanges() {
        for (max_cluster, runs) in [(1, false), (2, false), (4, true)] {
            let limits = DeviceLimits {
                max_cluster,
                ..DeviceLimits::H200
            };
            let y = with_limits(limits, || run(combine, &x));
            if runs {
                assert_eq!(y?.dim(1)?, 4);
            } else {
                let limit = format!("1 to {max_cluster}");
                assert_error(y, &[name(combine), "clusters of 4 blocks", &limit]);
            }
        }
    }
    Ok(())
}
