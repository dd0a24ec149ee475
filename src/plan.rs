//! From a problem and a device to a [`Plan`]: which tier runs it, with which launch geometry.
//!
//! This is the one place where a tier is chosen. It is a pure function of its arguments and needs no
//! GPU; the C ABI executes exactly what it answers.

use std::cell::Cell;
use std::fmt;

use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::tuning::{
    chunk_shape, ChunkShape, MAX_CLUSTER_BLOCKS, MAX_RESIDENT_WARPS, MAX_STREAMING_WARPS,
    MAX_WARP_TIER_WARPS, STATE_BYTES, STREAMING_EXTRA_STATES, VECTOR_BYTES, WARP_LANES,
    WINDOW_CHUNKS,
};

/// What the planner needs to know of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Dynamic shared memory that one block may ask for, in bytes.
    pub shared_bytes_per_block: usize,
    /// Blocks of the first grid dimension.
    pub max_blocks: usize,
    /// Blocks of a cluster; 1 where there are no clusters (before sm_90).
    pub max_cluster: usize,
}

impl DeviceLimits {
    /// An H200's, for planning without a GPU.
    pub const H200: DeviceLimits = DeviceLimits {
        shared_bytes_per_block: 227 * 1024,
        max_blocks: i32::MAX as usize,
        max_cluster: MAX_CLUSTER_BLOCKS,
    };
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
}

impl Tier {
    /// Every tier.
    pub const ALL: [Tier; 3] = [Tier::Warp, Tier::Block, Tier::Cluster];

    /// The name that errors and plans show.
    pub const fn name(&self) -> &'static str {
        match self {
            Tier::Warp => "warp",
            Tier::Block => "block",
            Tier::Cluster => "cluster",
        }
    }
}

/// How the threads of a row hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Residency {
    /// One chunk a warp, in registers from the first walk to the last.
    Registers,
    /// Chunk after chunk; the row is staged in shared memory by the first walk.
    SharedMemory,
    /// Chunk after chunk; every walk reads global memory.
    Reread,
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
    /// Blocks that share a row: 1 but on the cluster tier.
    pub cluster: usize,
    /// Blocks of the grid; where there are more rows than they hold, they go round.
    pub blocks: usize,
    /// Chunk states kept in shared memory by a block that streams.
    pub slots: usize,
    /// Where the staged row begins in shared memory.
    pub stage_offset: Option<usize>,
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: usize,
}

