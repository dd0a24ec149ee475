//! From a problem and a device to a [`Plan`]: which tier runs it, with which launch geometry.
//!
//! This is the one place where a tier is chosen. It is a pure function of its arguments and needs no
//! GPU; the C ABI executes exactly what it answers.

use std::cell::Cell;
use std::fmt;

use crate::error::{Error, Result};
use crate::problem::{is_float, Op, Problem};
use crate::tuning::{
    chunk_shape, has_split_k, state_bytes, words_ahead, ChunkShape, COLUMNS_FROM_BLOCKS,
    COLUMN_BLOCKS, COLUMN_WARPS, MAX_CHUNK_UNITS, MAX_CLUSTER_BLOCKS, MAX_COLUMN,
    MAX_RESIDENT_WARPS, MAX_STREAMING_WARPS, MAX_TEAMS, MAX_WARP_TIER_WARPS,
    PORTABLE_CLUSTER_BLOCKS, SPLIT_K_BLOCKS, STATE_BYTES, STREAMING_EXTRA_STATES, TEAM_BYTES,
    TILED_ELEMENTS, TILED_THREADS, VECTOR_BYTES, WARP_LANES, WINDOW_CHUNKS, WORKSPACE_BYTES,
};

/// What the planner needs to know of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Dynamic shared memory that one block may ask for, in bytes.
    pub shared_bytes_per_block: usize,
    /// Blocks of the first grid dimension.
    pub max_blocks: usize,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_bytes_per_multiprocessor: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Blocks of the split-K tier that a multiprocessor holds at once; 0 where a launch cannot ask
    /// that all its blocks be resident.
    pub split_k_blocks: usize,
    /// Blocks of a cluster; 1 where there are no clusters (before sm_90).
    pub max_cluster: usize,
}

impl DeviceLimits {
    /// An H200's, for planning without a GPU.
    pub const H200: DeviceLimits = DeviceLimits {
        shared_bytes_per_block: 227 * 1024,
        max_blocks: i32::MAX as usize,
        shared_bytes_per_multiprocessor: 228 * 1024,
        multiprocessors: 132,
        split_k_blocks: SPLIT_K_BLOCKS,
        max_cluster: MAX_CLUSTER_BLOCKS,
    };

    /// These limits, or those that are forced on this thread (see [`with_limits`]), as far as a plan can use
    /// them: the C ABI counts blocks and bytes in 32 bits.
    pub(crate) fn in_force(&self) -> DeviceLimits {
        let limits = FORCED.get().limits.unwrap_or(*self);
        let counted = |limit: usize| limit.min(i32::MAX as usize);
        DeviceLimits {
            shared_bytes_per_block: counted(limits.shared_bytes_per_block),
            max_blocks: counted(limits.max_blocks),
            shared_bytes_per_multiprocessor: counted(limits.shared_bytes_per_multiprocessor),
            multiprocessors: counted(limits.multiprocessors),
            split_k_blocks: counted(limits.split_k_blocks),
            max_cluster: limits.max_cluster.max(1),
        }
    }
}

/// Who owns a row. The bits of a result do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// One warp, or a part of one.
    Warp,
    /// One block.
    Block,
    /// The blocks of a cluster (sm_90 and up).
    Cluster,
    /// Blocks anywhere on the device, which agree through global memory.
    SplitK,
    /// Rows that lie side by side: a block, or a cluster, holds some of them in registers.
    Tiled,
    /// Rows that lie side by side: threads that take a row each walk parts of it where it lies.
    Columns,
    /// One thread.
    Serial,
}

impl Tier {
    /// Every tier.
    pub const ALL: [Tier; 7] = [
        Tier::Serial,
        Tier::Warp,
        Tier::Block,
        Tier::Cluster,
        Tier::SplitK,
        Tier::Tiled,
        Tier::Columns,
    ];

    /// The name that errors and plans show.
    pub const fn name(&self) -> &'static str {
        match self {
            Tier::Warp => "warp",
            Tier::Block => "block",
            Tier::Cluster => "cluster",
            Tier::SplitK => "split-k",
            Tier::Tiled => "tiled",
            Tier::Columns => "columns",
            Tier::Serial => "serial",
        }
    }
}

/// How the threads of a row hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// One chunk a warp, in registers from the first walk to the last.
    Registers,
    /// Chunk after chunk. The first walk stages as many as fit in shared memory; what does not is
    /// read again by every walk.
    SharedMemory {
        /// Chunks of the row that a block stages.
        staged: usize,
    },
}

