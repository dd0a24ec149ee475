//! The glue between candle's custom ops and ours, written once for all ops: what an op computes is
//! in [`Op`], where it runs is decided by candle, and the gradient comes from the op's own file.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape,
    Storage, Tensor,
};

use crate::error::Error;
use crate::ops::gradient;
use crate::plan::{DeviceLimits, Plan};
use crate::problem::{
    check_axis, check_dtype, check_size, is_float, Op, OperandView, Problem, RowResult, Rows,
    MAX_OPERANDS,
};

/// An [`Op`] as candle runs and differentiates it.
#[derive(Clone)]
struct RowOp {
    op: Op,
    /// Where the axis is in the result of an op that makes rows, if not last.
    result_dim: Option<usize>,
    /// Where the operands come from, in the order of [`Op::operands`].
    operands: Vec<Source>,
    /// What the op has made beside its first result, for its gradient.
    beside: OnceLock<Vec<Tensor>>,
    /// The result, where another op's kernel has already made it; taken by the first to run.
    ready: Ready,
}

/// A result that is there before the op is recorded.
type Ready = Arc<Mutex<Option<Storage>>>;

fn take(ready: &Ready) -> Option<Storage> {
    // Nothing panics while it is locked.
    ready.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Where an operand comes from. Candle takes three tensors at most and asks for gradients of all of them:
/// it is given those that may have one.
#[derive(Clone)]
enum Source {
    /// Candle's next argument.
    Argument,
    /// This tensor, which has no gradient.
    Held(Tensor),
    /// It was left out.
    Absent,
}

/// The operands as tensors, those left out as `None`.
type Operands<'a> = [Option<&'a Tensor>];

/// Applies `op` to the last axis of `x`, recording its gradient.
///
/// `operands` are in the order of [`Op::operands`]. Inputs of any strides are taken:
/// what the kernels cannot read in place is packed first. The result keeps the last axis: of the
/// input's width for a row op, of length 1 for a reduction.
pub(crate) fn apply(op: Op, x: &Tensor, operands: &Operands) -> Result<Tensor> {
    apply_in_shape(op, x, operands, None)
}

/// [`apply`], with the result in `shape`, if one is given, of as many elements.
///
/// Where no gradient is asked for, candle's graph is gone round: what it keeps for a backward pass and a
/// reshape after it are half of the time of a short call (sum of (1, 1) f32: 715 ns, now 310;
/// 2026-11-30, 2-core x86-64 VM).
pub(crate) fn apply_in_shape(
    op: Op,
    x: &Tensor,
    operands: &Operands,
    shape: Option<Shape>,
) -> Result<Tensor> {
    let tracks = |t: &Tensor| t.track_op() && is_float(t.dtype());
    let tracks_x = op.has_derivative() && tracks(x);
    if !tracks_x && !operands.iter().flatten().any(|t| tracks(t)) {
        if let Some(result) = reduce_on_host(op, x) {
            let shape = shape.unwrap_or_else(|| {
                let mut dims = x.dims().to_vec();
                dims[x.rank() - 1] = 1;
                dims.into()
            });
            return Ok(outside_graph(Storage::Cpu(result), shape));
        }
        return compute(op, x, operands, |problem, results| {
            let Some(first) = results.next() else {
                candle_core::bail!("{}: no result", op.name())
            };
            let shape = shape.unwrap_or_else(|| problem.output_shape());
            debug_assert_eq!(shape.elem_count(), problem.output_len());
            Ok(outside_graph(first, shape))
        });
    }
    let result = record(op, x, operands, None)?;
    match shape {
        Some(shape) => result.reshape(shape),
        None => Ok(result),
    }
}

