//! The planner, without a GPU: a plan of any problem, for any device and forced onto any tier, is one that the C ABI
//! takes (`plan_is_sound` of `cuda/tiers/launch.cuh`) and that the device can launch, or it is refused. And what a
//! plan is made of: where the rows of any layout lie.

use candle_core::{Layout, Shape};
use candle_rowwise::error::Error;
use candle_rowwise::plan::{with_limits, with_tier, DeviceLimits, Plan, Residency, Tier};
use candle_rowwise::problem::{
    accumulator_dtype, CrossEntropy, Logits, OperandDType, OperandKind, Problem, Rows,
    FLOAT_DTYPES, INTEGER_DTYPES,
};
use candle_rowwise::tuning::{
    state_bytes, words_ahead, COLUMN_WARPS, MAX_CLUSTER_BLOCKS, MAX_COLUMN, MAX_RESIDENT_WARPS,
    MAX_STREAMING_WARPS, MAX_TEAMS, MAX_WARP_TIER_WARPS, STATE_BYTES, STREAMING_EXTRA_STATES,
    TEAM_BYTES, TILED_THREADS, VECTOR_BYTES, WARP_LANES, WINDOW_CHUNKS, WORKSPACE_BYTES,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{fuzz_some, regressions, Tally};
use crate::common::*;

/// Cases where no number is asked for: each takes microseconds.
const USUAL: u64 = 20_000;

/// Any number up to 2^`bits`, small ones as often as large ones, and on and beside every power of two.
fn sizes(bits: u32) -> impl Strategy<Value = usize> {
    (0..=bits, any::<u64>(), 0usize..4).prop_map(|(log2, within, near)| {
        let power = 1usize << log2;
        match near {
            0 => power,
            1 => (power - 1).max(1),
            2 => power + 1,
            _ => power + within as usize % power,
        }
    })
}

/// How the rows of a case lie.
#[derive(Debug, Clone)]
enum Lie {
    Packed,
    /// With so many elements between them, behind an offset.
    Gaps(usize, usize),
    /// One row for all.
    Broadcast,
    /// So many side by side, with so many elements between one place of the axis and the next.
    Columns(usize, usize),
    /// Of three dims with any strides.
    Strided([usize; 3]),
}

#[derive(Debug, Clone)]
struct Case {
    op: Op,
    dtype: DType,
    rows: usize,
    width: usize,
    lie: Lie,
    /// Of each operand: left out if it may be, its dtype of those it takes, and how it lies.
    operands: Vec<(bool, usize, bool)>,
    device: DeviceLimits,
}

fn ops() -> impl Strategy<Value = Op> {
    let logits = || {
        let cap = select(vec![None, Some(30.)]);
        (cap, any::<bool>()).prop_map(|(soft_cap, causal)| Logits {
            scale: 0.5,
            soft_cap,
            queries: causal.then_some(1),
        })
    };
    let losses = (
        select(vec![0., 0.1]),
        select(vec![None, Some(30.)]),
        0usize..3,
    );
    prop_oneof![
        4 => select(Op::ALL.to_vec()),
        2 => select(Op::FUSED.to_vec()),
        1 => any::<bool>().prop_map(|log| Op::SoftmaxGradient { log }),
        1 => (any::<bool>(), logits()).prop_map(|(log, logits)| Op::SoftmaxWith { log, logits }),
        1 => (any::<[bool; 2]>(), logits()).prop_map(|([log, of_logits], logits)| {
            Op::SoftmaxWithGradient { log, logits, of_logits }
        }),
        2 => losses.prop_map(|(label_smoothing, soft_cap, which)| {
            let loss = CrossEntropy {
                ignore_index: None,
                label_smoothing,
                z_loss: 0.,
                soft_cap,
            };
            match which {
                0 => Op::CrossEntropy(loss),
                1 => Op::CrossEntropyWithGradient(loss),
                _ => Op::CrossEntropyGradient(loss),
            }
        }),
        1 => sizes(20).prop_map(|classes| Op::TargetWeights { classes, ignore_index: None }),
    ]
}

/// What devices have, and what none has.
fn limits() -> impl Strategy<Value = DeviceLimits> {
    let real = DeviceLimits::H200;
    let kib = |n: usize| n << 10;
    let shared = prop_oneof![
        6 => select(vec![kib(99), kib(163), kib(227)]),
        2 => select(vec![0, kib(48), kib(64), kib(96), usize::MAX]),
        1 => sizes(34),
    ];
    let blocks = prop_oneof![
        4 => Just(i32::MAX as usize),
        2 => Just(65535),
        1 => select(vec![1usize, 2, usize::MAX]),
        1 => sizes(40),
    ];
    let per_multiprocessor = prop_oneof![
        4 => select(vec![kib(100), kib(164), kib(228)]),
        1 => select(vec![0, usize::MAX]),
        1 => sizes(34),
    ];
    let multiprocessors = prop_oneof![
        4 => select(vec![1usize, 2, 3, 84, 108, 132, 148]),
        1 => select(vec![0, usize::MAX]),
        2 => sizes(40),
    ];
    let split_k = prop_oneof![
        4 => 0usize..4,
        1 => select(vec![usize::MAX]),
        1 => sizes(34),
    ];
    let clusters = prop_oneof![
        6 => select(vec![1usize, 8, 16]),
        1 => 0usize..40,
        1 => Just(usize::MAX),
    ];
    let any_device = (
        shared,
        blocks,
        per_multiprocessor,
        multiprocessors,
        split_k,
        clusters,
    );
    let any_device =
        any_device.prop_map(
            |(shared, blocks, per, sms, split_k, clusters)| DeviceLimits {
                shared_bytes_per_block: shared,
                max_blocks: blocks,
                shared_bytes_per_multiprocessor: per,
                multiprocessors: sms,
                split_k_blocks: split_k,
                max_cluster: clusters,
            },
        );
    prop_oneof![1 => Just(real), 4 => any_device]
}

fn cases() -> BoxedStrategy<Case> {
    let lies = prop_oneof![
        4 => Just(Lie::Packed),
        1 => (sizes(12), sizes(8)).prop_map(|(gap, offset)| Lie::Gaps(gap, offset)),
        1 => Just(Lie::Broadcast),
        4 => (sizes(20), prop_oneof![2 => Just(0), 1 => sizes(10)])
            .prop_map(|(inner, gap)| Lie::Columns(inner, gap)),
        1 => [sizes(24), sizes(24), sizes(4)].prop_map(Lie::Strided),
    ];
    let dtypes = prop_oneof![
        3 => select(FLOAT_DTYPES.to_vec()),
        1 => select(INTEGER_DTYPES.to_vec()),
    ];
    let sides = vec((any::<bool>(), 0usize..3, any::<bool>()), 5);
    let whole = (ops(), dtypes, sizes(33), sizes(33));
    (whole, lies, sides, limits())
        .prop_map(|((op, mut dtype, rows, width), lie, operands, device)| {
            if !op.takes_integers() && !FLOAT_DTYPES.contains(&dtype) {
                dtype = DType::F32;
            }
            Case {
                op,
                dtype,
                // A broadcast input may have 2^56 elements.
                rows: rows.min((1 << 56) / width.next_power_of_two()),
                width,
                lie,
                operands,
                device,
            }
        })
        .boxed()
}

impl Case {
    fn layout(&self) -> Layout {
        let (rows, width) = (self.rows, self.width);
        let of = |dims: &[usize], strides: &[usize], offset| {
            Layout::new(Shape::from(dims), strides.to_vec(), offset)
        };
        match self.lie {
            Lie::Packed => Layout::contiguous((rows, width)),
            Lie::Gaps(gap, offset) => of(&[rows, width], &[width + gap, 1], offset),
            Lie::Broadcast => of(&[rows, width], &[0, 1], 3),
            Lie::Columns(inner, gap) => {
                let (inner, pitch) = (inner.min(rows), inner.min(rows) + gap);
                of(
                    &[rows / inner, inner, width],
                    &[pitch * width, 1, pitch],
                    gap,
                )
            }
            Lie::Strided(strides) => {
                let outer = (rows as f64).sqrt() as usize;
                of(&[outer.max(1), rows / outer.max(1), width], &strides, 1)
            }
        }
    }

    /// The problem, if it is one.
    fn problem(&self) -> std::result::Result<Problem, Error> {
        let input = self.layout();
        let mut op = self.op;
        if let Op::SoftmaxWith { logits, .. } | Op::SoftmaxWithGradient { logits, .. } = &mut op {
            let dims = input.dims();
            logits.queries = logits.queries.map(|_| dims[dims.len() - 2]);
        }
        let sides = op.operands().iter().zip(&self.operands);
        let sides = sides.map(|(operand, (given, dtype, repeats))| {
            if operand.optional && !given {
                return None;
            }
            let shape = operand.shape(op, input.shape());
            let layout = match (operand.kind, repeats) {
                // One value for all of a row.
                (OperandKind::Rows, true) => {
                    let mut strides = Layout::contiguous(&shape).stride().to_vec();
                    if let Some(last) = strides.last_mut() {
                        *last = 0;
                    }
                    Layout::new(shape, strides, 2)
                }
                _ => Layout::contiguous(shape),
            };
            let wide = accumulator_dtype(self.dtype);
            let dtypes = match operand.dtype {
                OperandDType::Input => vec![self.dtype],
                OperandDType::InputOrF32 => vec![self.dtype, wide],
                OperandDType::Accumulator => vec![wide],
                OperandDType::InputF32OrU8 => vec![self.dtype, wide, DType::U8],
                OperandDType::OneOf(dtypes) => dtypes.to_vec(),
            };
            Some((layout, dtypes[dtype % dtypes.len()]))
        });
        let sides: Vec<_> = sides.collect();
        let sides: Vec<_> = sides
            .iter()
            .map(|side| side.as_ref().map(|(l, d)| (l, *d)))
            .collect();
        Problem::new(op, &input, self.dtype, &sides)
    }
}

/// Says of a condition that does not hold what it is.
macro_rules! holds {
    ($($condition:expr),+ $(,)?) => {$(
        if !$condition {
            return Err(stringify!($condition).to_string());
        }
    )+};
}

/// What `plan_is_sound` and `launch` of `cuda/tiers/launch.cuh` ask of a plan, and beyond that what the device must
/// have for it: or what is wrong. In numbers too wide to wrap around.
fn check_sound(
    plan: &Plan,
    problem: &Problem,
    device: &DeviceLimits,
) -> std::result::Result<(), String> {
    let wide = |n: usize| n as i128;
    let element_bytes = problem.dtype.size_in_bytes();
    let state_bytes = wide(state_bytes(problem.op, problem.dtype));
    let (lanes, vectors, chunks) = (wide(plan.lanes), wide(plan.vectors), wide(plan.chunks));
    let (threads, blocks, row_blocks) =
        (wide(plan.threads), wide(plan.blocks), wide(plan.row_blocks));
    let (slots, shared_bytes) = (wide(plan.slots), wide(plan.shared_bytes));
    let (width, owned) = (wide(problem.width), wide(problem.bands));
    let warps = threads / wide(WARP_LANES);
    let chunk = lanes * vectors * wide(VECTOR_BYTES / element_bytes);
    let staged = match plan.residency {
        Residency::Registers => 0,
        Residency::SharedMemory { staged } => wide(staged),
    };
    let panel = plan.panel.map(|p| [p.columns, p.rows, p.panels].map(wide));
    let columns = plan
        .columns
        .map(|c| [c.lane_warps, c.chunk_warps, c.panels].map(wide));

    // What the C ABI counts in 32 bits.
    for field in [
        vectors,
        lanes,
        threads,
        row_blocks,
        blocks,
        slots,
        wide(plan.stage_offset),
        shared_bytes,
        wide(plan.unit),
    ] {
        holds!(field <= i128::from(i32::MAX));
    }
    // What a device can launch.
    holds!(
        threads <= 1024,
        blocks > 0 && blocks <= wide(device.max_blocks),
        shared_bytes <= wide(device.shared_bytes_per_block),
    );
    // plan_is_sound.
    holds!(
        [1, 2, 4, 8].contains(&plan.vectors),
        plan.threads.is_multiple_of(WARP_LANES) && warps > 0,
        lanes > 0 && WARP_LANES.is_multiple_of(plan.lanes),
        chunks * chunk >= width,
        (chunks - 1) * chunk < width,
    );
    let streaming_is_sound = |kept: i128| {
        let states = 2 * slots + wide(STREAMING_EXTRA_STATES);
        let stage = staged * chunk * wide(element_bytes * problem.op.cached_rows());
        let offset = wide(plan.stage_offset);
        warps <= wide(MAX_STREAMING_WARPS)
            && plan.lanes == WARP_LANES
            && slots >= kept.min(wide(WINDOW_CHUNKS))
            && plan.stage_offset.is_multiple_of(VECTOR_BYTES)
            && offset >= states * state_bytes
            && shared_bytes >= offset + stage
    };
    let is_resident = |most_warps: usize| {
        let ahead = wide(words_ahead(element_bytes)) * vectors * threads * wide(VECTOR_BYTES);
        staged == 0
            && warps <= wide(most_warps)
            && (!problem.op.goes_by_bands() || shared_bytes >= ahead)
    };
    let is_clustered = |blocks: i128| {
        blocks <= wide(MAX_CLUSTER_BLOCKS) && blocks <= wide(device.max_cluster.max(1))
    };
    let side_by_side = plan.panel.is_some() || plan.columns.is_some();
    holds!(side_by_side != problem.input.is_contiguous());
    match (plan.tier, plan.residency) {
        (Tier::Serial | Tier::Warp, Residency::Registers) => {
            holds!(
                chunks == 1 && row_blocks == 1,
                is_resident(MAX_WARP_TIER_WARPS),
                (plan.tier == Tier::Serial) == (lanes == 1),
                !problem.op.goes_by_bands() || blocks == owned,
            );
        }
        (Tier::Block, Residency::Registers) => {
            holds!(
                chunks == warps && is_resident(MAX_RESIDENT_WARPS),
                plan.lanes == WARP_LANES && row_blocks == 1,
                blocks == owned,
            );
        }
        (Tier::Cluster, Residency::Registers) => {
            holds!(
                row_blocks > 1 && is_clustered(row_blocks) && plan.row_blocks.is_power_of_two(),
                is_resident(MAX_RESIDENT_WARPS),
                chunks <= row_blocks * warps && plan.lanes == WARP_LANES,
                blocks == owned * row_blocks,
            );
        }
        (Tier::Warp | Tier::Block, Residency::SharedMemory { .. }) => {
            holds!(
                row_blocks == 1 && blocks <= owned && staged <= chunks,
                streaming_is_sound(chunks),
            );
        }
        (Tier::SplitK, Residency::SharedMemory { .. }) => {
            holds!(
                plan.unit == 1 || plan.unit == WARP_LANES,
                row_blocks >= 2 && plan.blocks.is_multiple_of(plan.row_blocks),
            );
            let teams = blocks / row_blocks;
            let units = wide(plan.chunks.div_ceil(plan.unit));
            let own = units / row_blocks + i128::from(units % row_blocks != 0);
            let own = own * wide(plan.unit);
            let kept = match plan.unit {
                1 => wide(plan.chunks.div_ceil(WARP_LANES)),
                _ => own,
            };
            let workspace = wide(MAX_TEAMS * TEAM_BYTES) + 2 * units * teams * wide(STATE_BYTES);
            let blocks_of_one = wide(device.split_k_blocks);
            holds!(
                teams <= wide(MAX_TEAMS) && teams <= owned,
                units >= row_blocks && staged <= own,
                plan.unit != 1 || kept <= slots,
                streaming_is_sound(kept),
                state_bytes <= wide(STATE_BYTES),
                workspace <= wide(WORKSPACE_BYTES),
                // All of them at once, of whose shared memory CUDA keeps 1 KiB each.
                blocks <= wide(device.multiprocessors) * blocks_of_one,
                (shared_bytes + 1024) * blocks_of_one
                    <= wide(device.shared_bytes_per_multiprocessor),
            );
        }
        (Tier::Columns, Residency::Registers) => {
            let Some([lane_warps, chunk_warps, panels]) = columns else {
                return Err("columns without their share".into());
            };
            let inner = wide(problem.input.inner);
            let outer = wide(problem.rows) / inner;
            let (lane_states, pitch) = (chunk_warps * lanes, wide(WARP_LANES) + 1);
            let states = lane_states * pitch + 2 * (chunks + 1) * wide(WARP_LANES);
            holds!(
                warps == lane_warps * chunk_warps && warps <= wide(COLUMN_WARPS),
                lane_warps <= lanes,
                chunks <= wide(WINDOW_CHUNKS) && width <= wide(MAX_COLUMN),
                chunks == 1 || plan.lanes == WARP_LANES,
                plan.row_blocks.is_power_of_two() && row_blocks <= chunks,
                is_clustered(row_blocks),
                panels == wide(problem.input.inner.div_ceil(WARP_LANES)),
                blocks == outer * panels * row_blocks,
                shared_bytes >= states * state_bytes,
            );
        }
        (Tier::Tiled, Residency::Registers) => {
            let Some([neighbours, block_rows, panels]) = panel else {
                return Err("tiles without their panel".into());
            };
            let inner = wide(problem.input.inner);
            let outer = wide(problem.rows) / inner;
            let most_threads = match element_bytes {
                8 => TILED_THREADS / 2,
                _ => TILED_THREADS,
            };
            let of_chunks = if chunks > 1 { 2 * chunks } else { 0 };
            holds!(
                neighbours.count_ones() == 1 && neighbours <= wide(WARP_LANES),
                block_rows > 0 && block_rows % neighbours == 0,
                threads == block_rows * lanes && threads <= wide(most_threads),
                row_blocks == chunks && is_clustered(row_blocks),
                chunks == 1 || plan.lanes == WARP_LANES,
                panels * block_rows >= inner && (panels - 1) * block_rows < inner,
                blocks == outer * panels * row_blocks,
                shared_bytes >= block_rows * (lanes + 2 + of_chunks) * state_bytes,
            );
        }
        _ => return Err("no such kernels".into()),
    }
    Ok(())
}

/// Whether every device that the kernels are built for (sm_80 and up) has at least as much.
fn is_real(device: &DeviceLimits) -> bool {
    device.shared_bytes_per_block >= 99 << 10 && device.max_blocks >= i32::MAX as usize
}

fn check_plans(case: &Case, tally: &Tally) -> Result<()> {
    let problem = match case.problem() {
        Ok(problem) => problem,
        Err(Error::NotPacked { .. }) => {
            tally.add("[not packed]");
            return Ok(());
        }
        // An index is a u32.
        Err(Error::AxisTooLong { .. }) if case.width > 1 << 32 => return Ok(()),
        Err(err) => return Err(err.into()),
    };
    let device = &case.device;
    let chosen = Plan::select(&problem, device);
    let forced_limits = with_limits(*device, || Plan::select(&problem, &DeviceLimits::H200));
    anyhow::ensure!(chosen == forced_limits, "forced limits bring another plan");
    let mut plans = Vec::new();
    match chosen {
        Ok(plan) => plans.push((None, plan)),
        Err(Error::TierRefused { .. }) => {
            // The gradient of layer norm of f64 has states of 48 bytes, more than 99 KiB in a window.
            let is_large = matches!(problem.op, Op::LayerNormGradient { .. })
                && problem.dtype == DType::F64
                && device.shared_bytes_per_block < 101 << 10;
            let is_due = problem.input.is_contiguous() && is_real(device) && !is_large;
            anyhow::ensure!(!is_due, "no plan for a device of the usual size");
            tally.add("[no plan]");
        }
        Err(err) => return Err(err.into()),
    }
    for tier in Tier::ALL {
        match with_tier(tier, || Plan::select(&problem, device)) {
            Ok(plan) => plans.push((Some(tier), plan)),
            Err(Error::TierRefused { .. }) => {}
            Err(err) => return Err(err.into()),
        }
    }
    for (forced, plan) in &plans {
        check_sound(plan, &problem, device)
            .map_err(|what| anyhow::anyhow!("{forced:?}: {what}: {plan:?}"))?;
        let is_forced = forced.is_none_or(|tier| {
            tier == plan.tier || (tier == Tier::Warp && plan.tier == Tier::Serial)
        });
        anyhow::ensure!(is_forced, "{forced:?} forced: {plan:?}");
        // The canonical fold.
        let cut = |plan: &Plan| (plan.vectors, plan.chunks, plan.lanes);
        anyhow::ensure!(cut(plan) == cut(&plans[0].1), "cut otherwise: {plans:?}");
        tally.add(format!("[{}]", plan.tier.name()));
    }
    Ok(())
}

#[test]
fn plans_cpu() -> Result<()> {
    fuzz_some(USUAL, "plans", regressions!("plans"), cases(), check_plans)
}

/// What the checker is for: a plan with one number changed is noticed.
#[test]
fn a_plan_that_is_not_sound_is_noticed() {
    let layout = Layout::contiguous((7, 5000));
    let problem = Problem::new(Op::Softmax, &layout, DType::F32, &[]).unwrap();
    let device = DeviceLimits::H200;
    let plan = Plan::select(&problem, &device).unwrap();
    assert_eq!(check_sound(&plan, &problem, &device), Ok(()));
    let spoilt: [fn(&mut Plan); 8] = [
        |plan| plan.chunks += 1,
        |plan| plan.chunks -= 1,
        |plan| plan.threads += 32,
        |plan| plan.threads -= 1,
        |plan| plan.blocks += 1,
        |plan| plan.lanes = 16,
        |plan| plan.shared_bytes = 1 << 20,
        |plan| plan.tier = Tier::Cluster,
    ];
    for (i, spoil) in spoilt.iter().enumerate() {
        let mut plan = plan;
        spoil(&mut plan);
        assert!(check_sound(&plan, &problem, &device).is_err(), "{i}");
    }
}

/// A layout, by hand.
fn layouts() -> BoxedStrategy<(Vec<usize>, Vec<usize>, usize)> {
    let size = || prop_oneof![1 => Just(1), 4 => 1usize..6];
    let stride = prop_oneof![
        2 => select(vec![0usize, 1, 2, 3, 6]),
        1 => sizes(31),
        1 => select(vec![usize::MAX, usize::MAX / 2]),
    ];
    let any_strides = vec((size(), stride), 0..6).prop_map(|dims| dims.into_iter().unzip());
    // A packed tensor with its dims in another order, cut and repeated.
    let of_packed = (vec(size(), 1..6), any::<u64>()).prop_map(|(dims, order)| {
        let mut strides = Layout::contiguous(dims.as_slice()).stride().to_vec();
        let mut dims = dims;
        let mut order = order;
        for i in (1..dims.len()).rev() {
            let j = order as usize % (i + 1);
            order /= i as u64 + 1;
            dims.swap(i, j);
            strides.swap(i, j);
        }
        let cut = order as usize % dims.len();
        match order / 7 % 3 {
            0 => strides[cut] = 0,
            1 => dims[cut] = dims[cut].div_ceil(2),
            _ => {}
        }
        (dims, strides)
    });
    (prop_oneof![any_strides, of_packed], sizes(40))
        .prop_map(|((dims, strides), offset)| (dims, strides, offset))
        .boxed()
}

/// A view of rows has every row once, where the layout has it, in its order.
#[test]
fn layouts_cpu() -> Result<()> {
    let check = |case: &(Vec<usize>, Vec<usize>, usize), tally: &Tally| -> Result<()> {
        let (dims, strides, offset) = case;
        let layout = Layout::new(Shape::from(dims.clone()), strides.clone(), *offset);
        let (width, along) = (
            dims.last().copied().unwrap_or(1),
            strides.last().copied().unwrap_or(1),
        );
        let outer = &dims[..dims.len().saturating_sub(1)];
        let views = [
            ("rows", Rows::of(&layout)),
            ("repeated", Rows::of_repeated(&layout)),
        ];
        for (kind, view) in views {
            let Some(view) = view else {
                tally.add(format!("[no {kind}]"));
                continue;
            };
            tally.add(format!("[{kind}]"));
            anyhow::ensure!(view.count() == outer.iter().product::<usize>(), "{view:?}");
            let is_along = width == 1 || view.axis_stride == along;
            anyhow::ensure!(is_along, "another stride: {view:?}");
            for row in 0..view.count() {
                let mut rest = row;
                let mut due = *offset as u128;
                for (size, stride) in outer.iter().zip(strides).rev() {
                    due += (rest % size) as u128 * *stride as u128;
                    rest /= size;
                }
                // What no memory holds.
                let Ok(due) = usize::try_from(due) else { break };
                anyhow::ensure!(view.start(row) == due, "row {row} of {view:?}: {due}");
            }
        }
        Ok(())
    };
    fuzz_some(USUAL, "layouts", regressions!("layouts"), layouts(), check)
}