/// How one problem runs on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Who owns a row.
    pub tier: Tier,
    /// How the row is held between walks.
    pub residency: Residency,
    /// 16-byte vectors a lane holds of a chunk.
    pub vectors: usize,
    /// Chunks of a row.
    pub chunks: usize,
    /// Lanes that share a chunk: fewer than 32 where several short rows share a warp.
    pub lanes: usize,
    /// Threads of a block.
    pub threads: usize,
    /// Blocks that share a row: several on the cluster and split-K tiers.
    pub row_blocks: usize,
    /// Blocks of the grid; where there are more rows than they hold, they go round.
    pub blocks: usize,
    /// Chunk states kept in shared memory by a block that streams.
    pub slots: usize,
    /// Where staged chunks begin in shared memory.
    pub stage_offset: usize,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: usize,
    /// Chunks that a state stands for which a block of a team publishes: 1 or 32.
    pub unit: usize,
    /// How rows that lie side by side are held.
    pub panel: Option<Panel>,
    /// How rows that lie side by side are walked.
    pub columns: Option<Columns>,
}

/// The rows that lie side by side which a block of the tiled tier has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panel {
    /// Neighbouring rows of neighbouring threads: a power of two up to 32.
    pub columns: usize,
    /// Rows of the block: groups of so many, side by side.
    pub rows: usize,
    /// Panels side by side in one outer index.
    pub panels: usize,
}

/// How the warps of a block share 32 rows that lie side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Warps that share a chunk.
    pub lane_warps: usize,
    /// Chunks that are walked side by side.
    pub chunk_warps: usize,
    /// Panels of 32 rows side by side in one outer index.
    pub panels: usize,
}

impl Plan {
    /// The plan for a problem with at least one element.
    ///
    /// # Errors
    ///
    /// [`Error::TierRefused`] where the tier is forced (see [`with_tier`]) and cannot run the
    /// problem, where no kernel reads columns as they lie, and where the device has too little shared memory.
    pub fn select(problem: &Problem, device: &DeviceLimits) -> Result<Plan> {
        let device = &device.in_force();
        let plan = Self::choose(problem, device)?;
        // Of a row as much is staged as there is room for; the states beside it, and rows that are staged ahead
        // of their turn, take what they take.
        if plan.shared_bytes > device.shared_bytes_per_block || plan.blocks > device.max_blocks {
            return refuse(
                problem,
                plan.tier,
                format!(
                    "it takes {} blocks of {} bytes of shared memory, and the device has {} of {}",
                    plan.blocks,
                    plan.shared_bytes,
                    device.max_blocks,
                    device.shared_bytes_per_block
                ),
            );
        }
        Ok(plan)
    }

    fn choose(problem: &Problem, device: &DeviceLimits) -> Result<Plan> {
        let forced = FORCED.get();
        let cut = Cut::of(problem);
        let refuse = |tier, reason| refuse(problem, tier, reason);
        let tier = forced.tier;
        if !problem.input.is_contiguous() {
            let inner = problem.input.inner;
            let tiled = || cut.tiled_plan(device, problem);
            let columns = || cut.columns_plan(device, problem);
            let (plan, refused) = match tier {
                None => {
                    let busy = COLUMNS_FROM_BLOCKS * device.multiprocessors;
                    let walks = columns().filter(|plan| {
                        problem.op.is_reduction()
                            && cut.shape.lanes == WARP_LANES
                            && plan.blocks >= busy
                    });
                    (walks.or_else(tiled).or_else(columns), Tier::Columns)
                }
                Some(Tier::Tiled) => (tiled(), Tier::Tiled),
                Some(Tier::Columns) => (columns(), Tier::Columns),
                Some(tier) => return refuse(tier, format!("{inner} rows lie side by side")),
            };
            return match plan {
                Some(plan) => Ok(plan),
                None => refuse(
                    refused,
                    format!(
                        "of columns of {} elements neither the tiles fit in the registers of {} blocks nor the states in {} bytes of shared memory, or there is no kernel of the op for columns",
                        problem.width, device.max_cluster, device.shared_bytes_per_block
                    ),
                ),
            };
        }
        match tier {
            Some(tier @ (Tier::Tiled | Tier::Columns)) => {
                refuse(tier, "rows are contiguous".to_string())
            }
            Some(Tier::Serial) if cut.shape.lanes > 1 => refuse(
                Tier::Serial,
                format!("{} lanes share the row", cut.shape.lanes),
            ),
            Some(Tier::Warp) if cut.chunks > 1 => {
                Ok(cut.streaming_plan(Tier::Warp, 1, device, problem))
            }
            None | Some(Tier::Warp | Tier::Serial) if cut.chunks == 1 => {
                Ok(cut.warp_plan(problem, device))
            }
            Some(Tier::SplitK) if cut.chunks > 1 => {
                match cut.split_k_plan(device, problem) {
                    Some(plan) => Ok(plan),
                    None => refuse(
                        Tier::SplitK,
                        format!(
                            "it takes a device with cooperative launches, two blocks a row and {WORKSPACE_BYTES} bytes for states, and the row has {} chunks",
                            cut.chunks
                        ),
                    ),
                }
            }
            Some(tier) if cut.chunks == 1 => refuse(
                tier,
                format!(
                    "the row is one chunk of {} elements, and there is nothing to share",
                    cut.chunk_elements
                ),
            ),
            Some(Tier::Cluster) => match cut.cluster_blocks(device) {
                Some(blocks) if problem.bands <= device.max_blocks / blocks => {
                    Ok(cut.resident_plan(Tier::Cluster, blocks, problem))
                }
                _ => refuse(
                    Tier::Cluster,
                    format!(
                        "it takes clusters of up to {} blocks of {MAX_RESIDENT_WARPS} chunks and a grid of {} blocks, and the row has {} chunks",
                        device.max_cluster, device.max_blocks, cut.chunks
                    ),
                ),
            },
            _ => Ok(cut.shared_plan(tier, device, problem)),
        }
    }
}

