//! Compiles the CUDA kernels into a static library and binds their C ABI, where the feature `cuda`
//! asks for it; for the feature `host-kernels`, the same kernels as C++ (docs/testing.md). Without
//! either there is nothing to do but to say where the headers are.

fn main() {
    let root = std::path::PathBuf::from(env("CARGO_MANIFEST_DIR"));
    // `links = "rowwise"`: dependents that write kernels of their own read DEP_ROWWISE_INCLUDE.
    println!(
        "cargo::metadata=include={}",
        root.join("cuda/include").display()
    );
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    #[cfg(all(feature = "cuda", feature = "host-kernels"))]
    sources::fail("the features `cuda` and `host-kernels` each bring their own build of the kernels: choose one");
    #[cfg(feature = "cuda")]
    cuda::build(&root);
    #[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
    host_kernels::build(&root);
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}

#[cfg(any(feature = "cuda", feature = "host-kernels"))]
mod sources {
    use std::path::{Path, PathBuf};

    pub fn fail(sentence: &str) -> ! {
        // `cargo::error` shows the sentence alone, where a panic would bury it in a dump.
        println!("cargo::error={sentence}");
        std::process::exit(1);
    }

    /// Rust declarations of cuda/abi.h.
    pub fn bind(root: &Path) {
        let header = root.join("cuda/abi.h");
        // bindgen panics where it finds no libclang; its message is long and not about us.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let bindings = std::panic::catch_unwind(|| {
            bindgen::Builder::default()
                .header(header.to_string_lossy())
                .allowlist_item("(rw|RW)_.*")
                .default_enum_style(bindgen::EnumVariation::Rust {
                    non_exhaustive: false,
                })
                .derive_default(false)
                .layout_tests(false)
                .generate()
        });
        std::panic::set_hook(hook);
        let bindings = match bindings {
            Ok(Ok(bindings)) => bindings,
            Ok(Err(error)) => fail(&format!("bindgen could not read cuda/abi.h: {error}")),
            Err(_) => fail("bindgen needs libclang to read cuda/abi.h, and none was found (Debian: apt-get install libclang-dev; elsewhere set LIBCLANG_PATH)"),
        };
        let out = PathBuf::from(crate::env("OUT_DIR")).join("abi.rs");
        if let Err(error) = bindings.write_to_file(&out) {
            fail(&format!("{} could not be written: {error}", out.display()));
        }
    }

    /// Every .cu file of the folder: an instance is added by adding its file.
    pub fn instances(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder)
            .unwrap_or_else(|e| fail(&format!("{} cannot be read: {e}", folder.display())));
        let mut files: Vec<_> = entries
            .filter_map(|entry| entry.ok().map(|e| e.path()))
            .filter(|path| path.extension().is_some_and(|e| e == "cu"))
            .collect();
        files.sort();
        files
    }
}

#[cfg(feature = "cuda")]
#[path = "build/archs.rs"]
mod archs;

#[cfg(feature = "cuda")]
mod cuda {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use crate::archs::{flags_of, later_gpus, list_of, DEFAULT_ARCHS};
    use crate::sources::{bind, fail, instances};

    /// Comma-separated compute capabilities to compile for, such as `80,90a`.
    const ARCHS: &str = "ROWWISE_CUDA_ARCHS";
    /// Set: a kernel that spills registers, as ptxas reports it, fails the build. Not by default,
    /// since another version of the compiler may spill where this one does not.
    const DENY_SPILLS: &str = "ROWWISE_DENY_SPILLS";

    pub fn build(root: &Path) {
        for name in [
            "CUDA_HOME",
            "CUDA_PATH",
            "PATH",
            "LIBCLANG_PATH",
            ARCHS,
            DENY_SPILLS,
        ] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        println!("cargo::rerun-if-changed=cuda");
        let nvcc = find_nvcc().unwrap_or_else(|| {
            fail("the feature `cuda` needs NVIDIA's compiler, and there is no nvcc in CUDA_HOME, CUDA_PATH or PATH (scripts/cuda-toolkit.sh installs one)")
        });
        bind(root);
        compile(root, &nvcc);
        link_runtime(&nvcc);
    }

