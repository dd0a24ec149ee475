//! The devices that a test body runs on.

/// Makes tests of bodies `fn(&Device) -> Result<()>`: one on the CPU, and with the `cuda` feature
/// one on the GPU. Both names are written out, so that they can be searched for.
macro_rules! on_devices {
    ($($body:ident: $cpu:ident, $cuda:ident;)+) => {$(
        #[test]
        fn $cpu() -> anyhow::Result<()> {
            $body(&candle_core::Device::Cpu)
        }

        #[cfg(feature = "cuda")]
        #[test]
        fn $cuda() -> anyhow::Result<()> {
            match $crate::common::devices::cuda(stringify!($cuda)) {
                Some(device) => $body(device),
                None => Ok(()),
            }
        }
    )+};
}

/// The first GPU. Without one the test is skipped, and the run says so once; it fails instead where
/// `ROWWISE_REQUIRE_GPU=1` says that there must be one.
#[cfg(feature = "cuda")]
pub fn cuda(test: &str) -> Option<&'static candle_core::Device> {
    use std::io::Write;
    use std::sync::OnceLock;
    static DEVICE: OnceLock<Result<candle_core::Device, String>> = OnceLock::new();
    // Loading the driver panics where there is none.
    let device = DEVICE.get_or_init(|| {
        let reason = match std::panic::catch_unwind(|| candle_core::Device::new_cuda(0)) {
            Ok(Ok(device)) => return Ok(device),
            Ok(Err(err)) => err.to_string(),
            Err(_) => "the CUDA driver cannot be loaded".to_string(),
        };
        // Past the capture of passing tests' output.
        let _ = writeln!(std::io::stderr(), "GPU tests are skipped: {reason}");
        Err(reason)
    });
    match device {
        Ok(device) => Some(device),
        Err(reason) if std::env::var("ROWWISE_REQUIRE_GPU").is_ok_and(|v| v == "1") => {
            panic!("{test}: ROWWISE_REQUIRE_GPU=1, but there is no GPU: {reason}")
        }
        Err(_) => None,
    }
}