/// The error of a problem that `tier` cannot run.
fn refuse(problem: &Problem, tier: Tier, reason: String) -> Result<Plan> {
    Err(Error::TierRefused {
        op: problem.op.name(),
        tier: tier.name(),
        rows: problem.rows,
        width: problem.width,
        dtype: problem.dtype,
        reason,
    })
}

/// How the canonical fold cuts a row.
struct Cut {
    shape: ChunkShape,
    chunk_elements: usize,
    chunks: usize,
}

impl Cut {
    fn of(problem: &Problem) -> Self {
        let element_bytes = problem.dtype.size_in_bytes();
        let shape = chunk_shape(problem.op, problem.width, element_bytes);
        let chunk_elements = shape.lanes * shape.vectors * VECTOR_BYTES / element_bytes;
        Cut {
            shape,
            chunk_elements,
            chunks: problem.width.div_ceil(chunk_elements),
        }
    }

    fn warp_plan(&self, problem: &Problem, device: &DeviceLimits) -> Plan {
        let rows_per_block = MAX_WARP_TIER_WARPS * WARP_LANES / self.shape.lanes;
        Plan {
            tier: match self.shape.lanes {
                1 => Tier::Serial,
                _ => Tier::Warp,
            },
            residency: Residency::Registers,
            vectors: self.shape.vectors,
            chunks: 1,
            lanes: self.shape.lanes,
            threads: MAX_WARP_TIER_WARPS * WARP_LANES,
            row_blocks: 1,
            blocks: match problem.op.goes_by_bands() {
                // A band is what a block goes round.
                true => problem.bands,
                false => problem.rows.div_ceil(rows_per_block).min(device.max_blocks),
            },
            slots: 0,
            stage_offset: 0,
            shared_bytes: self.bytes_ahead(MAX_WARP_TIER_WARPS, problem),
            unit: 1,
            panel: None,
            columns: None,
        }
    }

    /// Shared memory of a resident block whose rows are staged ahead: 0 of ops whose rows are not.
    fn bytes_ahead(&self, warps: usize, problem: &Problem) -> usize {
        match problem.op.goes_by_bands() {
            true => {
                let words = words_ahead(problem.dtype.size_in_bytes()) * self.shape.vectors;
                warps * WARP_LANES * words * VECTOR_BYTES
            }
            false => 0,
        }
    }

    /// Blocks of a cluster that hold the row, at least 2; `None` where the device allows no such
    /// cluster.
    fn cluster_blocks(&self, device: &DeviceLimits) -> Option<usize> {
        let blocks = self
            .chunks
            .div_ceil(MAX_RESIDENT_WARPS)
            .next_power_of_two()
            .max(2);
        (blocks <= device.max_cluster.min(MAX_CLUSTER_BLOCKS)).then_some(blocks)
    }

    /// A plan for a row of several chunks: one block where it holds them, else a cluster; else a
    /// team of blocks where there are too few rows to go round, or where a team can stage what a
    /// block cannot; else a block that streams. With the block tier forced, a block.
    fn shared_plan(&self, forced: Option<Tier>, device: &DeviceLimits, problem: &Problem) -> Plan {
        // Resident blocks have one row and are done.
        let room = |blocks: usize| problem.bands <= device.max_blocks / blocks;
        if self.chunks <= MAX_RESIDENT_WARPS && room(1) {
            return self.resident_plan(Tier::Block, 1, problem);
        }
        match self.cluster_blocks(device) {
            Some(blocks) if forced.is_none() && room(blocks) => {
                self.resident_plan(Tier::Cluster, blocks, problem)
            }
            _ => {
                let alone = self.streaming_plan(Tier::Block, MAX_STREAMING_WARPS, device, problem);
                let reads_again = !problem.op.is_reduction()
                    && alone.residency
                        != Residency::SharedMemory {
                            staged: self.chunks,
                        };
                if forced.is_none() && (problem.bands < device.multiprocessors || reads_again) {
                    self.split_k_plan(device, problem).unwrap_or(alone)
                } else {
                    alone
                }
            }
        }
    }

