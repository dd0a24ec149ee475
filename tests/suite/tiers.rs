//! Every tier, at the widths where the planner changes its mind, and for the devices that plans differ
//! on: the bits are those of the tier that is chosen.

use candle_core::Layout;
use candle_rowwise::plan::{with_limits, with_tier, DeviceLimits, Plan, Tier};
use candle_rowwise::problem::Problem;

use anyhow::Context;

use crate::common::ops::{forced, run, sides, suited, DTYPES};
use crate::common::*;

/// What decides how a row is cut and who owns it.
type Cut = (Tier, usize, usize, usize);

fn cut(op: Op, dtype: DType, rows: usize, width: usize) -> Cut {
    let side = Layout::contiguous(width);
    let sides = vec![Some((&side, dtype)); op.operands().len()];
    let problem = Problem::new(op, &Layout::contiguous((rows, width)), dtype, &sides).unwrap();
    let plan = Plan::select(&problem, &DeviceLimits::H200).unwrap();
    // Blocks have as many warps as the row has chunks: that they grow is no change of mind.
    let shared = match plan.tier {
        Tier::Cluster => plan.row_blocks,
        _ => plan.unit,
    };
    (plan.tier, plan.vectors, plan.lanes, shared)
}

/// The widths up to `most` after which the plan is another.
fn boundaries(op: Op, dtype: DType, rows: usize, most: usize) -> Vec<usize> {
    let cut = |width| cut(op, dtype, rows, width);
    let mut found = Vec::new();
    let mut low = 1;
    while low < most {
        let high = (2 * low).min(most);
        // Between two samples there may be several changes.
        while cut(low) != cut(high) {
            let (mut same, mut other) = (low, high);
            while other - same > 1 {
                let middle = (same + other) / 2;
                match cut(middle) == cut(low) {
                    true => same = middle,
                    false => other = middle,
                }
            }
            found.push(same);
            low = other;
        }
        low = high.max(low + 1);
    }
    found
}

/// Forces each tier that takes the problem; answers which did.
fn same_on_every_tier(what: &str, op: Op, x: &Tensor, sides: &[Tensor]) -> Result<Vec<Tier>> {
    let chosen = run(op, x, sides)?;
    let mut ran = Vec::new();
    for tier in Tier::ALL {
        if let Some(got) = forced(tier, || run(op, x, sides)).context(what.to_string())? {
            ran.push(tier);
            assert_bits_eq(&format!("{what}: {tier:?}"), &got, &chosen)?;
        }
    }
    Ok(ran)
}

fn at_every_boundary(device: &Device) -> Result<()> {
    let most = devices::at_pace(600_000, 300_000, 20_000);
    // A host runs a device's threads one after the other: two ops and dtypes stand for all.
    let stands_for_all =
        |op, dtype| matches!((op, dtype), (Op::Softmax | Op::Std { .. }, DType::BF16));
    let few = devices::at_pace(false, true, true);
    let mut reached = Vec::new();
    for op in Op::ALL {
        for dtype in DTYPES {
            if few && !stands_for_all(op, dtype) {
                continue;
            }
            let boundaries = boundaries(op, dtype, 3, most);
            assert!(boundaries.len() > 6, "{boundaries:?}");
            for width in boundaries.iter().flat_map(|w| [w - 1, *w, w + 1]) {
                if width == 0 {
                    continue;
                }
                let x = suited(op, normal(91, 3 * width), width);
                let x = tensor(&x, (3, width), dtype, device)?;
                let sides = sides(op, width, dtype, device)?;
                let what = format!("{} {dtype:?} {width}", op.name());
                reached.extend(same_on_every_tier(&what, op, &x, &sides)?);
            }
        }
    }
    for tier in [
        Tier::Serial,
        Tier::Warp,
        Tier::Block,
        Tier::Cluster,
        Tier::SplitK,
    ] {
        assert!(reached.contains(&tier), "{tier:?} was never forced");
    }
    Ok(())
}

/// Rows that a team shares, by chunks and by groups of chunks, fewer rows than teams and more.
fn teams(device: &Device) -> Result<()> {
    let shapes: &[(usize, usize)] = devices::at_pace(
        &[
            (1, 70_001),
            (131, 65_537),
            (300, 40_000),
            (1, 1_000_003),
            (5, 300_000),
            (2, 4_300_000),
            (1, 9_000_001),
        ],
        &[(1, 70_001), (131, 65_537), (2, 1_000_003)],
        &[(3, 9000), (1, 40_000)],
    );
    for op in [
        Op::Sum,
        Op::ArgMax,
        Op::Softmax,
        Op::LayerNorm { eps: 1e-5 },
    ] {
        for dtype in [DType::BF16, DType::F32] {
            for &(rows, width) in shapes {
                let x = tensor(&normal(92, width), (1, width), dtype, device)?;
                let x = x.broadcast_as((rows, width))?.contiguous()?;
                let sides = sides(op, width, dtype, device)?;
                let what = format!("{} {dtype:?} ({rows}, {width})", op.name());
                let block = with_tier(Tier::Block, || run(op, &x, &sides))?;
                for _ in 0..3 {
                    let team = with_tier(Tier::SplitK, || run(op, &x, &sides))?;
                    assert_bits_eq(&what, &team, &block)?;
                }
            }
        }
    }
    Ok(())
}