/// Runs `op` as part of candle's graph, with a result that is there already, if any.
fn record(op: Op, x: &Tensor, operands: &Operands, ready: Option<Storage>) -> Result<Tensor> {
    let tracks = |t: &Tensor| t.track_op() && is_float(t.dtype());
    let (x, operands) = prepare(op, x, operands)?;
    let mut arguments = Vec::new();
    let operands: Vec<Source> = operands
        .into_iter()
        .map(|operand| match operand {
            None => Source::Absent,
            Some(operand) if tracks(&operand) => {
                arguments.push(operand);
                Source::Argument
            }
            Some(operand) => Source::Held(operand),
        })
        .collect();
    let this = RowOp {
        op,
        result_dim: None,
        operands,
        beside: OnceLock::new(),
        ready: Arc::new(Mutex::new(ready)),
    };
    match arguments.as_slice() {
        [] => x.apply_op1(this),
        [a] => x.apply_op2(a, this),
        [a, b] => x.apply_op3(a, b, this),
        _ => candle_core::bail!(
            "{}: of more than two operands at once there is no gradient",
            op.name()
        ),
    }
}

/// The shortest way for the simplest of calls, on which short rows spend more time than on being reduced:
/// a reduction to one value, without operands, of contiguous rows in host memory. `None` for others, and
/// where it fails.
fn reduce_on_host(op: Op, x: &Tensor) -> Option<CpuStorage> {
    let is_simple = matches!(op.results(), [RowResult::Scalar]) && op.operands().is_empty();
    if !is_simple || !x.is_contiguous() {
        return None;
    }
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        return None;
    };
    let (dtype, shape) = (storage.dtype(), layout.shape());
    let (&width, outer) = shape.dims().split_last()?;
    let rows = outer.iter().product();
    if rows == 0 || width == 0 {
        return None;
    }
    if check_dtype(op, dtype, shape).is_err() || check_axis(op, outer.len(), width, shape).is_err()
    {
        return None;
    }
    #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
    if crate::cuda::host_run::seed().is_some() {
        return None;
    }
    // What `Problem::new` makes of it, but for the shape, which only errors show, and bands, of which there
    // are none. Made where it stays: it is large, and is not moved for nothing.
    let problem = Problem {
        op,
        dtype,
        rows,
        width,
        input: Rows {
            offset: layout.start_offset(),
            ..Rows::contiguous(rows, width)
        },
        result_dim: outer.len(),
        operands: [None; MAX_OPERANDS],
        bands: 0,
        shape: Shape::from(()),
    };
    // What fails here fails on the usual way as well, which says of what shape.
    crate::cpu::run_alone(&problem, storage).ok()
}

/// Runs `op` on the last axis of `x` and returns all its results, outside of any graph. For gradients, and
/// for ops with several results.
pub(crate) fn run(op: Op, x: &Tensor, operands: &Operands) -> Result<Vec<Tensor>> {
    compute(op, x, operands, |problem, results| {
        let results = results.enumerate();
        Ok(results
            .map(|(i, storage)| outside_graph(storage, problem.result_shape(i)))
            .collect())
    })
}

/// A tensor that no gradient flows through.
fn outside_graph(storage: Storage, shape: Shape) -> Tensor {
    Tensor::from_storage(storage, shape, BackpropOp::none(), false)
}

/// Runs `op` on the last axis of `x`, outside of any graph, and makes of its results what `finish` does.
fn compute<R>(
    op: Op,
    x: &Tensor,
    operands: &Operands,
    finish: impl FnOnce(&Problem, &mut dyn Iterator<Item = Storage>) -> Result<R>,
) -> Result<R> {
    let (x, operands) = prepare(op, x, operands)?;
    let this = RowOp {
        op,
        result_dim: None,
        operands: operands
            .into_iter()
            .map(|operand| operand.map_or(Source::Absent, Source::Held))
            .collect(),
        beside: OnceLock::new(),
        ready: Ready::default(),
    };
    let (storage, layout) = x.storage_and_layout();
    match &*storage {
        Storage::Cpu(s) => this.cpu(&[(s, layout)], |problem, results| {
            finish(problem, &mut results.into_iter().map(Storage::Cpu))
        }),
        Storage::Cuda(s) => this.cuda(&[(s, layout)], |problem, results| {
            finish(problem, &mut results.into_iter().map(Storage::Cuda))
        }),
        Storage::Metal(_) => candle_core::bail!("{}: no kernels for Metal", op.name()),
    }
}