    /// Teams of blocks, all of them resident; `None` where there can be no team of two or the
    /// states of all teams find no room.
    fn split_k_plan(&self, device: &DeviceLimits, problem: &Problem) -> Option<Plan> {
        if !has_split_k(problem, self.shape.vectors) {
            return None;
        }
        // CUDA keeps 1 KiB of each block for itself.
        let shared = (device.shared_bytes_per_multiprocessor)
            .checked_div(device.split_k_blocks)?
            .saturating_sub(1024)
            .min(device.shared_bytes_per_block);
        let blocks = (device.multiprocessors * device.split_k_blocks).min(device.max_blocks);
        if blocks < 2 {
            return None;
        }
        let room = (WORKSPACE_BYTES - MAX_TEAMS * TEAM_BYTES) / (2 * STATE_BYTES);
        // As many blocks a row as there are for it, or as hold it in shared memory, whichever are
        // more; each with a chunk a warp, or a few for the shortest rows.
        let stage = shared.saturating_sub((WINDOW_CHUNKS + STREAMING_EXTRA_STATES) * STATE_BYTES);
        let to_share = blocks / problem.bands.clamp(1, blocks);
        let to_stage = (self.chunks * self.staged_bytes(problem)).div_ceil(stage.max(1));
        let useful = self.chunks.div_ceil(MAX_STREAMING_WARPS);
        let row_blocks = to_share.max(to_stage).min(useful).clamp(2, blocks);
        let teams = (blocks / row_blocks).min(problem.bands).min(MAX_TEAMS);
        let unit = if self.chunks <= MAX_CHUNK_UNITS && self.chunks * teams <= room {
            1
        } else {
            WARP_LANES
        };
        let units = self.chunks.div_ceil(unit);
        let row_blocks = row_blocks.min(units);
        if row_blocks < 2 || teams == 0 || units * teams > room {
            return None;
        }
        let own = units.div_ceil(row_blocks) * unit;
        let slots = match unit {
            1 => self.chunks.div_ceil(WARP_LANES),
            _ => own.min(WINDOW_CHUNKS),
        };
        let staged = self.staged(slots, own, shared, problem)?;
        Some(Plan {
            tier: Tier::SplitK,
            row_blocks,
            blocks: teams * row_blocks,
            unit,
            ..self.streaming(MAX_STREAMING_WARPS, slots, staged, problem)
        })
    }

    /// Whether there are kernels of the op for rows that lie side by side: none of integers (any and all run as
    /// integers), nor of ops with side inputs, which work on the last dim.
    fn has_columns(problem: &Problem) -> bool {
        let as_integers = !is_float(problem.dtype) || matches!(problem.op, Op::Any | Op::All);
        let normalizes = matches!(problem.op, Op::L2Normalize { .. });
        !as_integers && !normalizes && problem.op.operands().is_empty()
    }

    /// Blocks of 32 rows, their length shared by as many warps as have something to do, and by the blocks of a
    /// cluster; `None` where the states of all chunks do not fit.
    fn columns_plan(&self, device: &DeviceLimits, problem: &Problem) -> Option<Plan> {
        let fits = self.chunks <= WINDOW_CHUNKS && problem.width <= MAX_COLUMN;
        if !Self::has_columns(problem) || !fits {
            return None;
        }
        let inner = problem.input.inner;
        let panels = inner.div_ceil(WARP_LANES);
        let owners = (problem.rows / inner).checked_mul(panels)?;
        let most = device.max_cluster.min(MAX_CLUSTER_BLOCKS).min(self.chunks);
        let row_blocks = match problem.op.is_reduction() {
            // As many as keep the device busy.
            true => (COLUMN_BLOCKS * device.multiprocessors)
                .div_ceil(owners)
                .clamp(1, PORTABLE_CLUSTER_BLOCKS)
                .min(most),
            // What is read again is on its way through the L2 cache: the fewer rows at once, the surer. Softmax of
            // (16384, 8192) over dim 0, with 1, 2, 4, 8 and 16 blocks: bf16 536, 372, 412, 360 and 346 us, f32 535, 451,
            // 473, 465 and 455 (stand-alone kernels, H200, 2026-11-30).
            false => most,
        };
        let row_blocks = (row_blocks + 1).next_power_of_two() / 2;
        let state_bytes = state_bytes(problem.op, problem.dtype);
        // All warps share a chunk, or as many as it has lanes. Two or four chunks side by side: between 8 % faster and
        // 74 % slower, in the median of 266 pairs of runs 1 to 10 % slower (stand-alone kernels, H200, 2026-11-30).
        let chunk_warps = 1;
        let lane_warps = COLUMN_WARPS.min(self.shape.lanes);
        // ColumnShare::bytes of context.cuh.
        let of_lanes = chunk_warps * self.shape.lanes * (WARP_LANES + 1);
        let shared_bytes = (of_lanes + 2 * (self.chunks + 1) * WARP_LANES) * state_bytes;
        let blocks = owners
            .checked_mul(row_blocks)
            .filter(|blocks| *blocks <= device.max_blocks)?;
        (shared_bytes <= device.shared_bytes_per_block).then_some(Plan {
            tier: Tier::Columns,
            residency: Residency::Registers,
            vectors: self.shape.vectors,
            chunks: self.chunks,
            lanes: self.shape.lanes,
            threads: chunk_warps * lane_warps * WARP_LANES,
            row_blocks,
            blocks,
            slots: 0,
            stage_offset: 0,
            shared_bytes,
            unit: 1,
            panel: None,
            columns: Some(Columns {
                lane_warps,
                chunk_warps,
                panels,
            }),
        })
    }

