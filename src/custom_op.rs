//! The glue between candle's custom ops and ours, written once for all ops: what an op computes is
//! in [`Op`], where it runs is decided by candle, and the gradient comes from the op's own file.

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result, Shape, Tensor,
};

use crate::error::Error;
use crate::ops::gradient;
use crate::plan::{DeviceLimits, Plan};
use crate::problem::{check_axis, check_dtype, is_float, Op, Problem, Rows};

/// An [`Op`] as candle runs and differentiates it.
#[derive(Clone, Copy)]
struct RowOp {
    op: Op,
    /// Where the axis is in the result of an op that makes rows, if not last.
    result_dim: Option<usize>,
}

/// Applies `op` to the last axis of `x`, recording its gradient.
///
/// `sides` are the op's side inputs in the order of [`Op::sides`]. Inputs of any strides are taken:
/// what the kernels cannot read in place is packed first. The result keeps the last axis: of the
/// input's width for a row op, of length 1 for a reduction.
pub(crate) fn apply(op: Op, x: &Tensor, sides: &[&Tensor]) -> Result<Tensor> {
    debug_assert_eq!(sides.len(), op.sides().len());
    for (argument, side) in op.sides().iter().zip(sides) {
        if !side.device().same_device(x.device()) {
            return Err(Error::DeviceMismatch {
                op: op.name(),
                argument,
                expected: x.device().location(),
                got: side.device().location(),
                got_shape: side.shape().clone(),
                shape: x.shape().clone(),
            }
            .into());
        }
    }
    // Rows side by side are reduced where they lie; an op that makes rows would leave its own side by
    // side as well, which is not what callers of this function expect.
    // Without elements, no stride is ever followed.
    let in_place = match Rows::of(x.layout()) {
        _ if x.elem_count() == 0 => true,
        Some(rows) => rows.is_contiguous() || (op.is_reduction() && takes_columns(op, x).is_some()),
        None => false,
    };
    let x = if in_place { x.clone() } else { pack(x)? };
    let sides = sides
        .iter()
        .map(|side| side.contiguous())
        .collect::<Result<Vec<_>>>()?;
    let this = RowOp {
        op,
        result_dim: None,
    };
    match sides.as_slice() {
        // Without a derivative there is nothing to record: recording the op would let a backward
        // pass fail later, in a place that says nothing of it.
        [] if !op.has_derivative() || !is_float(x.dtype()) => x.apply_op1_no_bwd(&this),
        [] => x.apply_op1(this),
        [a] => x.apply_op2(a, this),
        [a, b] => x.apply_op3(a, b, this),
        _ => unreachable!("no op has more than two side inputs"),
    }
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
fn device_limits(x: &Tensor) -> Option<DeviceLimits> {
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

/// The result for an input without elements, for which no kernel is run: nothing, or the value over
/// nothing.
fn empty<D: BackendDevice>(problem: &Problem, device: &D) -> Result<D::Storage> {
    let shape = problem.output_shape();
    let zeros = device.zeros_impl(&shape, problem.output_dtype())?;
    match problem.op.empty_value() {
        Some(value) if value != 0.0 && shape.elem_count() > 0 => {
            zeros.affine(&Layout::contiguous(shape), 1.0, value)
        }
        _ => Ok(zeros),
    }
}

/// Runs a problem of host memory: by the CPU engine, but where a test has the kernels run there.
fn on_host(problem: &Problem, x: &CpuStorage, sides: &[&CpuStorage]) -> Result<CpuStorage> {
    #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
    if let Some(result) = crate::cuda::host_run::run(problem, x, sides) {
        return result;
    }
    crate::cpu::run(problem, x, sides)
}

/// What a tensor on a GPU meets where there are no kernels.
#[cfg(not(feature = "cuda"))]
pub(crate) fn without_cuda<T>(op: &str) -> Result<T> {
    candle_core::bail!("{op}: candle-rowwise was built without its `cuda` feature")
}

/// Checks dims and dtype of a call on any dims of a tensor, before anything is moved or packed.
pub(crate) fn check(op: Op, dtype: DType, shape: &Shape, dims: &[usize]) -> Result<()> {
    check_dtype(op, dtype, shape)?;
    for &dim in dims {
        let len = shape.dims().get(dim).copied().unwrap_or(1);
        check_axis(op, dim, len, shape)?;
    }
    Ok(())
}

impl RowOp {
    fn problem(&self, x: &Layout, dtype: DType, sides: &[(&Layout, DType)]) -> Result<Problem> {
        if x.shape().elem_count() == 0 {
            let x = Layout::contiguous(x.shape());
            return Ok(Problem::new(self.op, &x, dtype, sides)?);
        }
        Ok(Problem::new(self.op, x, dtype, sides)?)
    }

    fn cpu(
        &self,
        x: (&CpuStorage, &Layout),
        sides: &[(&CpuStorage, &Layout)],
    ) -> Result<(CpuStorage, Shape)> {
        let layouts: Vec<_> = sides.iter().map(|(s, l)| (*l, s.dtype())).collect();
        let problem = self.problem(x.1, x.0.dtype(), &layouts)?;
        let storages: Vec<_> = sides.iter().map(|(s, _)| *s).collect();
        let y = if problem.is_empty() {
            empty(&problem, x.0.device())?
        } else {
            on_host(&problem, x.0, &storages)?
        };
        Ok((y, problem.output_shape()))
    }

    #[cfg(feature = "cuda")]
    fn cuda(
        &self,
        x: (&CudaStorage, &Layout),
        sides: &[(&CudaStorage, &Layout)],
    ) -> Result<(CudaStorage, Shape)> {
        let layouts: Vec<_> = sides.iter().map(|(s, l)| (*l, s.dtype())).collect();
        let problem = self.problem(x.1, x.0.dtype(), &layouts)?;
        let storages: Vec<_> = sides.iter().map(|(s, _)| *s).collect();
        let y = if problem.is_empty() {
            empty(&problem, x.0.device())?
        } else {
            crate::cuda::run(&problem, x.0, &storages)?
        };
        Ok((y, problem.output_shape()))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda(
        &self,
        _: (&CudaStorage, &Layout),
        _: &[(&CudaStorage, &Layout)],
    ) -> Result<(CudaStorage, Shape)> {
        without_cuda(self.op.name())
    }
}

impl RowOp {
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
}

impl CustomOp1 for RowOp {
    fn name(&self) -> &'static str {
        self.op.name()
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.cpu((s, l), &[])
    }

    fn cuda_fwd(&self, s: &CudaStorage, l: &Layout) -> Result<(CudaStorage, Shape)> {
        self.cuda((s, l), &[])
    }

    fn bwd(&self, x: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let [dx] = gradient(self.op, [x], &self.rows(res)?, &self.rows(grad)?)?;
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
        self.cpu((s1, l1), &[(s2, l2)])
    }

    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.cuda((s1, l1), &[(s2, l2)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, da] = gradient(self.op, [x, a], res, grad)?;
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
        self.cpu((s1, l1), &[(s2, l2), (s3, l3)])
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
        self.cuda((s1, l1), &[(s2, l2), (s3, l3)])
    }

    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        b: &Tensor,
        res: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, da, db] = gradient(self.op, [x, a, b], res, grad)?;
        Ok((dx, da, db))
    }
}
