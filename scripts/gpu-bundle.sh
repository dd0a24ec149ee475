#!/usr/bin/env bash
# Packs the test, bench and example binaries, built with CUDA, so that they run on a GPU machine
# that has no Rust:
#
#     scripts/gpu-bundle.sh [--out DIR] [test] [bench] [example NAME]...
#
# With no names: the tests, the benches and every example. Each binary is stripped and compressed
# (42 MB become 6 MB) into DIR (default: .bundle). There,
#
#     DIR/run.sh NAME [arguments]
#
# unpacks NAME next to itself and runs it. The machine needs NVIDIA's driver and a CUDA toolkit or
# its libraries (libcublas, libcurand, libnvrtc) of the same major version.
set -euo pipefail
cd "$(dirname "$0")/.."

out=.bundle
tests=()
examples=()
while [ $# -gt 0 ]; do
    case $1 in
        --out) out=$2; shift 2 ;;
        test) tests+=(--lib --test suite); shift ;;
        bench) tests+=(--bench cuda); shift ;;
        example) examples+=(--example "$2"); shift 2 ;;
        *) echo "gpu-bundle: what is '$1'?" >&2; exit 2 ;;
    esac
done
if [ ${#tests[@]} -eq 0 ] && [ ${#examples[@]} -eq 0 ]; then
    tests=(--lib --test suite --bench cuda)
    examples=(--examples)
fi

eval "$(scripts/cuda-toolkit.sh)"
mkdir -p "$out"

# cargo names the binaries it made in its messages, one JSON object a line.
pack() {
    python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        target = message["target"]
        print(target["name"] + "." + target["kind"][0], message["executable"])
' | while read -r name binary; do
        cp "$binary" "$out/$name"
        strip "$out/$name"
        xz -3 -f -T0 "$out/$name"
        echo "gpu-bundle: $out/$name.xz ($(du -h "$out/$name.xz" | cut -f1))"
    done
}
flags=(--release --features cuda --message-format=json-render-diagnostics)
if [ ${#tests[@]} -gt 0 ]; then
    cargo test --no-run "${tests[@]}" "${flags[@]}" | pack
fi
# Apart: `cargo test` would make test harnesses of the examples.
if [ ${#examples[@]} -gt 0 ]; then
    cargo build "${examples[@]}" "${flags[@]}" | pack
fi

cat >"$out/run.sh" <<'RUN'
#!/usr/bin/env bash
# Unpacks a binary of this bundle and runs it: run.sh NAME [arguments]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=$1
shift
work=${ROWWISE_BUNDLE_WORK:-/tmp/rowwise-bundle}
mkdir -p "$work"
[ -x "$work/$name" ] || { xz -dc "$here/$name.xz" >"$work/$name" && chmod +x "$work/$name"; }
for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    for lib in "$home/targets/x86_64-linux/lib" "$home/lib64"; do
        [ -d "$lib" ] && LD_LIBRARY_PATH=$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
done
export LD_LIBRARY_PATH
exec "$work/$name" "$@"
RUN
chmod +x "$out/run.sh"