/// Runs `fused`, which makes `op` of `x + residual` and that sum in one pass, and returns both. What is
/// recorded is a sum and `op` of it, so that each has the gradient that it would have alone.
pub(crate) fn apply_to_sum(
    fused: Op,
    op: Op,
    x: &Tensor,
    residual: &Tensor,
    operands: &Operands,
) -> Result<(Tensor, Tensor)> {
    let mut all = vec![Some(residual)];
    all.extend_from_slice(operands);
    let (result, sum) = compute(fused, x, &all, |_, results| {
        match (results.next(), results.next()) {
            (Some(result), Some(sum)) => Ok((result, sum)),
            _ => candle_core::bail!("{}: not two results", fused.name()),
        }
    })?;
    let sum = x.apply_op2(residual, ReadySum(Arc::new(Mutex::new(Some(sum)))))?;
    let result = record(op, &sum, operands, Some(result))?;
    Ok((result, sum))
}

/// The sum of two tensors of one shape, which a kernel has made already.
struct ReadySum(Ready);

impl ReadySum {
    fn take(&self) -> Result<Storage> {
        match take(&self.0) {
            Some(sum) => Ok(sum),
            None => candle_core::bail!("{}: run twice", CustomOp2::name(self)),
        }
    }
}

impl CustomOp2 for ReadySum {
    fn name(&self) -> &'static str {
        "add-residual"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        l1: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        match self.take()? {
            Storage::Cpu(sum) => Ok((sum, l1.shape().clone())),
            _ => candle_core::bail!("{}: not on the CPU", CustomOp2::name(self)),
        }
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        l1: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        match self.take()? {
            Storage::Cuda(sum) => Ok((sum, l1.shape().clone())),
            _ => candle_core::bail!("{}: not on the GPU", CustomOp2::name(self)),
        }
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(grad.clone()), Some(grad.clone())))
    }
}

/// Checks the devices, and packs what kernels cannot read in place.
fn prepare(op: Op, x: &Tensor, operands: &Operands) -> Result<(Tensor, Vec<Option<Tensor>>)> {
    debug_assert!(operands.len() <= op.operands().len());
    check_size(op, x.shape())?;
    for (expected, operand) in op.operands().iter().zip(operands) {
        let Some(operand) = operand else { continue };
        if !operand.device().same_device(x.device()) {
            return Err(Error::DeviceMismatch {
                op: op.name(),
                argument: expected.name,
                expected: x.device().location(),
                got: operand.device().location(),
                got_shape: operand.shape().clone(),
                shape: x.shape().clone(),
            }
            .into());
        }
    }
    // Rows side by side are reduced where they lie; an op that makes rows would leave its own side by
    // side as well, which is not what callers of this function expect.
    // Without elements, no stride is ever followed.
    let in_place = x.is_contiguous()
        || match Rows::of(x.layout()) {
            _ if x.elem_count() == 0 => true,
            Some(rows) => {
                rows.is_contiguous() || (op.is_reduction() && takes_columns(op, x).is_some())
            }
            None => false,
        };
    let x_rows = if in_place { x.clone() } else { pack(x)? };
    let rows = x.elem_count() / x.dims().last().copied().unwrap_or(1).max(1);
    let operands = op.operands().iter().zip(operands);
    let operands = operands.map(|(expected, operand)| {
        let Some(operand) = operand else {
            return Ok(None);
        };
        let view = OperandView::of(expected, operand.layout(), operand.dtype(), rows);
        if view.is_some() || operand.elem_count() == 0 {
            Ok(Some((*operand).clone()))
        } else {
            pack(operand).map(Some)
        }
    });
    Ok((x_rows, operands.collect::<Result<_>>()?))
}

/// A contiguous copy.
fn pack(x: &Tensor) -> Result<Tensor> {
    // Candle's GPU kernels copy no narrow signed integers: the largest value of each row of one
    // element is that element.
    if !x.device().is_cpu() && matches!(x.dtype(), DType::I16 | DType::I32) {
        let elements = x.unsqueeze(x.rank())?;
        if Rows::of(elements.layout()).is_some_and(|rows| rows.is_contiguous()) {
            return apply(Op::Max, &elements, &[])?.reshape(x.shape());
        }
    }
    x.contiguous()
}

