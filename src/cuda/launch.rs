//! From a problem, a plan and device addresses to a call of the C ABI.

use std::ffi::c_void;
use std::ptr;

use candle_core::DType;

use super::{result, sys};
use crate::error::Result;
use crate::exchange::{ClusterCombine, Exchange, ExchangeOp, Trial};
use crate::plan::{Columns, Panel, Plan, Residency, Tier};
use crate::problem::{CrossEntropy, Op, Problem, Rows, MAX_OPERANDS, MAX_RESULTS};

/// Device addresses of a launch. The first element of the allocation, not of the view: the offsets
/// are in the problem.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub x: u64,
    /// Of the operands, in the order of [`Op::operands`]; 0 for those left out.
    pub operands: [u64; MAX_OPERANDS],
    /// Of the results, in the order of [`Op::results`].
    pub results: [u64; MAX_RESULTS],
    /// The stream's workspace, where the plan needs one.
    pub workspace: u64,
}

/// Executes `plan` on `stream`.
///
/// # Safety
///
/// `addresses` are device addresses of allocations of the current context: of the input and the operands
/// as the problem describes them, and of results of [`Problem::result_len`] elements that
/// nothing else reads or writes until the launch has run. All stay allocated until then.
pub(super) unsafe fn launch(
    problem: &Problem,
    plan: &Plan,
    addresses: &Addresses,
    stream: *mut c_void,
) -> Result<()> {
    // SAFETY: forwarded from the caller.
    result::check(
        unsafe { call(problem, plan, addresses, stream, false) },
        problem,
    )
}

/// Executes an exchange on `stream`, on a grid of up to `max_blocks`.
///
/// # Safety
///
/// `x` and `y` are device addresses of allocations of the current context: of the input as the exchange
/// describes it, and of an output of its length that nothing else reads or writes until the launch has
/// run. Both stay allocated until then.
pub(super) unsafe fn launch_exchange(
    exchange: &Exchange,
    trial: &Trial,
    max_blocks: usize,
    x: u64,
    y: u64,
    stream: *mut c_void,
) -> Result<()> {
    let ranks = exchange.ranks;
    let rank = |rank: Option<usize>| rank.map_or(-1, |rank| rank as i32);
    let params = sys::rw_cluster_params {
        dtype: abi_dtype(exchange.dtype),
        op: match exchange.op {
            ExchangeOp::Reduce(ClusterCombine::Add) => sys::rw_cluster_op::RW_CLUSTER_ADD,
            ExchangeOp::Reduce(ClusterCombine::Max) => sys::rw_cluster_op::RW_CLUSTER_MAX,
            ExchangeOp::Reduce(ClusterCombine::Min) => sys::rw_cluster_op::RW_CLUSTER_MIN,
            ExchangeOp::Gather => sys::rw_cluster_op::RW_CLUSTER_GATHER,
        },
        cluster_size: ranks as i32,
        blocks: (exchange.clusters.min(max_blocks / ranks) * ranks) as i32,
        clusters: exchange.clusters as i64,
        width: exchange.width as i64,
        x: address(x, exchange.offset, exchange.dtype),
        strides: exchange.strides.map(|v| v as i64),
        y: ptr::without_provenance_mut(y as usize),
        repeats: i32::try_from(trial.repeats).unwrap_or(i32::MAX),
        single_slot: trial.single_slot.into(),
        late_rank: rank(trial.late_rank),
        lingering_rank: rank(trial.lingering_rank),
        spin_cycles: trial.spin_cycles.into(),
    };
    // SAFETY: the params live for the call, which copies them into the launch; the rest is forwarded
    // from the caller.
    let status = unsafe { sys::rw_cluster(&params, stream) };
    result::check_exchange(status, exchange)
}

/// Blocks of a cluster that the thread's current device runs: 1 where it has no clusters.
#[cfg(feature = "cuda")]
pub(super) fn max_cluster() -> Result<usize> {
    let mut blocks = 0;
    // SAFETY: the function writes one number.
    let status = unsafe { sys::rw_max_cluster(&mut blocks) };
    result::check_query("the largest cluster", status)?;
    Ok(usize::try_from(blocks).unwrap_or(0).max(1))
}

