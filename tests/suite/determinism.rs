//! A row's bits depend on the row alone: not on how many others there are, on where it is among
//! them, on the run, or on the tier.

use crate::common::ops::{run, sides, DTYPES};
use crate::common::*;

/// Widths of short, middling and long rows, on and off the grid.
const WIDTHS: [usize; 6] = [5, 64, 1000, 1025, 4097, 33000];

/// Calls `f` with every op and dtype over rows of every width: the row, and the side inputs.
fn for_each_row(
    device: &Device,
    f: impl Fn(&str, Op, &Tensor, &[Tensor]) -> Result<()>,
) -> Result<()> {
    for op in Op::ALL {
        for dtype in DTYPES {
            for width in WIDTHS {
                let what = format!("{} {dtype:?} {width}", op.name());
                let row = tensor(&normal(80, width), (1, width), dtype, device)?;
                f(&what, op, &row, &sides(op, width, dtype, device)?)?;
            }
        }
    }
    Ok(())
}

/// Rows that only the forced tiers run where the kernels run on the host: every tier runs them there.
fn too_long(width: usize) -> bool {
    devices::is_host_run() && width > 5000
}

/// The same row at the first, a middle and the last place of batches of every size.
fn batch_and_position(device: &Device) -> Result<()> {
    for_each_row(device, |what, op, row, sides| {
        let width = row.dim(1)?;
        if too_long(width) {
            return Ok(());
        }
        let alone = run(op, row, sides)?;
        let sizes: &[usize] = match width {
            0..=1025 if devices::at_pace(true, false, false) => &[1, 2, 31, 128, 257],
            // Making 31 of the longest rows takes longer than all else here, and it is on the GPU
            // that the number of long rows decides who works on one.
            5000.. if row.device().is_cpu() => &[1, 2, 7],
            _ => &[1, 2, 31],
        };
        let (longest, dtype) = (sizes[sizes.len() - 1], row.dtype());
        let others = tensor(
            &normal(81, longest * width),
            (longest, width),
            dtype,
            device,
        )?;
        for &size in sizes {
            let places = [0, size / 2, size - 1];
            let rows: Vec<Tensor> = (0..size)
                .map(|i| match places.contains(&i) {
                    true => Ok(row.clone()),
                    false => others.narrow(0, i, 1),
                })
                .collect::<candle_core::Result<_>>()?;
            let batch = run(op, &Tensor::cat(&rows, 0)?, sides)?;
            for place in places {
                let within = batch.narrow(0, place, 1)?;
                assert_bits_eq(&format!("{what}: {place} of {size}"), &within, &alone)?;
            }
        }
        Ok(())
    })
}

/// Rows that a kernel treats apart, side by side: short ones share a warp, and each of them takes the
/// path of its own values (huge, tiny, far from zero, constant, zeros, with an infinity, plain).
fn unlike_neighbours(device: &Device) -> Result<()> {
    for op in Op::ALL {
        for dtype in DTYPES {
            for width in [3, 20, 100, 320, 2500] {
                let plain = normal(85, width);
                let huge = if dtype == DType::F16 { 3e4 } else { 1e30 };
                let mut infinite = plain.clone();
                infinite[width / 2] = f64::NEG_INFINITY;
                let rows = [
                    plain.clone(),
                    plain.iter().map(|v| v * huge * 0.2).collect(),
                    plain.iter().map(|v| 300. + v).collect(),
                    plain.iter().map(|v| v / huge).collect(),
                    vec![7.; width],
                    vec![0.; width],
                    infinite,
                ];
                let batch = tensor(&rows.concat(), (rows.len(), width), dtype, device)?;
                let sides = sides(op, width, dtype, device)?;
                let together = run(op, &batch, &sides)?;
                for i in 0..rows.len() {
                    let alone = run(op, &batch.narrow(0, i, 1)?, &sides)?;
                    let what = format!("{} {dtype:?} {width}: row {i}", op.name());
                    assert_bits_eq(&what, &together.narrow(0, i, 1)?, &alone)?;
                }
            }
        }
    }
    Ok(())
}

/// Twenty times the same.
fn repeats(device: &Device) -> Result<()> {
    let times = devices::at_pace(20, 3, 3);
    for_each_row(device, |what, op, row, sides| {
        if too_long(row.dim(1)?) {
            return Ok(());
        }
        let batch = row.broadcast_as((7, row.dim(1)?))?.contiguous()?;
        let first = run(op, &batch, sides)?;
        for _ in 1..times {
            assert_bits_eq(what, &run(op, &batch, sides)?, &first)?;
        }
        Ok(())
    })
}