    fn find_nvcc() -> Option<PathBuf> {
        let from_env = ["CUDA_HOME", "CUDA_PATH"]
            .iter()
            .filter_map(std::env::var_os)
            .map(|home| PathBuf::from(home).join("bin/nvcc"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let from_path = std::env::split_paths(&path).map(|dir| dir.join("nvcc"));
        from_env.chain(from_path).find(|nvcc| nvcc.is_file())
    }

    fn compile(root: &Path, nvcc: &Path) {
        // What cc's CUDA mode calls.
        std::env::set_var("NVCC", nvcc);
        let files = instances(&root.join("cuda/instances"));
        let of = |prefix: &'static str| {
            move |file: &PathBuf| {
                let name = file.file_name().unwrap_or_default();
                name.to_string_lossy().starts_with(prefix)
            }
        };
        let (norms, others): (Vec<_>, Vec<_>) = files.into_iter().partition(of("norm_"));
        let (gradients, norms): (Vec<_>, Vec<_>) =
            norms.into_iter().partition(of("norm_gradient_"));
        let (losses, others): (Vec<_>, Vec<_>) = others.into_iter().partition(of("loss_"));
        // How eagerly ptxas spends registers on reordering. At its default, 5, it spills in kernels
        // of all groups; at these levels in none.
        compile_group(root, nvcc, "rowwise_losses", losses, 4, true);
        let others = norms.into_iter().chain(others);
        let others = others.chain([root.join("cuda/abi.cu")]);
        compile_group(root, nvcc, "rowwise_kernels", others.collect(), 3, true);
        // But for these: of half types, layer norm's gradient in a cluster, and of f16 in a block, keeps a few of
        // a lane's 64 sums in memory (32 bytes). That way it runs in a cluster at 0.83 of copy speed at
        // (8192, 32768) bf16, with tiles of half as many at 0.60 (H200, 2026-11-30).
        compile_group(root, nvcc, "rowwise_norm_gradients", gradients, 3, false);
    }

    fn compile_group(
        root: &Path,
        nvcc: &Path,
        library: &str,
        files: Vec<PathBuf>,
        level: u32,
        deny_spills: bool,
    ) {
        let mut build = cc::Build::new();
        build
            .cuda(true)
            .cudart("static")
            .std("c++17")
            .include(root.join("cuda/include"))
            // a*b+c is fused where it is written as such and nowhere else: the bits of an expression
            // must not depend on the kernel it is inlined into.
            .flag("-fmad=false")
            .flag(format!("-Xptxas=--register-usage-level={level}"))
            .opt_level(3)
            .debug(false)
            .files(files);
        if deny_spills && std::env::var_os(DENY_SPILLS).is_some() {
            build.flag("-Xptxas=--warn-on-spills,--warning-as-error");
        }
        for flag in arch_flags() {
            build.flag(flag);
        }
        if let Err(error) = build.try_compile(library) {
            fail(&format!("nvcc ({}) failed: {error}", nvcc.display()));
        }
    }

    fn arch_flags() -> Vec<String> {
        let asked = std::env::var(ARCHS).ok().filter(|list| !list.is_empty());
        let archs = asked.or_else(present_gpus);
        let list = archs.as_deref().unwrap_or(DEFAULT_ARCHS);
        let mut flags =
            flags_of(list).unwrap_or_else(|wrong| fail(&format!("{ARCHS} lists {wrong}")));
        if archs.is_none() {
            flags.push(later_gpus());
        }
        flags
    }

    /// The compute capabilities of the GPUs of this machine, in nvcc's form.
    fn present_gpus() -> Option<String> {
        let output = Command::new("nvidia-smi")
            .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        list_of(&String::from_utf8(output.stdout).ok()?)
    }

    fn link_runtime(nvcc: &Path) {
        let home = nvcc.parent().and_then(Path::parent);
        for folder in home.iter().flat_map(|home| {
            ["lib64", "lib", "targets/x86_64-linux/lib"].map(|folder| home.join(folder))
        }) {
            if folder.join("libcudart_static.a").is_file() {
                println!("cargo::rustc-link-search=native={}", folder.display());
            }
        }
        // The static runtime's own needs.
        for library in ["dl", "rt", "pthread", "stdc++"] {
            println!("cargo::rustc-link-lib={library}");
        }
    }
}

#[cfg(all(feature = "host-kernels", not(feature = "cuda")))]
mod host_kernels {
    use std::path::{Path, PathBuf};

    use crate::sources::{bind, fail, instances};

    /// Set: the kernels are built with AddressSanitizer and UndefinedBehaviorSanitizer, in place of
    /// the instrumentation that reports each of their accesses.
    const SANITIZE: &str = "ROWWISE_HOST_SANITIZE";

    pub fn build(root: &Path) {
        for name in ["LIBCLANG_PATH", SANITIZE] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        for folder in ["cuda", "tests/host_run"] {
            println!("cargo::rerun-if-changed={folder}");
        }
        bind(root);
        let sanitize = std::env::var_os(SANITIZE).is_some_and(|value| value != "0");
        let shim = root.join("tests/host_run");
        let mut kernels = instances(&root.join("cuda/instances"));
        kernels.extend([root.join("cuda/abi.cu"), shim.join("faults.cu")]);

        let mut engine = compiler(&shim, 2);
        // The sanitizers make the compiler twice as slow; their tests are fewer.
        let mut device = compiler(&shim, if sanitize { 0 } else { 1 });
        device
            .flag("-xc++")
            .flag("-include")
            .flag("cuda_runtime.h")
            .define("ROWWISE_HOST_RUN", None)
            // Hopper's paths.
            .define("__CUDA_ARCH__", "900")
            .include(root.join("cuda/include"))
            // As the CUDA build has it: a*b+c is fused where it is written as such.
            .flag("-ffp-contract=off")
            .flag("-Wno-unknown-pragmas");
        if sanitize {
            for build in [&mut engine, &mut device] {
                build
                    .flag("-fsanitize=address,undefined")
                    .flag("-fno-sanitize-recover=undefined");
            }
            // GCC's runtimes by name: rustc links without the compiler's own libraries.
            for library in ["asan", "ubsan"] {
                println!("cargo::rustc-link-lib={library}");
            }
        } else {
            // The calls that the instrumentation makes go to the shim: no runtime is linked.
            device
                .flag("-fsanitize=thread")
                .flag_if_supported("--param=tsan-instrument-func-entry-exit=0");
        }
        compile(device, kernels, "rowwise_host_kernels");
        compile(engine, vec![shim.join("engine.cpp")], "rowwise_host_run");
    }

    fn compiler(shim: &Path, optimisation: u32) -> cc::Build {
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++17")
            .include(shim.join("include"))
            .opt_level(optimisation)
            // Lines, for the sanitizers' reports.
            .flag("-g1");
        build
    }

    fn compile(mut build: cc::Build, files: Vec<PathBuf>, library: &str) {
        if let Err(error) = build.files(files).try_compile(library) {
            fail(&format!("the C++ compiler failed: {error}"));
        }
    }
}