/// Whether a kernel is built for `plan`; needs no GPU.
#[cfg(test)]
pub(super) fn has_kernel(problem: &Problem, plan: &Plan) -> Result<()> {
    // Null is an operand that was left out.
    let address = |i: usize| problem.operands[i].map_or(0, |_| 1 << 8);
    let addresses = Addresses {
        x: 0,
        operands: std::array::from_fn(address),
        results: [0; MAX_RESULTS],
        workspace: 0,
    };
    // SAFETY: a dry run launches nothing and follows no address.
    let status = unsafe { call(problem, plan, &addresses, ptr::null_mut(), true) };
    result::check(status, problem)
}

unsafe fn call(
    problem: &Problem,
    plan: &Plan,
    addresses: &Addresses,
    stream: *mut c_void,
    dry_run: bool,
) -> i32 {
    let p = abi_problem(problem, addresses);
    let plan = abi_plan(plan, addresses.workspace);
    let dry = i32::from(dry_run);
    // SAFETY (all four): the params live for the call, which copies them into the launch.
    match problem.op {
        Op::Softmax
        | Op::LogSoftmax
        | Op::SoftmaxGradient { .. }
        | Op::SoftmaxWith { .. }
        | Op::SoftmaxWithGradient { .. } => {
            let logits = match problem.op {
                Op::SoftmaxWith { logits, .. } | Op::SoftmaxWithGradient { logits, .. } => logits,
                _ => crate::problem::Logits {
                    scale: 1.0,
                    soft_cap: None,
                    queries: None,
                },
            };
            use sys::rw_softmax_kind as K;
            let params = sys::rw_softmax_params {
                problem: p,
                plan,
                kind: match problem.op {
                    Op::Softmax => K::RW_SOFTMAX,
                    Op::SoftmaxGradient { log: false } => K::RW_SOFTMAX_GRADIENT,
                    Op::SoftmaxGradient { log: true } => K::RW_LOG_SOFTMAX_GRADIENT,
                    Op::SoftmaxWith { log: false, .. } => K::RW_SOFTMAX_WITH,
                    Op::SoftmaxWith { log: true, .. } => K::RW_LOG_SOFTMAX_WITH,
                    Op::SoftmaxWithGradient { log: false, .. } => K::RW_SOFTMAX_WITH_GRADIENT,
                    Op::SoftmaxWithGradient { log: true, .. } => K::RW_LOG_SOFTMAX_WITH_GRADIENT,
                    _ => K::RW_LOG_SOFTMAX,
                },
                scale: logits.scale,
                soft_cap: logits.soft_cap.unwrap_or(0.0),
                queries: logits.queries.unwrap_or(0) as i64,
                of_logits: i32::from(matches!(
                    problem.op,
                    Op::SoftmaxWithGradient {
                        of_logits: true,
                        ..
                    }
                )),
            };
            unsafe { sys::rw_softmax(&params, stream, dry) }
        }
        Op::RmsNorm { eps }
        | Op::LayerNorm { eps }
        | Op::L2Normalize { eps }
        | Op::L2NormalizeGradient { eps }
        | Op::AddRmsNorm { eps }
        | Op::AddLayerNorm { eps }
        | Op::RmsNormGradient { eps, .. }
        | Op::LayerNormGradient { eps, .. } => {
            use sys::rw_norm_kind as K;
            let params = sys::rw_norm_params {
                problem: p,
                plan,
                kind: match problem.op {
                    Op::RmsNorm { .. } => K::RW_RMS_NORM,
                    Op::L2Normalize { .. } => K::RW_L2_NORMALIZE,
                    Op::L2NormalizeGradient { .. } => K::RW_L2_NORMALIZE_GRADIENT,
                    Op::AddRmsNorm { .. } => K::RW_ADD_RMS_NORM,
                    Op::AddLayerNorm { .. } => K::RW_ADD_LAYER_NORM,
                    Op::RmsNormGradient { .. } => K::RW_RMS_NORM_GRADIENT,
                    Op::LayerNormGradient { .. } => K::RW_LAYER_NORM_GRADIENT,
                    _ => K::RW_LAYER_NORM,
                },
                eps,
            };
            unsafe { sys::rw_norm(&params, stream, dry) }
        }
        Op::CrossEntropy(options)
        | Op::CrossEntropyWithGradient(options)
        | Op::CrossEntropyGradient(options) => {
            let kind = match problem.op {
                Op::CrossEntropy(_) => sys::rw_loss_kind::RW_CROSS_ENTROPY,
                Op::CrossEntropyWithGradient(_) => {
                    sys::rw_loss_kind::RW_CROSS_ENTROPY_WITH_GRADIENT
                }
                _ => sys::rw_loss_kind::RW_CROSS_ENTROPY_GRADIENT,
            };
            let params = loss_params(p, plan, kind, problem.width, options);
            unsafe { sys::rw_loss(&params, stream, dry) }
        }
        Op::TargetWeights {
            classes,
            ignore_index,
        } => {
            let options = CrossEntropy {
                ignore_index,
                label_smoothing: 0.0,
                z_loss: 0.0,
                soft_cap: None,
            };
            let kind = sys::rw_loss_kind::RW_TARGET_WEIGHTS;
            let params = loss_params(p, plan, kind, classes, options);
            unsafe { sys::rw_loss(&params, stream, dry) }
        }
        op => {
            use sys::rw_reduction as R;
            let (reduction, correction) = match op {
                Op::Sum => (R::RW_SUM, 0),
                Op::Mean => (R::RW_MEAN, 0),
                Op::Prod => (R::RW_PROD, 0),
                Op::Max => (R::RW_MAX, 0),
                Op::Min => (R::RW_MIN, 0),
                Op::MinMax => (R::RW_MIN_MAX, 0),
                Op::AbsMax => (R::RW_ABS_MAX, 0),
                Op::ArgMax => (R::RW_ARGMAX, 0),
                Op::ArgMin => (R::RW_ARGMIN, 0),
                Op::Any => (R::RW_ANY, 0),
                Op::All => (R::RW_ALL, 0),
                Op::NormL1 => (R::RW_NORM_L1, 0),
                Op::NormL2 => (R::RW_NORM_L2, 0),
                Op::MeanOfSquares => (R::RW_MEAN_OF_SQUARES, 0),
                Op::Var { correction } => (R::RW_VAR, correction),
                Op::Std { correction } => (R::RW_STD, correction),
                Op::LogSumExp => (R::RW_LOGSUMEXP, 0),
                // Of the families above.
                Op::Softmax
                | Op::LogSoftmax
                | Op::RmsNorm { .. }
                | Op::LayerNorm { .. }
                | Op::L2Normalize { .. }
                | Op::L2NormalizeGradient { .. }
                | Op::CrossEntropy(_)
                | Op::CrossEntropyWithGradient(_)
                | Op::CrossEntropyGradient(_)
                | Op::TargetWeights { .. }
                | Op::SoftmaxGradient { .. }
                | Op::SoftmaxWith { .. }
                | Op::SoftmaxWithGradient { .. }
                | Op::AddRmsNorm { .. }
                | Op::AddLayerNorm { .. }
                | Op::RmsNormGradient { .. }
                | Op::LayerNormGradient { .. } => return sys::RW_NO_KERNEL,
            };
            let params = sys::rw_reduce_params {
                problem: p,
                plan,
                reduction,
                // A correction beyond any axis's length leaves no degree of freedom, as it should.
                correction: i64::try_from(correction).unwrap_or(i64::MAX),
            };
            unsafe { sys::rw_reduce(&params, stream, dry) }
        }
    }
}

