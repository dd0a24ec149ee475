//! CUDA graphs, streams and threads: D04, and several users of one GPU at once.

use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use candle_core::{CudaDevice, CudaStorage, Storage};
use candle_rowwise::cuda::run_into;
use candle_rowwise::problem::Problem;

use crate::common::ops::{run, sides};
use crate::common::*;

/// A device with a stream of its own: the default one cannot be captured.
fn own_stream(test: &str) -> Result<Option<CudaDevice>> {
    if devices::cuda(test).is_none() {
        return Ok(None);
    }
    let device = CudaDevice::new_with_stream(0)?;
    // SAFETY: what the test allocates on this device is used on its one stream alone.
    unsafe { device.disable_event_tracking() };
    Ok(Some(device))
}

/// The op's kernel on `x`, into memory that is there.
fn launch(op: Op, x: &Tensor, y: &mut CudaStorage) -> Result<()> {
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        anyhow::bail!("not on a GPU")
    };
    let problem = Problem::new(op, layout, x.dtype(), &[])?;
    Ok(run_into(&problem, storage, &[], &mut [y])?)
}

fn to_vec(y: &CudaStorage) -> Result<Vec<u32>> {
    let slice = y.as_cuda_slice::<f32>()?;
    let values = slice.stream().clone_dtoh(slice)?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

/// D04: rows that teams and clusters share, captured once and replayed on 100 inputs; with `warm`, after
/// a call outside of a capture, and without, the stream's first call is the captured one. Meanwhile a
/// second thread allocates.
fn capture_and_replay(test: &str, warm: bool) -> Result<()> {
    let Some(cuda) = own_stream(test)? else {
        return Ok(());
    };
    let device = Device::Cuda(cuda.clone());
    let stream = cuda.cuda_stream();
    let cases = [
        (Op::Sum, 4_194_304),
        (Op::Softmax, 262_144),
        (Op::Softmax, 1_000_003),
    ];
    for (op, width) in cases {
        let input = |seed| tensor(&normal(seed, width), (1, width), DType::F32, &device);
        let x = input(96)?;
        let len = if op == Op::Sum { 1 } else { width };
        let mut y = cuda.zeros_impl(&(1, len).into(), DType::F32)?;
        if warm {
            launch(op, &x, &mut y)?;
        }
        cuda.synchronize()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let captured = std::thread::scope(|scope| {
            scope.spawn(|| Tensor::zeros(1000, DType::F32, devices::cuda(test)?).ok());
            launch(op, &x, &mut y)
        });
        let graph = stream.end_capture(CUgraphInstantiate_flags(0))?;
        captured?;
        let graph = graph.ok_or_else(|| anyhow::anyhow!("nothing was captured"))?;
        for replay in 0..100 {
            let next = input(97 + replay % 5)?;
            x.slice_set(&next, 0, 0)?;
            graph.launch()?;
            let replayed = to_vec(&y)?;
            launch(op, &next, &mut y)?;
            assert!(
                replayed == to_vec(&y)?,
                "{} {width}: replay {replay}",
                op.name()
            );
        }
    }
    Ok(())
}

#[test]
fn d04_cuda() -> Result<()> {
    capture_and_replay("d04_cuda", true)
}

#[test]
fn first_call_in_a_capture_cuda() -> Result<()> {
    capture_and_replay("first_call_in_a_capture_cuda", false)
}

/// Two threads, each with a stream of its own, share rows over all of the device at the same time.
#[test]
fn two_streams_cuda() -> Result<()> {
    let Some(device) = devices::cuda("two_streams_cuda") else {
        return Ok(());
    };
    let width = 1_500_000;
    let rows = normal(98, 2 * width);
    let expected = |op: Op| -> Result<Tensor> {
        let x = tensor(&rows, (2, width), DType::F32, device)?;
        Ok(run(op, &x, &sides(op, width, DType::F32, device)?)?.to_device(&Device::Cpu)?)
    };
    let ops = [Op::Softmax, Op::LayerNorm { eps: 1e-5 }, Op::ArgMax];
    let expected = ops.map(|op| expected(op).map(|y| (op, y)));
    let expected = expected.into_iter().collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let call = || -> Result<()> {
            let device = Device::Cuda(CudaDevice::new_with_stream(0)?);
            let x = tensor(&rows, (2, width), DType::F32, &device)?;
            for (op, expected) in &expected {
                let sides = sides(*op, width, DType::F32, &device)?;
                for _ in 0..50 {
                    let y = run(*op, &x, &sides)?.to_device(&Device::Cpu)?;
                    assert_bits_eq(op.name(), &y, expected)?;
                }
            }
            Ok(())
        };
        let callers = [scope.spawn(call), scope.spawn(call)];
        callers
            .into_iter()
            .try_for_each(|caller| caller.join().expect("a caller panicked"))
    })
}