impl Plan {
    /// The plan for a problem with at least one element.
    ///
    /// # Errors
    ///
    /// [`Error::TierRefused`] where the tier is forced (see [`with_tier`]) and cannot run the
    /// problem.
    pub fn select(problem: &Problem, device: &DeviceLimits) -> Result<Plan> {
        let cut = Cut::of(problem);
        let refuse = |tier: Tier, reason: String| {
            Err(Error::TierRefused {
                op: problem.op.name(),
                tier: tier.name(),
                rows: problem.rows,
                width: problem.width,
                dtype: problem.dtype,
                reason,
            })
        };
        let tier = FORCED.get();
        match tier {
            Some(Tier::Warp) if cut.chunks > 1 => {
                Ok(cut.streaming_plan(Tier::Warp, 1, device, problem))
            }
            None | Some(Tier::Warp) if cut.chunks == 1 => Ok(cut.warp_plan(problem, device)),
            Some(tier) if cut.chunks == 1 => refuse(
                tier,
                format!(
                    "the row is one chunk of {} elements, and there is nothing to share",
                    cut.chunk_elements
                ),
            ),
            Some(Tier::Cluster) => match cut.cluster_blocks(device) {
                Some(blocks) if problem.rows <= device.max_blocks / blocks => {
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
            tier: Tier::Warp,
            residency: Residency::Registers,
            vectors: self.shape.vectors,
            chunks: 1,
            lanes: self.shape.lanes,
            threads: MAX_WARP_TIER_WARPS * WARP_LANES,
            cluster: 1,
            blocks: problem.rows.div_ceil(rows_per_block).min(device.max_blocks),
            slots: 0,
            stage_offset: None,
            shared_bytes: 0,
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

    /// A plan for a row of several chunks: one block where it holds them, else a cluster, else a
    /// block that streams. With the block tier forced, no cluster.
    fn shared_plan(&self, forced: Option<Tier>, device: &DeviceLimits, problem: &Problem) -> Plan {
        // Resident blocks have one row and are done.
        let room = |blocks: usize| problem.rows <= device.max_blocks / blocks;
        if self.chunks <= MAX_RESIDENT_WARPS && room(1) {
            return self.resident_plan(Tier::Block, 1, problem);
        }
        match self.cluster_blocks(device) {
            Some(blocks) if forced.is_none() && room(blocks) => {
                self.resident_plan(Tier::Cluster, blocks, problem)
            }
            _ => self.streaming_plan(Tier::Block, MAX_STREAMING_WARPS, device, problem),
        }
    }

    fn resident_plan(&self, tier: Tier, cluster: usize, problem: &Problem) -> Plan {
        Plan {
            tier,
            residency: Residency::Registers,
            vectors: self.shape.vectors,
            chunks: self.chunks,
            lanes: WARP_LANES,
            threads: self.chunks.div_ceil(cluster) * WARP_LANES,
            cluster,
            blocks: problem.rows * cluster,
            slots: 0,
            stage_offset: None,
            shared_bytes: 0,
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
        let fixed = (2 * slots + STREAMING_EXTRA_STATES) * STATE_BYTES;
        let staged = self.chunks * self.chunk_elements * problem.dtype.size_in_bytes();
        let fits = fixed + staged <= device.shared_bytes_per_block;
        Plan {
            tier,
            residency: if fits {
                Residency::SharedMemory
            } else {
                Residency::Reread
            },
            vectors: self.shape.vectors,
            chunks: self.chunks,
            lanes: WARP_LANES,
            threads: warps * WARP_LANES,
            cluster: 1,
            blocks: problem.rows.min(device.max_blocks),
            slots,
            stage_offset: fits.then_some(fixed),
            shared_bytes: if fits { fixed + staged } else { fixed },
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = match self.residency {
            Residency::Registers => "registers",
            Residency::SharedMemory => "shared memory",
            Residency::Reread => "global memory",
        };
        write!(
            f,
            "{} tier: {} chunk(s) of {} lanes of {} vector(s), row held in {held} by {} block(s); {} blocks of {} threads, {} bytes of shared memory",
            self.tier.name(),
            self.chunks,
            self.lanes,
            self.vectors,
            self.cluster,
            self.blocks,
            self.threads,
            self.shared_bytes,
        )
    }
}

thread_local! {
    static FORCED: Cell<Option<Tier>> = const { Cell::new(None) };
}

/// Runs `f` with every plan made on this thread forced onto `tier`: for tests and measurements. The
/// results have the same bits on every tier.
pub fn with_tier<R>(tier: Tier, f: impl FnOnce() -> R) -> R {
    /// Restores what was forced before, also when `f` panics.
    struct Restore(Option<Tier>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _restore = Restore(FORCED.replace(Some(tier)));
    f()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Op;
    use candle_core::{DType, Layout};

    fn problem(op: Op, dtype: DType, rows: usize, width: usize) -> Problem {
        let side = Layout::contiguous(width);
        let sides = vec![(&side, dtype); op.sides().len()];
        Problem::new(op, &Layout::contiguous((rows, width)), dtype, &sides).unwrap()
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
        let reached: Vec<_> = [16, 1024, 4096, 16384, 131_072, 140_000, 16_777_216]
            .into_iter()
            .map(|width| {
                let p = problem(Op::Softmax, DType::BF16, 64, width);
                let plan = Plan::select(&p, &DeviceLimits::H200).unwrap();
                (plan.tier, plan.residency, plan.cluster)
            })
            .collect();
        let f32_staged = problem(Op::Softmax, DType::F32, 64, 30_000);
        let no_clusters = DeviceLimits {
            max_cluster: 1,
            ..DeviceLimits::H200
        };
        let staged = Plan::select(&f32_staged, &no_clusters).unwrap();
        assert_eq!(
            (staged.tier, staged.residency),
            (Tier::Block, Residency::SharedMemory)
        );
        assert_eq!(
            reached,
            [
                (Tier::Warp, Residency::Registers, 1),
                (Tier::Warp, Residency::Registers, 1),
                (Tier::Block, Residency::Registers, 1),
                (Tier::Cluster, Residency::Registers, 2),
                (Tier::Cluster, Residency::Registers, 8),
                (Tier::Block, Residency::Reread, 1),
                (Tier::Block, Residency::Reread, 1),
            ]
        );
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
    fn a_smaller_shared_memory_makes_the_row_be_read_again() {
        let p = problem(Op::RmsNorm { eps: 1e-6 }, DType::F32, 8, 30000);
        let large = DeviceLimits {
            max_cluster: 1,
            ..DeviceLimits::H200
        };
        let small = DeviceLimits {
            shared_bytes_per_block: 48 * 1024,
            ..large
        };
        let plan = Plan::select(&p, &large).unwrap();
        assert_eq!(plan.residency, Residency::SharedMemory);
        assert!(plan.shared_bytes <= large.shared_bytes_per_block);
        let plan = Plan::select(&p, &small).unwrap();
        assert_eq!(plan.residency, Residency::Reread);
        assert!(plan.shared_bytes <= small.shared_bytes_per_block);
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