fn loss_params(
    problem: sys::rw_problem,
    plan: sys::rw_plan,
    kind: sys::rw_loss_kind,
    classes: usize,
    options: CrossEntropy,
) -> sys::rw_loss_params {
    sys::rw_loss_params {
        problem,
        plan,
        kind,
        is_plain: options.is_plain().into(),
        has_ignore_index: options.ignore_index.is_some().into(),
        ignore_index: options.ignore_index.unwrap_or(0),
        classes: classes as i64,
        label_smoothing: options.label_smoothing,
        z_loss: options.z_loss,
        soft_cap: options.soft_cap.unwrap_or(0.0),
    }
}

fn address(base: u64, elements: usize, dtype: DType) -> *const c_void {
    ptr::without_provenance(base as usize + elements * dtype.size_in_bytes())
}

fn abi_problem(problem: &Problem, addresses: &Addresses) -> sys::rw_problem {
    let operand = |i: usize| match problem.operands[i] {
        Some(view) => sys::rw_operand {
            dtype: abi_dtype(view.dtype),
            rows: abi_rows(&view.rows, addresses.operands[i], view.dtype),
        },
        None => sys::rw_operand {
            dtype: abi_dtype(problem.dtype),
            rows: abi_rows(&Rows::contiguous(0, 0), 0, problem.dtype),
        },
    };
    sys::rw_problem {
        dtype: abi_dtype(problem.dtype),
        rows: problem.rows as i64,
        width: problem.width as i64,
        bands: problem.bands as i64,
        x: abi_rows(&problem.input, addresses.x, problem.dtype),
        operands: std::array::from_fn(operand),
        results: addresses
            .results
            .map(|result| ptr::without_provenance_mut(result as usize)),
    }
}

