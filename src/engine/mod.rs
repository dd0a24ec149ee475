//! Engine
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
mod reducer;
mod row;
mod scratch;
mod tile;
mod walk;

pub use context::{load, once, pjoin, reduce, reduce_into, round, Context};
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