    /// As many rows a block as it has threads for; `None` where a row has more chunks than a cluster has blocks, or
    /// its tiles are too large for the registers, and where there are no such kernels.
    fn tiled_plan(&self, device: &DeviceLimits, problem: &Problem) -> Option<Plan> {
        let vector = VECTOR_BYTES / problem.dtype.size_in_bytes();
        let most_blocks = device.max_cluster.min(MAX_CLUSTER_BLOCKS);
        if !Self::has_columns(problem)
            || self.chunks > most_blocks
            || self.shape.vectors * vector > TILED_ELEMENTS
        {
            return None;
        }
        let inner = problem.input.inner;
        let lanes = self.shape.lanes;
        let threads = match problem.dtype.size_in_bytes() {
            8 => TILED_THREADS / 2,
            _ => TILED_THREADS,
        };
        let all = inner.next_power_of_two().min(threads / lanes);
        // Whole warps.
        let rows = all.max(WARP_LANES / lanes);
        let panels = inner.div_ceil(rows);
        let blocks = (problem.rows / inner)
            .checked_mul(panels)?
            .checked_mul(self.chunks)
            .filter(|blocks| *blocks <= device.max_blocks)?;
        // TileShare::bytes of context.cuh.
        let of_chunks = if self.chunks > 1 { 2 * self.chunks } else { 0 };
        let shared_bytes = rows * (lanes + 2 + of_chunks) * state_bytes(problem.op, problem.dtype);
        (shared_bytes <= device.shared_bytes_per_block).then_some(Plan {
            tier: Tier::Tiled,
            residency: Residency::Registers,
            vectors: self.shape.vectors,
            chunks: self.chunks,
            lanes,
            threads: rows * lanes,
            row_blocks: self.chunks,
            blocks,
            slots: 0,
            stage_offset: 0,
            shared_bytes,
            unit: 1,
            panel: Some(Panel {
                columns: rows.min(WARP_LANES),
                rows,
                panels,
            }),
            columns: None,
        })
    }

    /// Bytes of a chunk of all the rows that are kept on chip.
    fn staged_bytes(&self, problem: &Problem) -> usize {
        self.chunk_elements * problem.dtype.size_in_bytes() * problem.op.cached_rows()
    }

    /// How many of `own` chunks a block stages beside `slots` states; `None` where not even those fit.
    fn staged(
        &self,
        slots: usize,
        own: usize,
        shared_bytes: usize,
        problem: &Problem,
    ) -> Option<usize> {
        let states = 2 * slots + STREAMING_EXTRA_STATES;
        let stage = shared_bytes.checked_sub(states * state_bytes(problem.op, problem.dtype))?;
        // A reduction walks a row once, but for the rare case that it walks it again.
        let wanted = if problem.op.is_reduction() { 0 } else { own };
        Some(wanted.min(stage / self.staged_bytes(problem)))
    }

    fn resident_plan(&self, tier: Tier, cluster: usize, problem: &Problem) -> Plan {
        Plan {
            tier,
            residency: Residency::Registers,
            vectors: self.shape.vectors,
            chunks: self.chunks,
            lanes: WARP_LANES,
            threads: self.chunks.div_ceil(cluster) * WARP_LANES,
            row_blocks: cluster,
            blocks: problem.bands * cluster,
            slots: 0,
            stage_offset: 0,
            shared_bytes: self.bytes_ahead(self.chunks.div_ceil(cluster), problem),
            unit: 1,
            panel: None,
            columns: None,
        }
    }

    fn streaming_plan(
        &self,
        tier: Tier,
        warps: usize,
        device: &DeviceLimits,
        problem: &Problem,
    ) -> Plan {
        let slots = self.chunks.min(WINDOW_CHUNKS);
        let staged = self.staged(slots, self.chunks, device.shared_bytes_per_block, problem);
        Plan {
            tier,
            blocks: problem.bands.min(device.max_blocks),
            ..self.streaming(warps, slots, staged.unwrap_or(0), problem)
        }
    }