fn abi_rows(view: &Rows, base: u64, dtype: DType) -> sys::rw_rows {
    sys::rw_rows {
        data: address(base, view.offset, dtype),
        sizes: view.sizes.map(|v| v as i64),
        strides: view.strides.map(|v| v as i64),
        axis_stride: view.axis_stride as i64,
        inner: view.inner as i64,
    }
}

fn abi_dtype(dtype: DType) -> sys::rw_dtype {
    match dtype {
        DType::F16 => sys::rw_dtype::RW_F16,
        DType::BF16 => sys::rw_dtype::RW_BF16,
        DType::F64 => sys::rw_dtype::RW_F64,
        DType::U8 => sys::rw_dtype::RW_U8,
        DType::U32 => sys::rw_dtype::RW_U32,
        DType::I16 => sys::rw_dtype::RW_I16,
        DType::I32 => sys::rw_dtype::RW_I32,
        DType::I64 => sys::rw_dtype::RW_I64,
        // Problem::new and Exchange::new take no other dtype.
        _ => sys::rw_dtype::RW_F32,
    }
}

fn abi_plan(plan: &Plan, workspace: u64) -> sys::rw_plan {
    let panel = plan.panel.unwrap_or(Panel {
        columns: 0,
        rows: 0,
        panels: 0,
    });
    let columns = plan.columns.unwrap_or(Columns {
        lane_warps: 0,
        chunk_warps: 0,
        panels: panel.panels,
    });
    sys::rw_plan {
        ownership: match (plan.tier, plan.residency) {
            (Tier::Cluster, _) => sys::rw_ownership::RW_RESIDENT_CLUSTER,
            (Tier::SplitK, _) => sys::rw_ownership::RW_SPLIT_K,
            (Tier::Tiled, _) => sys::rw_ownership::RW_TILED,
            (Tier::Columns, _) => sys::rw_ownership::RW_COLUMNS,
            (Tier::Serial, _) | (Tier::Warp, Residency::Registers) => {
                sys::rw_ownership::RW_RESIDENT_WARP
            }
            (Tier::Block, Residency::Registers) => sys::rw_ownership::RW_RESIDENT_BLOCK,
            (Tier::Warp | Tier::Block, Residency::SharedMemory { .. }) => {
                sys::rw_ownership::RW_STREAMING
            }
        },
        vectors: plan.vectors as i32,
        lanes: plan.lanes as i32,
        threads: plan.threads as i32,
        row_blocks: plan.row_blocks as i32,
        blocks: plan.blocks as i32,
        slots: plan.slots as i32,
        stage_offset: plan.stage_offset as i32,
        shared_bytes: plan.shared_bytes as i32,
        unit: plan.unit as i32,
        columns: panel.columns as i32,
        block_rows: panel.rows as i32,
        lane_warps: columns.lane_warps as i32,
        chunk_warps: columns.chunk_warps as i32,
        panels: columns.panels as i64,
        staged: match plan.residency {
            Residency::Registers => 0,
            Residency::SharedMemory { staged } => staged as i64,
        },
        chunks: plan.chunks as i64,
        workspace: ptr::without_provenance_mut(workspace as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{with_tier, DeviceLimits};
    use crate::problem::{accumulator_dtype, OperandKind, FLOAT_DTYPES};
    use candle_core::Layout;

    /// Asks for a kernel for each plan of a problem, by any tier that takes it; how many those were. Where rows
    /// lie side by side, there may be none.
    fn check_plans(problem: &Problem) -> usize {
        let device = DeviceLimits::H200;
        let chosen = Plan::select(problem, &device);
        assert!(
            chosen.is_ok() || !problem.input.is_contiguous(),
            "{chosen:?}"
        );
        let mut plans: Vec<_> = chosen.into_iter().collect();
        for tier in Tier::ALL {
            plans.extend(with_tier(tier, || Plan::select(problem, &device)).ok());
        }
        for plan in &plans {
            let (dtype, width) = (problem.dtype, problem.width);
            has_kernel(problem, plan).unwrap_or_else(|e| panic!("{e}: {dtype:?} {width}: {plan}"));
        }
        plans.len()
    }

    /// The planner and the kernel tables are written in two languages: each plan must have a kernel.
    #[test]
    fn every_plan_has_a_kernel() {
        let widths = (1..=600).chain([
            1000,
            1024,
            1025,
            2047,
            2048,
            2049,
            4095,
            4096,
            4097,
            8191,
            8192,
            8193,
            16383,
            16384,
            16385,
            32768,
            65536,
            70000,
            131072,
            1_000_003,
            1 << 24,
            1 << 32,
        ]);
        let (mut checked, mut side_by_side) = (0, 0);
        for width in widths {
            for dtype in FLOAT_DTYPES {
                let logits = crate::problem::Logits {
                    scale: 0.5,
                    soft_cap: Some(30.0),
                    queries: Some(7),
                };
                let unlisted = [false, true].map(|log| {
                    let of_logits = log;
                    [
                        Op::SoftmaxGradient { log },
                        Op::SoftmaxWith { log, logits },
                        Op::SoftmaxWithGradient {
                            log,
                            logits,
                            of_logits,
                        },
                    ]
                });
                for op in Op::ALL
                    .into_iter()
                    .chain(Op::FUSED)
                    .chain(unlisted.concat())
                {
                    let x = Layout::contiguous((7, width));
                    let sides: Vec<_> = op
                        .operands()
                        .iter()
                        .map(|operand| Layout::contiguous(operand.shape(op, x.shape())))
                        .collect();
                    let sides: Vec<_> = sides
                        .iter()
                        .zip(op.operands())
                        .map(|(side, operand)| match operand.kind {
                            OperandKind::Values => (side, accumulator_dtype(dtype)),
                            _ => (side, dtype),
                        })
                        .map(Some)
                        .collect();
                    let problem = Problem::new(op, &x, dtype, &sides).unwrap();
                    checked += check_plans(&problem);
                    for inner in [2, 40] {
                        let x = Layout::contiguous((3, width, inner))
                            .transpose(1, 2)
                            .unwrap();
                        let sides = vec![None; op.operands().len()];
                        if let Ok(problem) = Problem::new(op, &x, dtype, &sides) {
                            side_by_side += check_plans(&problem);
                        }
                    }
                }
            }
        }
        assert!(side_by_side > 600 * 4 * 8);
        assert!(checked > 2 * 600 * 4 * 8);
    }

    /// The same of the losses, which have operands of several kinds.
    #[test]
    fn every_plan_of_a_loss_has_a_kernel() {
        let options = CrossEntropy {
            ignore_index: Some(-100),
            label_smoothing: 0.1,
            z_loss: 1e-4,
            soft_cap: Some(30.0),
        };
        let mut checked = 0;
        for width in (1..=300).chain([1024, 4097, 8193, 16385, 70_000, 1 << 20, 1 << 24]) {
            for dtype in FLOAT_DTYPES {
                for op in [
                    Op::CrossEntropy(options),
                    Op::CrossEntropyWithGradient(options),
                    Op::CrossEntropyGradient(options),
                    Op::TargetWeights {
                        classes: width,
                        ignore_index: None,
                    },
                ] {
                    let shared = Layout::contiguous(width);
                    let values = Layout::contiguous((7, 1));
                    let operands = op.operands().iter().map(|operand| {
                        let dtype = [DType::I64, crate::problem::accumulator_dtype(dtype)]
                            .into_iter()
                            .find(|own| operand.takes(*own, dtype));
                        let layout = match operand.kind {
                            OperandKind::Vector => &shared,
                            _ => &values,
                        };
                        Some((layout, dtype.unwrap()))
                    });
                    let operands: Vec<_> = operands.collect();
                    let x = Layout::contiguous((7, width));
                    let problem = Problem::new(op, &x, dtype, &operands).unwrap();
                    checked += check_plans(&problem);
                }
            }
        }
        assert!(checked > 2 * 300 * 4 * 4);
    }

    #[test]
    fn a_plan_that_does_not_cover_the_row_is_refused() {
        let problem =
            Problem::new(Op::Sum, &Layout::contiguous((7, 1000)), DType::F32, &[]).unwrap();
        let good = Plan::select(&problem, &DeviceLimits::H200).unwrap();
        for bad in [
            Plan {
                chunks: good.chunks - 1,
                threads: good.threads - 32,
                ..good
            },
            Plan {
                vectors: good.vectors * 2,
                ..good
            },
            Plan { blocks: 0, ..good },
            Plan { vectors: 3, ..good },
        ] {
            assert!(has_kernel(&problem, &bad).is_err(), "{bad}");
        }
    }
}
