//! Misuse that the types refuse: each call beside the same call done right. Compiled by `cargo test --doc`
//! alone. Only a nightly compiler compares the error codes; a stable one wants any error, which is why the right
//! call stands before it.

/// The state of a walk is no value before [`pjoin`](crate::engine::pjoin) has joined what the participants hold.
///
/// ```
/// use candle_rowwise::engine::{
///     once, pjoin, reduce_into, Context, ReduceOp, Row, RowBody, Sum,
/// };
/// struct Total;
/// impl RowBody for Total {
///     type Element = f32;
///     type Output = f32;
///     fn output_width(&self, _: usize) -> usize {
///         1
///     }
///     fn run<C: Context>(&self, row: &mut Row<'_, f32, f32>, ctx: C) {
///         let total = reduce_into(row, ctx, Sum::<f32>::identity(), |s, x| s.accumulate(x));
///         let total = pjoin(total, ctx);
///         once(row, ctx, || [total.value()]);
///     }
/// }
/// ```
///
/// ```compile_fail,E0599
/// use candle_rowwise::engine::{
///     once, reduce_into, Context, ReduceOp, Row, RowBody, Sum,
/// };
/// struct Total;
/// impl RowBody for Total {
///     type Element = f32;
///     type Output = f32;
///     fn output_width(&self, _: usize) -> usize {
///         1
///     }
///     fn run<C: Context>(&self, row: &mut Row<'_, f32, f32>, ctx: C) {
///         let total = reduce_into(row, ctx, Sum::<f32>::identity(), |s, x| s.accumulate(x));
///         once(row, ctx, || [total.value()]);
///     }
/// }
/// ```
mod states_are_joined {}

/// Results have the output's type.
///
/// ```
/// use candle_rowwise::engine::*;
/// struct Zero;
/// impl RowBody for Zero {
///     type Element = f32;
///     type Output = u8;
///     fn output_width(&self, _: usize) -> usize {
///         1
///     }
///     fn run<C: Context>(&self, row: &mut Row<'_, f32, u8>, ctx: C) {
///         once(row, ctx, || [0u8]);
///     }
/// }
/// ```
///
/// ```compile_fail,E0271
/// use candle_rowwise::engine::*;
/// struct Zero;
/// impl RowBody for Zero {
///     type Element = f32;
///     type Output = u8;
///     fn output_width(&self, _: usize) -> usize {
///         1
///     }
///     fn run<C: Context>(&self, row: &mut Row<'_, f32, u8>, ctx: C) {
///         once(row, ctx, || [0f32]);
///     }
/// }
/// ```
mod results_have_the_type_of_the_output {}

/// A body is for every context: the engine makes them, and nobody else can.
///
/// ```
/// use candle_rowwise::engine::Context;
/// fn lanes<C: Context>(ctx: C) -> usize {
///     ctx.accumulator_width()
/// }
/// ```
///
/// ```compile_fail,E0277
/// use candle_rowwise::engine::Context;
/// #[derive(Clone, Copy)]
/// struct Mine;
/// impl Context for Mine {}
/// ```
mod contexts_are_the_engine_s {}

/// Slices are launched with the types that the body is written for.
///
/// ```
/// use candle_rowwise::engine::*;
/// fn run<B: RowBody<Element = f32, Output = f32>>(body: &B, x: &[f32], y: &mut [f32]) {
///     launch(body, 1, x.len(), x, y).unwrap();
/// }
/// ```
///
/// ```compile_fail,E0308
/// use candle_rowwise::engine::*;
/// fn run<B: RowBody<Element = f32, Output = f32>>(body: &B, x: &[f64], y: &mut [f32]) {
///     launch(body, 1, x.len(), x, y).unwrap();
/// }
/// ```
mod slices_have_the_types_of_the_body {}

/// Options borrow their tensors, and do not outlive them.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_rowwise::ops::{softmax_with, SoftmaxOptions};
/// let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
/// let mask = Tensor::ones(4, DType::U8, &Device::Cpu)?;
/// let options = SoftmaxOptions::new().mask(&mask);
/// softmax_with(&x, 1, &options)?;
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// ```compile_fail,E0597
/// use candle_core::{DType, Device, Tensor};
/// use candle_rowwise::ops::{softmax_with, SoftmaxOptions};
/// let x = Tensor::zeros((2, 4), DType::F32, &Device::Cpu)?;
/// let options = {
///     let mask = Tensor::ones(4, DType::U8, &Device::Cpu)?;
///     SoftmaxOptions::new().mask(&mask)
/// };
/// softmax_with(&x, 1, &options)?;
/// # Ok::<(), candle_core::Error>(())
/// ```
mod options_borrow_their_tensors {}

/// Ops, tiers and errors may become more: a match of other crates has an arm for those.
///
/// ```
/// use candle_rowwise::plan::Tier;
/// fn is_one_warp(tier: Tier) -> bool {
///     match tier {
///         Tier::Warp => true,
///         Tier::Serial | Tier::Block | Tier::Cluster | Tier::SplitK => false,
///         Tier::Tiled | Tier::Columns => false,
///         _ => false,
///     }
/// }
/// ```
///
/// ```compile_fail,E0004
/// use candle_rowwise::plan::Tier;
/// fn is_one_warp(tier: Tier) -> bool {
///     match tier {
///         Tier::Warp => true,
///         Tier::Serial | Tier::Block | Tier::Cluster | Tier::SplitK => false,
///         Tier::Tiled | Tier::Columns => false,
///     }
/// }
/// ```
mod more_may_come {}
