//! Row-wise ops written once: a monoid, and a body that says what to do with a row.
//!
//! A kernel author writes
//! - a [`ReduceOp`], unless one that is here will do: how values are folded into a state, how states
//!   are joined;
//! - a [`RowBody`]: one function, generic over the [`Context`], of four verbs:
//!
//! | verb | what it does |
//! |---|---|
//! | [`reduce_into`] | walks the row and folds each tile into one state or several |
//! | [`pjoin`] | makes the row's state of what the walk's workers hold |
//! | [`reduce`] | walks the row with no state and writes a row of results |
//! | [`once`] | writes the single results of the row, exactly once |
//!
//! [`sum`], a faster walk for the most frequent of states; and, where a value is costly and used twice, [`stage_into`], which folds and keeps. A body never
//! sees a thread, a cut or an instruction set. [`launch`] runs it: short rows many to a thread, long
//! rows one to a thread, and few long rows each split over all threads.
//!
//! # A monoid of one's own
//! The spread of a row, its largest value less its smallest, and the row divided by it:
//!
//! ```
//! use candle_rowwise::engine::{
//!     launch, pjoin, reduce, reduce_into, Context, ReduceOp, Row, RowBody, LANES,
//! };
//!
//! /// The smallest and the largest value, one of each per lane.
//! #[derive(Clone, Copy)]
//! struct Range<const W: usize = LANES> {
//!     low: [f32; W],
//!     high: [f32; W],
//! }
//!
//! impl<const W: usize> ReduceOp<W> for Range<W> {
//!     type Value = f32;
//!     type Single = Range<1>;
//!
//!     #[inline(always)]
//!     fn identity() -> Self {
//!         Range { low: [f32::INFINITY; W], high: [f32::NEG_INFINITY; W] }
//!     }
//!     #[inline(always)]
//!     fn accumulate_lane(&mut self, lane: usize, value: f32, _position: i64) {
//!         self.low[lane] = if value < self.low[lane] { value } else { self.low[lane] };
//!         self.high[lane] = if value > self.high[lane] { value } else { self.high[lane] };
//!     }
//!     #[inline(always)]
//!     fn join(mut self, other: Self) -> Self {
//!         for lane in 0..W {
//!             self.accumulate_lane(lane, other.low[lane], 0);
//!             self.accumulate_lane(lane, other.high[lane], 0);
//!         }
//!         self
//!     }
//!     #[inline(always)]
//!     fn lane(&self, lane: usize) -> Range<1> {
//!         Range { low: [self.low[lane]], high: [self.high[lane]] }
//!     }
//! }
//!
//! /// `(x - low) / (high - low)`: every row scaled to [0, 1].
//! struct Rescale;
//!
//! impl RowBody for Rescale {
//!     type Element = f32;
//!     type Output = f32;
//!
//!     fn output_width(&self, width: usize) -> usize {
//!         width
//!     }
//!
//!     #[inline(always)]
//!     fn run<C: Context>(&self, row: &mut Row<'_, f32, f32>, ctx: C) {
//!         let range = reduce_into(
//!             row,
//!             ctx,
//!             Range::<LANES>::identity(),
//!             #[inline(always)]
//!             |range, x| range.accumulate(x),
//!         );
//!         let range = pjoin(range, ctx);
//!         let (low, spread) = (range.low[0], range.high[0] - range.low[0]);
//!         reduce(
//!             row,
//!             ctx,
//!             #[inline(always)]
//!             |x| x.map(|x| (x - low) / spread).values(),
//!         );
//!     }
//! }
//!
//! // Two rows of 1000.
//! let x: Vec<f32> = (0..2000).map(|i| (i % 1000) as f32 - 7.0 * (i / 1000) as f32).collect();
//! let mut y = vec![f32::NAN; 2000];
//! launch(&Rescale, 2, 1000, &x, &mut y)?;
//! assert_eq!((y[0], y[999], y[1000], y[1999]), (0.0, 1.0, 0.0, 1.0));
//! assert_eq!(y[500], 500.0 / 999.0);
//! # Ok::<(), candle_rowwise::engine::LaunchError>(())
//! ```
//!
//! # Several states in one walk, and one result per row
//! The log of the mean of exponentials, with the count of values that it is over taken in the same
//! walk as the sum. `f16` rows are folded in `f32` and rounded once:
//!
//! ```
//! use candle_rowwise::engine::{
//!     launch, once, pjoin, reduce_into, round, Context, Count, OnlineLogSumExp, ReduceOp, Row,
//!     RowBody,
//! };
//! use half::f16;
//!
//! /// `log(mean(exp(x)))` over the values that are not zero.
//! struct LogMeanExp;
//!
//! impl RowBody for LogMeanExp {
//!     type Element = f16;
//!     type Output = f16;
//!
//!     fn output_width(&self, _width: usize) -> usize {
//!         1
//!     }
//!
//!     #[inline(always)]
//!     fn run<C: Context>(&self, row: &mut Row<'_, f16, f16>, ctx: C) {
//!         let states = (OnlineLogSumExp::<f32>::identity(), Count::<f32>::identity());
//!         let (exps, count) = reduce_into(
//!             row,
//!             ctx,
//!             states,
//!             #[inline(always)]
//!             |(exps, count), x| {
//!                 exps.accumulate(&x.map(|x| if x == 0.0 { f32::NEG_INFINITY } else { x }));
//!                 count.accumulate(x);
//!             },
//!         );
//!         let (exps, count) = (pjoin(exps, ctx).value(), pjoin(count, ctx).value());
//!         once(row, ctx, || round(ctx, exps - (count as f32).ln()));
//!     }
//! }
//!
//! let x = [2.0, 0.0, 2.0, 0.0, 2.0].map(f16::from_f32);
//! let mut y = [f16::NAN];
//! launch(&LogMeanExp, 1, 5, &x, &mut y)?;
//! assert_eq!(y[0].to_f32(), 2.0);
//! # Ok::<(), candle_rowwise::engine::LaunchError>(())
//! ```
//!
//! # Bits
//! How a row is cut and in which order its parts are joined is a function of its width alone:
//! [`LANES`] lanes fold tile after tile, in a row of more than 1024 elements (from 256 on for [`sum`])
//! into two states in turn; after 32 tiles a state is set aside; the states so set aside are joined pairwise within a
//! segment of at least 32768 elements, the lanes of a segment by halves, and the segments pairwise. Threads only decide where that happens, and
//! instruction sets how fast, so the same row gives the same bits with any number of threads, in
//! any batch, at any stride, on AVX2, AVX-512 and without either. (The bits of a NaN are not
//! promised.) Rounding errors of a sum grow with `37 + 2 log2(width / 1024)`, not with the width.
//!
//! # Speed
//! Arrays of [`LANES`] numbers become vectors of the instruction set that the machine has. Three
//! things make that happen, all shown above: `#[inline(always)]` on the methods of a monoid, on
//! `run`, and on the closures that are handed to a walk. Without them the results are the same.

mod cascade;
mod context;
mod element;
mod exp;
mod half_bits;
pub(crate) mod isa;
mod launch;
mod monoids;
mod number;
mod op;
pub(crate) mod pages;
pub(crate) mod parallel;
mod reducer;
mod row;
mod scratch;
mod tile;
mod tree;
mod walk;

pub use context::{load, once, pjoin, reduce, reduce_into, round, stage_into, sum, Context};
pub use element::{Element, Output};
pub use launch::{launch, LaunchError, RowBody};
pub(crate) use launch::{launch_vec, Input, Starts};
pub use monoids::{
    AbsMax, All, Any, ArgMax, ArgMin, Count, Max, Min, MinMax, OnlineLogSumExp, Pair, Prod, Sum,
    SumOfSquares, Welford,
};
pub use number::{Float, Number};
pub use op::{Partials, ReduceOp, States};
pub use reducer::{Reducer, SerialReducer, SplitReducer};
pub use row::{Row, Source, Staged};
pub use tile::{Tile, LANES};