/// D02, D03: rows that clusters share, where the device runs clusters of up to 1, 2, 4, 8 and 16
/// blocks, where it says 0, and where it cannot launch teams.
fn d02_d03_limits(device: &Device) -> Result<()> {
    let shapes: &[(usize, usize)] = devices::at_pace(
        &[(7, 70_000), (131, 65_536), (1, 1_000_003)],
        &[(7, 70_000)],
        &[(2, 20_000)],
    );
    for op in [Op::Softmax, Op::LayerNorm { eps: 1e-5 }, Op::LogSumExp] {
        for &(rows, width) in shapes {
            let x = tensor(&normal(93, width), (1, width), DType::F32, device)?;
            let x = x.broadcast_as((rows, width))?.contiguous()?;
            let sides = sides(op, width, DType::F32, device)?;
            let chosen = run(op, &x, &sides)?;
            for max_cluster in [0, 1, 2, 4, 8, 16] {
                for split_k_blocks in [0, DeviceLimits::H200.split_k_blocks] {
                    let limits = DeviceLimits {
                        max_cluster,
                        split_k_blocks,
                        ..DeviceLimits::H200
                    };
                    let got = with_limits(limits, || run(op, &x, &sides))?;
                    let what = format!("{} ({rows}, {width}) {limits:?}", op.name());
                    assert_bits_eq(&what, &got, &chosen)?;
                }
            }
        }
    }
    Ok(())
}

/// D01, D02: as often as it takes for a race to show.
fn d01_d02_again_and_again(device: &Device) -> Result<()> {
    let shapes: &[(usize, usize)] = match devices::is_host_run() {
        true => &[(3, 100), (1, 9000)],
        false => &[
            (1024, 16),
            (3, 32_000),
            (7, 70_000),
            (131, 65_536),
            (1, 1_000_003),
        ],
    };
    let times = devices::at_pace(1000, 4, 3);
    for op in [Op::Softmax, Op::LayerNorm { eps: 1e-5 }, Op::ArgMax] {
        for &(rows, width) in shapes {
            let x = tensor(&normal(94, rows * width), (rows, width), DType::F32, device)?;
            let sides = sides(op, width, DType::F32, device)?;
            let first = run(op, &x, &sides)?;
            let mut different = first.zeros_like()?.to_dtype(DType::F32)?;
            for _ in 0..times {
                let again = run(op, &x, &sides)?;
                different = (different + again.ne(&first)?.to_dtype(DType::F32)?)?;
            }
            let different = different.sum_all()?.to_scalar::<f32>()?;
            assert_eq!(different, 0., "{} ({rows}, {width})", op.name());
        }
    }
    Ok(())
}