/// Applies an op that makes rows, and has no side inputs, to the last axis of `x` where it lies in
/// columns, recording its gradient. The result is contiguous with the axis at `dim`; `None` where the
/// device has no kernel for it, or where the result would lie otherwise.
pub(crate) fn apply_to_columns(op: Op, x: &Tensor, dim: usize) -> Result<Option<Tensor>> {
    if takes_columns(op, x) != Some(dim) {
        return Ok(None);
    }
    x.apply_op1(RowOp {
        op,
        result_dim: Some(dim),
        operands: Vec::new(),
        beside: OnceLock::new(),
        ready: Ready::default(),
    })
    .map(Some)
}

/// Where the result's axis is if the device reads `x` in columns; `None` if its rows are no columns,
/// or it has no kernel for them.
fn takes_columns(op: Op, x: &Tensor) -> Option<usize> {
    let limits = device_limits(x)?;
    let problem = Problem::new(op, x.layout(), x.dtype(), &[]).ok()?;
    if problem.is_empty() || problem.input.is_contiguous() {
        return None;
    }
    Plan::select(&problem, &limits).ok()?;
    Some(problem.result_dim)
}

/// What plans for the device of `x` are made for; `None` where no kernels run.
pub(crate) fn device_limits(x: &Tensor) -> Option<DeviceLimits> {
    match x.device() {
        #[cfg(feature = "cuda")]
        candle_core::Device::Cuda(device) => crate::cuda::limits(device).ok(),
        #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
        candle_core::Device::Cpu => {
            crate::cuda::host_run::seed().map(|_| crate::cuda::host_run::LIMITS)
        }
        _ => None,
    }
}

/// The results for an input without elements, for which no kernel is run: nothing, or the value over
/// nothing.
fn empty<D: BackendDevice>(problem: &Problem, device: &D) -> Result<Vec<D::Storage>> {
    let results = 0..problem.op.results().len();
    results
        .map(|i| {
            let shape = problem.result_shape(i);
            let zeros = device.zeros_impl(&shape, problem.op.result_dtype(i, problem.dtype))?;
            match problem.op.empty_value() {
                Some(value) if i == 0 && value != 0.0 && shape.elem_count() > 0 => {
                    zeros.affine(&Layout::contiguous(shape), 1.0, value)
                }
                _ => Ok(zeros),
            }
        })
        .collect()
}

/// Runs a problem of host memory: by the CPU engine, but where a test has the kernels run there.
fn on_host(
    problem: &Problem,
    x: &CpuStorage,
    operands: &[Option<&CpuStorage>],
) -> Result<Vec<CpuStorage>> {
    #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
    if let Some(result) = crate::cuda::host_run::run(problem, x, operands) {
        return result;
    }
    crate::cpu::run(problem, x, operands)
}

/// Runs `op` on an input and its operands, by `run`, or without elements by [`empty`], and makes of the
/// results what `finish` does.
fn launch<S: BackendStorage, R>(
    op: Op,
    (x, x_layout): (&S, &Layout),
    operands: &[Option<(&S, &Layout)>],
    run: impl FnOnce(&Problem, &S, &[Option<&S>]) -> Result<Vec<S>>,
    finish: impl FnOnce(&Problem, Vec<S>) -> Result<R>,
) -> Result<R>
where
    S::Device: BackendDevice<Storage = S>,
{
    let layouts: Vec<_> = operands
        .iter()
        .map(|operand| operand.map(|(s, layout)| (layout, s.dtype())))
        .collect();
    let empty_layout;
    let x_layout = if x_layout.shape().elem_count() == 0 {
        // Without elements, no stride is ever followed.
        empty_layout = Layout::contiguous(x_layout.shape());
        &empty_layout
    } else {
        x_layout
    };
    let problem = Problem::new(op, x_layout, x.dtype(), &layouts)?;
    let results = if problem.is_empty() {
        empty(&problem, x.device())?
    } else {
        let storages: Vec<_> = operands.iter().map(|o| o.map(|(s, _)| s)).collect();
        run(&problem, x, &storages)?
    };
    finish(&problem, results)
}

