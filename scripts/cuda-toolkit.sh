#!/usr/bin/env bash
# Sets up a CUDA compiler on a machine that has none, and prints the environment to source:
#
#     eval "$(scripts/cuda-toolkit.sh)"
#
# Does nothing but print that environment where a toolkit is found (CUDA_HOME, CUDA_PATH or nvcc
# on PATH). Otherwise the compiler comes from PyPI, as NVIDIA publishes it there, into
# $ROWWISE_CUDA_DIR (default: ~/.cache/candle-rowwise/cuda-13.0; 1.3 GB). No GPU and no driver
# are needed to build; without a driver, a stub of libcuda is made to link against.
#
# Only the environment goes to stdout; progress goes to stderr.
set -euo pipefail

say() { printf 'cuda-toolkit: %s\n' "$*" >&2; }

print_environment() { # root
    local root=$1
    # candle's kernels are rebuilt (10 minutes) whenever one of these changes, so they are always
    # printed the same way. 90 is the architecture candle itself is built for where no GPU says
    # otherwise; ours are chosen by ROWWISE_CUDA_ARCHS.
    echo "export CUDA_HOME='$root' CUDA_PATH='$root' CUDA_ROOT='$root'"
    echo "export CUDA_COMPUTE_CAP='${CUDA_COMPUTE_CAP:-90}'"
    echo "case \":\$PATH:\" in *:'$root/bin':*) ;; *) export PATH='$root/bin':\"\$PATH\" ;; esac"
    local lib="$root/lib"
    [ -d "$root/lib64" ] && lib="$root/lib64"
    # On LIBRARY_PATH (the linker's), never on LD_LIBRARY_PATH (the loader's): the stub of libcuda
    # must not be loaded by a program.
    echo "export LIBRARY_PATH='$lib/stubs:$lib'"
}

existing=""
for candidate in "${CUDA_HOME:-}" "${CUDA_PATH:-}"; do
    if [ -n "$candidate" ] && [ -x "$candidate/bin/nvcc" ]; then existing=$candidate; break; fi
done
if [ -z "$existing" ] && command -v nvcc >/dev/null 2>&1; then
    existing=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
fi
if [ -n "$existing" ]; then
    say "found a toolkit in $existing"
    print_environment "$existing"
    exit 0
fi

prefix=${ROWWISE_CUDA_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/candle-rowwise/cuda-13.0}
root_link=$prefix/root
if [ -e "$prefix/.complete" ]; then
    say "using $prefix"
    print_environment "$root_link"
    exit 0
fi

say "installing the CUDA 13.0 compiler into $prefix (1.3 GB)"
rm -rf "$prefix"
mkdir -p "$prefix"
python3 -m venv "$prefix/venv" >&2
# All pinned together: left unpinned, pip brings nvvm and crt of 13.5 beside nvcc 13.0, and ptxas
# then dies with "Unsupported .version 9.5".
"$prefix/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 nvidia-cuda-nvrtc==13.0.88 \
    nvidia-curand==10.4.0.35 nvidia-cublas==13.1.0.3 >&2

root=$(echo "$prefix"/venv/lib/python3*/site-packages/nvidia/cu13)
[ -x "$root/bin/nvcc" ] || { say "no nvcc in $root after the installation"; exit 1; }
chmod +x "$root"/bin/* "$root"/nvvm/bin/* 2>/dev/null || true

# The wheels lack what a linker looks for: lib64, the unversioned names, and libcuda.
[ -e "$root/lib64" ] || ln -s lib "$root/lib64"
for name in cudart cublas cublasLt curand nvrtc; do
    versioned=$(cd "$root/lib" && ls -1 "lib$name.so."* 2>/dev/null | sort | head -n 1)
    [ -n "$versioned" ] || { say "lib$name is missing in $root/lib"; exit 1; }
    ln -sf "$versioned" "$root/lib/lib$name.so"
done

# candle builds cudarc with dynamic linking, which needs -lcuda. The driver owns that library; for
# linking, an empty function for each name the CUDA headers declare is enough.
stubs=$root/lib/stubs
mkdir -p "$stubs"
{
    # Declared names, the symbols that cuda.h renames them to (cuMemAlloc_v2,
    # cuGraphInstantiateWithFlags), and those of cudaProfiler.h, which the wheels leave out.
    grep -oE '\bcu[A-Z][A-Za-z0-9_]*[[:space:]]*\(' "$root/include/cuda.h" | tr -d ' ('
    grep -oE '\bcu[A-Z][A-Za-z0-9]*_(v[0-9]+|ptsz|ptds)(_ptsz|_ptds)?\b' "$root/include/cuda.h"
    sed -nE 's/^[[:space:]]*#[[:space:]]*define[[:space:]]+cu[A-Z][A-Za-z0-9_]*[[:space:]]+(cu[A-Z][A-Za-z0-9_]*)[[:space:]]*$/\1/p' "$root/include/cuda.h"
    printf '%s\n' cuProfilerInitialize cuProfilerStart cuProfilerStop
} | sort -u | sed 's/.*/void &(void) {}/' >"$stubs/libcuda.c"
cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$stubs/libcuda.so" "$stubs/libcuda.c"
ln -sf libcuda.so "$stubs/libcuda.so.1"

ln -sfn "$root" "$root_link"
touch "$prefix/.complete"
say "done: $("$root/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p')"
print_environment "$root_link"