    /// What the plans of blocks that stream have in common: one block a row.
    fn streaming(&self, warps: usize, slots: usize, staged: usize, problem: &Problem) -> Plan {
        let states = 2 * slots + STREAMING_EXTRA_STATES;
        let stage_offset = states * state_bytes(problem.op, problem.dtype);
        Plan {
            tier: Tier::Block,
            residency: Residency::SharedMemory { staged },
            vectors: self.shape.vectors,
            chunks: self.chunks,
            lanes: WARP_LANES,
            threads: warps * WARP_LANES,
            row_blocks: 1,
            blocks: 1,
            slots,
            stage_offset,
            shared_bytes: stage_offset + staged * self.staged_bytes(problem),
            unit: 1,
            panel: None,
            columns: None,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tier: {} chunk(s) of {} lanes of {} vector(s), {} block(s) a row, ",
            self.tier.name(),
            self.chunks,
            self.lanes,
            self.vectors,
            self.row_blocks,
        )?;
        match self.residency {
            Residency::Registers => write!(f, "held in registers; ")?,
            Residency::SharedMemory { staged } => {
                write!(f, "{staged} chunk(s) a block held in shared memory; ")?
            }
        }
        if let Some(panel) = self.panel {
            write!(
                f,
                "{} rows side by side a block, {} of them neighbours; ",
                panel.rows, panel.columns
            )?;
        }
        write!(
            f,
            "{} blocks of {} threads, {} bytes of shared memory",
            self.blocks, self.threads, self.shared_bytes,
        )
    }
}

/// What tests and measurements force on the plans of a thread.
#[derive(Debug, Clone, Copy)]
struct Forced {
    tier: Option<Tier>,
    limits: Option<DeviceLimits>,
}

thread_local! {
    static FORCED: Cell<Forced> = const { Cell::new(Forced { tier: None, limits: None }) };
}

/// Runs `f` with every plan made on this thread forced onto `tier`: for tests and measurements. The
/// results have the same bits on every tier.
pub fn with_tier<R>(tier: Tier, f: impl FnOnce() -> R) -> R {
    let tier = Some(tier);
    with_forced(
        Forced {
            tier,
            ..FORCED.get()
        },
        f,
    )
}

/// Runs `f` with every plan made on this thread made for a device of these limits, which must be ones
/// that the device has or exceeds: for tests of what devices differ in. The results have the same bits.
pub fn with_limits<R>(limits: DeviceLimits, f: impl FnOnce() -> R) -> R {
    let limits = Some(limits);
    with_forced(
        Forced {
            limits,
            ..FORCED.get()
        },
        f,
    )
}