/// What a tensor on a GPU meets where there are no kernels.
#[cfg(not(feature = "cuda"))]
pub(crate) fn without_cuda<T>(op: &str) -> Result<T> {
    candle_core::bail!("{op}: candle-rowwise was built without its `cuda` feature")
}

/// Checks dims and dtype of a call on any dims of a tensor, before anything is moved or packed.
pub(crate) fn check(op: Op, dtype: DType, shape: &Shape, dims: &[usize]) -> Result<()> {
    check_dtype(op, dtype, shape)?;
    check_size(op, shape)?;
    for &dim in dims {
        let len = shape.dims().get(dim).copied().unwrap_or(1);
        check_axis(op, dim, len, shape)?;
    }
    Ok(())
}

/// The storage of a tensor on the CPU.
fn cpu_storage(storage: &Storage) -> Result<&CpuStorage> {
    match storage {
        Storage::Cpu(storage) => Ok(storage),
        _ => candle_core::bail!("an operand that is not on the CPU"),
    }
}

/// The storage of a tensor on a GPU.
#[cfg(feature = "cuda")]
fn cuda_storage(storage: &Storage) -> Result<&CudaStorage> {
    match storage {
        Storage::Cuda(storage) => Ok(storage),
        _ => candle_core::bail!("an operand that is not on the GPU"),
    }
}

impl RowOp {
    /// [`launch`] on the input and those operands that candle has handed over. `unwrap` takes what is held
    /// from its tensor.
    fn execute<S: BackendStorage, R>(
        &self,
        arguments: &[(&S, &Layout)],
        unwrap: fn(&Storage) -> Result<&S>,
        run: impl FnOnce(&Problem, &S, &[Option<&S>]) -> Result<Vec<S>>,
        finish: impl FnOnce(&Problem, Vec<S>) -> Result<R>,
    ) -> Result<R>
    where
        S::Device: BackendDevice<Storage = S>,
    {
        let [(x, x_layout), ref rest @ ..] = *arguments else {
            candle_core::bail!("{}: no input", self.op.name())
        };
        let mut rest = rest.iter();
        let held: Vec<_> = self
            .operands
            .iter()
            .map(|source| match source {
                Source::Held(tensor) => Some(tensor.storage_and_layout()),
                Source::Argument | Source::Absent => None,
            })
            .collect();
        let mut operands = Vec::with_capacity(self.operands.len());
        for (source, held) in self.operands.iter().zip(&held) {
            operands.push(match (source, held) {
                (Source::Argument, _) => rest.next().copied(),
                (_, Some((storage, layout))) => Some((unwrap(storage)?, *layout)),
                _ => None,
            });
        }
        launch(self.op, (x, x_layout), &operands, run, finish)
    }

    fn cpu<R>(
        &self,
        arguments: &[(&CpuStorage, &Layout)],
        finish: impl FnOnce(&Problem, Vec<CpuStorage>) -> Result<R>,
    ) -> Result<R> {
        let run = |problem: &Problem, x: &CpuStorage, operands: &[Option<&CpuStorage>]| match take(
            &self.ready,
        ) {
            Some(Storage::Cpu(result)) => Ok(vec![result]),
            _ => on_host(problem, x, operands),
        };
        self.execute(arguments, cpu_storage, run, finish)
    }