/// From many threads at once, as from one.
fn concurrent_callers(device: &Device) -> Result<()> {
    let width = 3001;
    let x = tensor(&normal(82, 9 * width), (9, width), DType::F32, device)?;
    for op in Op::ALL {
        let sides = sides(op, width, DType::F32, device)?;
        let alone = run(op, &x, &sides)?;
        let call = devices::handed_on(|| -> Result<()> {
            for _ in 0..10 {
                assert_bits_eq(op.name(), &run(op, &x, &sides)?, &alone)?;
            }
            Ok(())
        });
        std::thread::scope(|scope| -> Result<()> {
            let callers: Vec<_> = (0..4).map(|_| scope.spawn(&call)).collect();
            for caller in callers {
                caller.join().expect("a caller panicked")?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// A gradient's bits do not change from run to run either.
fn gradients_repeat(device: &Device) -> Result<()> {
    let op = Op::LayerNorm { eps: 1e-5 };
    let x = Var::from_tensor(&tensor(
        &normal(83, 700 * 65),
        (700, 65),
        DType::BF16,
        device,
    )?)?;
    let sides: Vec<Var> = sides(op, 65, DType::BF16, device)?
        .iter()
        .map(Var::from_tensor)
        .collect::<candle_core::Result<_>>()?;
    let vars = [&x, &sides[0], &sides[1]];
    let tracked: Vec<Tensor> = sides.iter().map(|v| v.as_tensor().clone()).collect();
    let gradients = || -> Result<Vec<Tensor>> {
        let grads = run(op, x.as_tensor(), &tracked)?
            .sqr()?
            .sum_all()?
            .backward()?;
        let grads = vars.map(|v| grads.get(v.as_tensor()).cloned());
        Ok(grads.into_iter().flatten().collect())
    };
    let first = gradients()?;
    assert_eq!(first.len(), 3);
    for _ in 0..5 {
        for (again, first) in gradients()?.iter().zip(&first) {
            assert_bits_eq("gradient", again, first)?;
        }
    }
    Ok(())
}

on_devices! {
    batch_and_position: batch_and_position_cpu, batch_and_position_cuda;
    unlike_neighbours: unlike_neighbours_cpu, unlike_neighbours_cuda;
    repeats: repeats_cpu, repeats_cuda;
    concurrent_callers: concurrent_callers_cpu, concurrent_callers_cuda;
    gradients_repeat: gradients_repeat_cpu, gradients_repeat_cuda;
}

/// The CPU has no tiers to force; its parallelism is what could change bits.
#[test]
fn thread_counts_cpu() -> Result<()> {
    for_each_row(&Device::Cpu, |what, op, row, sides| {
        let batch = row.broadcast_as((5, row.dim(1)?))?.contiguous()?;
        let expected = run(op, &batch, sides)?;
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()?;
            let got = pool.install(|| run(op, &batch, sides))?;
            assert_bits_eq(&format!("{what}: {threads} threads"), &got, &expected)?;
        }
        Ok(())
    })
}

#[cfg(any(feature = "cuda", feature = "host-kernels"))]
mod tiers {
    use anyhow::Context;
    use candle_rowwise::plan::{with_tier, Tier};

    use super::*;
    use crate::common::ops::forced;

    /// Every tier that takes the problem gives the bits of the one that is chosen for it.
    fn forced_tiers(device: &Device) -> Result<()> {
        for_each_row(device, |what, op, row, sides| {
            let rows = if devices::is_host_run() { 3 } else { 37 };
            let batch = row.broadcast_as((rows, row.dim(1)?))?.contiguous()?;
            let chosen = run(op, &batch, sides)?;
            let mut ran = 0;
            for tier in Tier::ALL {
                if let Some(got) =
                    forced(tier, || run(op, &batch, sides)).context(what.to_string())?
                {
                    ran += 1;
                    assert_bits_eq(&format!("{what}: {tier:?}"), &got, &chosen)?;
                }
            }
            assert!(ran > 0, "{what}: no tier could be forced");
            Ok(())
        })
    }

    /// The gradients, which run ops of their own, as well.
    fn forced_tiers_backward(device: &Device) -> Result<()> {
        let (rows, width) = (if devices::is_host_run() { 3 } else { 33 }, 12_345);
        let x = tensor(&normal(84, rows * width), (rows, width), DType::F32, device)?;
        let gradient = || -> candle_core::Result<Tensor> {
            let leaf = Var::from_tensor(&x)?;
            let y = candle_rowwise::ops::softmax(leaf.as_tensor(), 1)?;
            let grads = y.sqr()?.sum_all()?.backward()?;
            let grad = grads.get(leaf.as_tensor()).cloned();
            grad.ok_or_else(|| candle_core::Error::msg("no gradient"))
        };
        let chosen = gradient()?;
        // Long enough for every tier of contiguous rows but the serial one.
        for tier in [Tier::Warp, Tier::Block, Tier::Cluster, Tier::SplitK] {
            let got = with_tier(tier, gradient)?;
            assert_bits_eq(&format!("{tier:?}"), &got, &chosen)?;
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn forced_tiers_cuda() -> Result<()> {
        match devices::cuda("forced_tiers_cuda") {
            Some(device) => forced_tiers(device),
            None => Ok(()),
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn forced_tiers_backward_cuda() -> Result<()> {
        match devices::cuda("forced_tiers_backward_cuda") {
            Some(device) => forced_tiers_backward(device),
            None => Ok(()),
        }
    }

    #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
    mod host_run {
        use super::*;

        #[test]
        fn forced_tiers() -> Result<()> {
            devices::on_host_run(super::forced_tiers)
        }

        #[test]
        fn forced_tiers_backward() -> Result<()> {
            devices::on_host_run(super::forced_tiers_backward)
        }
    }
}