fn with_forced<R>(forced: Forced, f: impl FnOnce() -> R) -> R {
    /// Restores what was forced before, also when `f` panics.
    struct Restore(Forced);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _restore = Restore(FORCED.replace(forced));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Layout, Shape};

    fn problem(op: Op, dtype: DType, rows: usize, width: usize) -> Problem {
        let side = Layout::contiguous(width);
        let sides = vec![Some((&side, dtype)); op.operands().len()];
        Problem::new(op, &Layout::contiguous((rows, width)), dtype, &sides).unwrap()
    }

    /// The same of an op whose operand is a row for every row.
    fn problem_of_rows(op: Op, dtype: DType, rows: usize, width: usize) -> Problem {
        let layout = Layout::contiguous((rows, width));
        Problem::new(op, &layout, dtype, &[Some((&layout, dtype))]).unwrap()
    }

    const WIDTHS: [usize; 24] = [
        1, 2, 7, 8, 9, 31, 64, 65, 128, 129, 256, 257, 512, 513, 1024, 2048, 2049, 4096, 4097,
        16384, 16385, 70000, 1_000_003, 16_777_216,
    ];

    #[test]
    fn the_chunks_of_a_plan_cover_the_row_and_no_chunk_is_empty() {
        for dtype in [DType::BF16, DType::F32, DType::F64] {
            for width in WIDTHS {
                let p = problem(Op::Softmax, dtype, 3, width);
                let plan = Plan::select(&p, &DeviceLimits::H200).unwrap();
                let chunk = plan.lanes * plan.vectors * VECTOR_BYTES / dtype.size_in_bytes();
                assert!(plan.chunks * chunk >= width, "{width}: {plan}");
                assert!((plan.chunks - 1) * chunk < width, "{width}: {plan}");
            }
        }
    }

    #[test]
    fn a_row_is_cut_the_same_way_whatever_the_batch_and_the_tier() {
        for width in WIDTHS {
            let mut cuts = Vec::new();
            for rows in [1, 2, 257, 1 << 20] {
                let p = problem(Op::Sum, DType::F16, rows, width);
                cuts.push(Plan::select(&p, &DeviceLimits::H200).unwrap());
                for tier in Tier::ALL {
                    cuts.extend(with_tier(tier, || Plan::select(&p, &DeviceLimits::H200)).ok());
                }
            }
            let first = (cuts[0].vectors, cuts[0].chunks);
            assert!(
                cuts.iter().all(|c| (c.vectors, c.chunks) == first),
                "{width}"
            );
        }
    }

    #[test]
    fn every_tier_and_residency_is_reached() {
        let reached: Vec<_> = [16, 1024, 4096, 32768, 131_072, 262_144, 262_145, 16_777_216]
            .into_iter()
            .map(|width| {
                let p = problem(Op::Softmax, DType::BF16, 64, width);
                let plan = Plan::select(&p, &DeviceLimits::H200).unwrap();
                (plan.tier, plan.row_blocks)
            })
            .collect();
        let no_clusters = DeviceLimits {
            max_cluster: 1,
            ..DeviceLimits::H200
        };
        let staged = problem(Op::Softmax, DType::F32, 640, 30_000);
        let staged = Plan::select(&staged, &no_clusters).unwrap();
        assert_eq!(
            (staged.tier, staged.residency),
            (Tier::Block, Residency::SharedMemory { staged: 30 })
        );
        let sum = problem(Op::Sum, DType::F32, 640, 1_000_000);
        let sum = Plan::select(&sum, &DeviceLimits::H200).unwrap();
        assert_eq!(
            (sum.tier, sum.residency),
            (Tier::Block, Residency::SharedMemory { staged: 0 })
        );
        assert_eq!(
            reached,
            [
                (Tier::Serial, 1),
                (Tier::Warp, 1),
                (Tier::Block, 1),
                (Tier::Cluster, 2),
                (Tier::Cluster, 8),
                (Tier::Cluster, 16),
                (Tier::SplitK, 7),
                (Tier::SplitK, 256),
            ]
        );
    }

    #[test]
    fn columns_are_held_or_walked() {
        let plan = |op, outer: usize, width: usize, inner: usize, device: &DeviceLimits| {
            let strides = vec![width * inner, 1, inner];
            let layout = Layout::new(Shape::from((outer, inner, width)), strides, 0);
            let problem = Problem::new(op, &layout, DType::BF16, &[]).unwrap();
            let plan = Plan::select(&problem, device).unwrap();
            (plan.tier, plan.row_blocks)
        };
        let h200 = DeviceLimits::H200;
        for (op, outer, width, inner, expected) in [
            // What is read twice is held as long as a cluster can.
            (Op::Softmax, 64, 4096, 512, (Tier::Tiled, 4)),
            (Op::Softmax, 1, 8192, 8192, (Tier::Tiled, 8)),
            (Op::Softmax, 1, 16384, 8192, (Tier::Columns, 8)),
            // Reductions walk where there are enough of them.
            (Op::Sum, 64, 4096, 512, (Tier::Columns, 1)),
            (Op::Sum, 1, 2048, 2048, (Tier::Tiled, 2)),
            (Op::Sum, 1, 16384, 8192, (Tier::Columns, 2)),
            (Op::Sum, 512, 100, 1024, (Tier::Tiled, 1)),
        ] {
            let got = plan(op, outer, width, inner, &h200);
            assert_eq!(got, expected, "{} ({outer}, {width}, {inner})", op.name());
        }
        let no_clusters = DeviceLimits {
            max_cluster: 1,
            ..h200
        };
        let softmax = plan(Op::Softmax, 64, 4096, 512, &no_clusters);
        assert_eq!(softmax, (Tier::Columns, 1));
    }

    #[test]
    fn short_rows_share_a_warp() {
        for (width, lanes, vectors) in [
            (9, 1, 2),
            (32, 1, 4),
            (100, 4, 4),
            (256, 8, 4),
            (1024, 32, 4),
        ] {
            let p = problem(Op::Sum, DType::BF16, 1000, width);
            let plan = Plan::select(&p, &DeviceLimits::H200).unwrap();
            assert_eq!((plan.lanes, plan.vectors), (lanes, vectors), "{width}");
            assert_eq!(plan.blocks, 1000usize.div_ceil(8 * 32 / lanes), "{width}");
        }
    }

    #[test]
    fn more_rows_than_a_grid_holds_go_round() {
        let device = DeviceLimits {
            max_blocks: 65535,
            ..DeviceLimits::H200
        };
        for width in [16, 4096] {
            let p = problem(Op::Max, DType::F32, 1 << 30, width);
            let plan = Plan::select(&p, &device).unwrap();
            assert_eq!(plan.blocks, 65535, "{width}: {plan}");
        }
    }

    #[test]
    fn what_does_not_fit_in_shared_memory_is_read_again() {
        let p = problem(Op::RmsNorm { eps: 1e-6 }, DType::F32, 8, 30000);
        let large = DeviceLimits {
            max_cluster: 1,
            ..DeviceLimits::H200
        };
        let small = DeviceLimits {
            shared_bytes_per_block: 48 * 1024,
            ..large
        };
        let on_block = |device| with_tier(Tier::Block, || Plan::select(&p, device).unwrap());
        let plan = on_block(&large);
        assert_eq!(plan.residency, Residency::SharedMemory { staged: 30 });
        assert!(plan.shared_bytes <= large.shared_bytes_per_block);
        let plan = on_block(&small);
        assert_eq!(plan.residency, Residency::SharedMemory { staged: 10 });
        assert!(plan.shared_bytes <= small.shared_bytes_per_block);
    }

    #[test]
    fn a_device_without_blocks_to_share_has_no_teams() {
        let p = problem(Op::Sum, DType::F32, 1, 1 << 22);
        for (multiprocessors, split_k_blocks) in [(0, 2), (1, 1), (132, 0)] {
            let device = DeviceLimits {
                multiprocessors,
                split_k_blocks,
                ..DeviceLimits::H200
            };
            let plan = Plan::select(&p, &device).unwrap();
            assert_eq!(plan.tier, Tier::Block, "{device:?}");
            let refused = with_tier(Tier::SplitK, || Plan::select(&p, &device));
            assert!(matches!(refused, Err(Error::TierRefused { .. })));
        }
    }

    #[test]
    fn limits_beyond_32_bits_are_as_good_as_those_within() {
        let device = DeviceLimits {
            shared_bytes_per_block: usize::MAX,
            max_blocks: usize::MAX,
            shared_bytes_per_multiprocessor: usize::MAX,
            multiprocessors: usize::MAX,
            split_k_blocks: usize::MAX,
            max_cluster: usize::MAX,
        };
        for (op, rows, width) in [
            (Op::Softmax, 1 << 29, 100_000_000),
            (Op::Softmax, 1 << 40, 16),
            (Op::Sum, 1, 1 << 33),
        ] {
            let p = problem(op, DType::F32, rows, width);
            let plan = Plan::select(&p, &device).unwrap();
            let most = i32::MAX as usize;
            assert!(plan.blocks <= most && plan.shared_bytes <= most, "{plan}");
            assert!(plan.row_blocks <= MAX_CLUSTER_BLOCKS || plan.tier == Tier::SplitK);
        }
    }

    #[test]
    fn columns_have_blocks_however_few_multiprocessors_there_are() {
        let layout = Layout::new(Shape::from((1, 40, 3000)), vec![0, 1, 40], 0);
        let p = Problem::new(Op::Sum, &layout, DType::F32, &[]).unwrap();
        let device = DeviceLimits {
            multiprocessors: 0,
            ..DeviceLimits::H200
        };
        let plan = with_tier(Tier::Columns, || Plan::select(&p, &device)).unwrap();
        assert_eq!((plan.row_blocks, plan.blocks), (1, 2));
    }

    #[test]
    fn clusters_of_columns_are_no_larger_than_there_are_kernels_for() {
        let strides = vec![0, 1, 4096];
        let layout = Layout::new(Shape::from((1, 4096, 50_000)), strides, 0);
        let p = Problem::new(Op::Softmax, &layout, DType::F32, &[]).unwrap();
        let device = DeviceLimits {
            max_cluster: 32,
            ..DeviceLimits::H200
        };
        let plan = Plan::select(&p, &device).unwrap();
        assert_eq!((plan.tier, plan.row_blocks), (Tier::Columns, 16));
    }

    #[test]
    fn states_that_do_not_fit_in_shared_memory_are_refused() {
        let device = DeviceLimits {
            shared_bytes_per_block: 99 * 1024,
            max_cluster: 1,
            split_k_blocks: 1,
            ..DeviceLimits::H200
        };
        let of = |dtype, width| {
            let op = Op::LayerNormGradient {
                eps: 1e-5,
                sums: true,
            };
            Plan::select(&problem_of_rows(op, dtype, 3, width), &device)
        };
        // Of f64 a state has 48 bytes, and a window 2152 of them.
        let refused = of(DType::F64, 300_000);
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("103296 bytes"), "{message}");
        assert!(of(DType::F64, 250_000).is_ok());
        assert!(of(DType::F32, 300_000).is_ok());
    }

    #[test]
    fn a_forced_tier_that_cannot_run_says_so_and_is_forgotten_afterwards() {
        let p = problem(Op::Softmax, DType::F32, 3, 100);
        let refused = with_tier(Tier::Block, || Plan::select(&p, &DeviceLimits::H200));
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("softmax") && message.contains("block") && message.contains("100")
        );
        assert!(Plan::select(&p, &DeviceLimits::H200).is_ok());
    }
}