/// Rows side by side have the bits of the same rows packed, whether held in registers or walked.
fn columns(device: &Device) -> Result<()> {
    let widths: &[usize] = devices::at_pace(
        &[
            1, 2, 3, 7, 31, 33, 64, 100, 127, 256, 500, 1000, 1025, 2047, 3000, 4097, 9000, 20_000,
        ],
        &[1, 7, 100, 1025, 20_000],
        &[1, 3, 33, 700, 2500],
    );
    let inners: &[usize] = devices::at_pace(
        &[2, 3, 8, 16, 17, 33, 64, 65, 130],
        &[2, 17, 64],
        &[2, 17, 64],
    );
    let ops = [
        Op::Sum,
        Op::ArgMax,
        Op::MinMax,
        Op::Var { correction: 1 },
        Op::LogSumExp,
        Op::Any,
        Op::Softmax,
        Op::LogSoftmax,
    ];
    let (mut reduced, mut mapped, mut in_place) = (0, 0, 0);
    for dtype in DTYPES {
        for &width in widths {
            for &inner in inners {
                for outer in [1, 3] {
                    let n = outer * width * inner;
                    // Threads that copy more from a GPU at once may never end: with CUDA 13.0's driver one of
                    // three hung in its exit, where the driver waits for a helper thread of its own.
                    if n > devices::at_pace(1 << 21, 1 << 21, 130_000) {
                        continue;
                    }
                    let flat = tensor(&normal(95, n + 1), n + 1, dtype, device)?;
                    for start in [0, 1] {
                        let x = flat.narrow(0, start, n)?.reshape((outer, width, inner))?;
                        let rows = x.transpose(1, 2)?;
                        let packed = rows.contiguous()?;
                        for op in ops {
                            let what = format!(
                                "{} {dtype:?} ({outer}, {width}, {inner}) from {start}",
                                op.name()
                            );
                            let expected = run(op, &packed, &[])?;
                            let call = || match op {
                                Op::Softmax => candle_rowwise::ops::softmax(&x, 1),
                                Op::LogSoftmax => candle_rowwise::ops::log_softmax(&x, 1),
                                _ => run(op, &rows, &[]),
                            };
                            let is_map = !op.is_reduction();
                            let compare = |what: &str, got: Tensor| -> Result<()> {
                                assert!(got.is_contiguous(), "{what}");
                                let got = match is_map {
                                    true => got.transpose(1, 2)?.contiguous()?,
                                    false => got,
                                };
                                assert_bits_eq(what, &got, &expected)
                            };
                            compare(&what, call()?)?;
                            // Refused where the rows are packed instead.
                            if let Some(got) = forced(Tier::Tiled, call).context(what.clone())? {
                                compare(&format!("{what}: tiled"), got)?;
                                *(if is_map { &mut mapped } else { &mut reduced }) += 1;
                            }
                            if let Some(got) = forced(Tier::Columns, call).context(what.clone())? {
                                compare(&format!("{what}: columns"), got)?;
                                in_place += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(
        reduced > 0 && mapped > 0 && in_place > 0,
        "the tiled tier was forced on {reduced} reductions and {mapped} ops that make rows, the columns \
         tier on {in_place} reductions"
    );
    Ok(())
}

/// Rows side by side of which some are walked again, for squares or a sum beyond the range, and others not.
fn unlike_columns(device: &Device) -> Result<()> {
    let ops = [
        Op::Mean,
        Op::NormL2,
        Op::MeanOfSquares,
        Op::Var { correction: 1 },
        Op::Std { correction: 0 },
    ];
    for dtype in DTYPES {
        for width in devices::at_pace(&[5, 300, 2500, 9000][..], &[300, 9000], &[5, 300, 2500]) {
            let (width, huge) = (*width, if dtype == DType::F16 { 6e4 } else { 3e38 });
            let rows: Vec<f64> = (0..67)
                .flat_map(|i| {
                    let row = normal(96 + i, width).into_iter();
                    row.map(move |v| match i % 5 {
                        0 => huge * (1. - v.abs() / 64.),
                        1 => v / huge,
                        2 => 0.,
                        3 if i == 33 => f64::INFINITY,
                        _ => v,
                    })
                })
                .collect();
            let packed = tensor(&rows, (67, width), dtype, device)?;
            let columns = packed.t()?.contiguous()?.t()?;
            for op in ops {
                let what = format!("{} {dtype:?} {width}", op.name());
                let expected = run(op, &packed, &[])?;
                for tier in [Tier::Columns, Tier::Tiled] {
                    // Tiles of more registers than there are (src/tuning.rs::TILED_ELEMENTS), or more chunks than
                    // blocks of a cluster.
                    let is_refused = tier == Tier::Tiled && width > 8192 && dtype != DType::F32;
                    let got = forced(tier, || run(op, &columns, &[]))?;
                    assert_eq!(got.is_none(), is_refused, "{what}: {tier:?}");
                    if let Some(got) = got {
                        assert_bits_eq(&format!("{what}: {tier:?}"), &got, &expected)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Makes a test of each body on the GPU, or on the kernels' build for the host.
macro_rules! on_kernels {
    ($($body:ident: $cuda:ident;)+) => {$(
        #[cfg(feature = "cuda")]
        #[test]
        fn $cuda() -> Result<()> {
            match devices::cuda(stringify!($cuda)) {
                Some(device) => devices::on_gpu(device, $body),
                None => Ok(()),
            }
        }
    )+
        #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
        mod host_run {
            $(
                #[test]
                fn $body() -> crate::common::Result<()> {
                    crate::common::devices::on_host_run(super::$body)
                }
            )+
        }
    };
}

on_kernels! {
    at_every_boundary: at_every_boundary_cuda;
    teams: teams_cuda;
    d02_d03_limits: d02_d03_limits_cuda;
    d01_d02_again_and_again: d01_d02_again_and_again_cuda;
    columns: columns_cuda;
    unlike_columns: unlike_columns_cuda;
}