    #[cfg(feature = "cuda")]
    fn cuda<R>(
        &self,
        arguments: &[(&CudaStorage, &Layout)],
        finish: impl FnOnce(&Problem, Vec<CudaStorage>) -> Result<R>,
    ) -> Result<R> {
        let run = |problem: &Problem, x: &CudaStorage, operands: &[Option<&CudaStorage>]| match take(
            &self.ready,
        ) {
            Some(Storage::Cuda(result)) => Ok(vec![result]),
            _ => crate::cuda::run(problem, x, operands),
        };
        self.execute(arguments, cuda_storage, run, finish)
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda<R>(
        &self,
        _: &[(&CudaStorage, &Layout)],
        _: impl FnOnce(&Problem, Vec<CudaStorage>) -> Result<R>,
    ) -> Result<R> {
        without_cuda(self.op.name())
    }

    /// The first result, which is the one that candle is told of; the others are kept for the gradient.
    fn first<S>(
        &self,
        problem: &Problem,
        results: Vec<S>,
        wrap: fn(S) -> Storage,
    ) -> Result<(S, Shape)> {
        let mut results = results.into_iter();
        let Some(first) = results.next() else {
            candle_core::bail!("{}: no result", self.op.name())
        };
        let beside = results
            .enumerate()
            .map(|(i, storage)| outside_graph(wrap(storage), problem.result_shape(i + 1)));
        // Run again, the op makes the same of the same input.
        let _ = self.beside.set(beside.collect());
        Ok((first, problem.output_shape()))
    }

    /// [`RowOp::first`] of a run on the CPU.
    fn first_on_cpu(&self, arguments: &[(&CpuStorage, &Layout)]) -> Result<(CpuStorage, Shape)> {
        self.cpu(arguments, |problem, results| {
            self.first(problem, results, Storage::Cpu)
        })
    }

    /// [`RowOp::first`] of a run on a GPU.
    fn first_on_gpu(&self, arguments: &[(&CudaStorage, &Layout)]) -> Result<(CudaStorage, Shape)> {
        self.cuda(arguments, |problem, results| {
            self.first(problem, results, Storage::Cuda)
        })
    }

    /// The result, or its gradient, with the axis last.
    fn rows(&self, t: &Tensor) -> Result<Tensor> {
        match self.result_dim {
            None => Ok(t.clone()),
            Some(dim) => {
                let order = (0..t.rank()).filter(|i| *i != dim).chain([dim]);
                t.permute(order.collect::<Vec<_>>())
            }
        }
    }

    /// The gradients of candle's arguments, in their order.
    fn backward<const N: usize>(
        &self,
        arguments: [&Tensor; N],
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; N]> {
        let [x, rest @ ..] = arguments.as_slice() else {
            candle_core::bail!("{}: no input to differentiate by", self.op.name())
        };
        let mut arguments = rest.iter();
        let operands: Vec<_> = self
            .operands
            .iter()
            .map(|source| match source {
                Source::Argument => arguments.next().copied(),
                Source::Held(tensor) => Some(tensor),
                Source::Absent => None,
            })
            .chain(self.beside.get().into_iter().flatten().map(Some))
            .collect();
        let mut grads = gradient(self.op, x, &operands, &self.rows(res)?, &self.rows(grad)?)?;
        let is_argument = |i: usize| match i.checked_sub(1) {
            None => true,
            Some(operand) => matches!(self.operands.get(operand), Some(Source::Argument)),
        };
        let mut of_arguments = [const { None }; N];
        let wanted = grads
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| is_argument(*i));
        for (slot, (_, grad)) in of_arguments.iter_mut().zip(wanted) {
            *slot = grad.take();
        }
        Ok(of_arguments)
    }
}

impl CustomOp1 for RowOp {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.first_on_cpu(&[(s, l)])
    }

    fn cuda_fwd(&self, s: &CudaStorage, l: &Layout) -> Result<(CudaStorage, Shape)> {
        self.first_on_gpu(&[(s, l)])
    }

    fn bwd(&self, x: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let [dx] = self.backward([x], res, grad)?;
        Ok(dx)
    }
}

impl CustomOp2 for RowOp {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.first_on_cpu(&[(s1, l1), (s2, l2)])
    }

    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.first_on_gpu(&[(s1, l1), (s2, l2)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, da] = self.backward([x, a], res, grad)?;
        Ok((dx, da))
    }
}

impl CustomOp3 for RowOp {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.first_on_cpu(&[(s1, l1), (s2, l2), (s3, l3)])
    }

    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
        s3: &CudaStorage,
        l3: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.first_on_gpu(&[(s1, l1), (s2, l2), (s3, l3)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        b: &Tensor,
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, da, db] = self.backward([x, a, b], res, grad)?;
        Ok((dx, da, db))
    }
}
