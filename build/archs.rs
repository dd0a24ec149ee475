// Which GPUs the kernels are compiled for: what ROWWISE_CUDA_ARCHS and nvidia-smi say, in nvcc's words. Part of
// build.rs, in a file of its own for the tests (tests/suite/fuzz/parsing.rs).

/// Without a GPU to ask: Ampere and up as machine code or through PTX, Hopper's own code.
pub const DEFAULT_ARCHS: &str = "80,90a";

/// nvcc's flags for a list of compute capabilities, such as `80,90a`, each once and in the order of the list; what
/// is wrong with the list otherwise.
pub fn flags_of(list: &str) -> Result<Vec<String>, String> {
    let mut flags = Vec::new();
    for arch in list.split(',').map(str::trim) {
        if !is_arch(arch) {
            return Err(format!(
                "`{arch}`; it takes compute capabilities from 80 up, such as 80,90a"
            ));
        }
        let flag = format!("-gencode=arch=compute_{arch},code=sm_{arch}");
        if !flags.contains(&flag) {
            flags.push(flag);
        }
    }
    Ok(flags)
}

/// The flag for GPUs that the default list has no machine code for.
pub fn later_gpus() -> String {
    "-gencode=arch=compute_80,code=compute_80".into()
}

/// A number from 80 up, and for the variants of an architecture (`90a`, `100f`) a letter.
fn is_arch(arch: &str) -> bool {
    let number = arch.strip_suffix(['a', 'f']).unwrap_or(arch);
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit()) && !number.starts_with('0');
    is_number && number.parse::<u32>().is_ok_and(|n| (80..1000).contains(&n))
}

/// The list of what `nvidia-smi --query-gpu=compute_cap --format=csv,noheader` answers; `None` where there is no GPU
/// that the kernels run on.
pub fn list_of(compute_caps: &str) -> Option<String> {
    let mut archs: Vec<String> = compute_caps
        .lines()
        .map(|line| line.trim().replace('.', ""))
        .filter(|cap| is_arch(cap))
        // Hopper's own instructions are only in its `a` variant.
        .map(|cap| if cap == "90" { "90a".into() } else { cap })
        .collect();
    archs.sort();
    archs.dedup();
    (!archs.is_empty()).then(|| archs.join(","))
}
