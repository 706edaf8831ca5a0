#!/usr/bin/env bash
# Builds what bench/cuda/contract.sh runs on a machine with a card and without Rust.
#
#   bench/cuda/build.sh BINARIES
set -euo pipefail

[ $# -eq 1 ] || { echo 'usage: bench/cuda/build.sh BINARIES' >&2; exit 2; }
mkdir -p "$1"
binaries=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

# built KIND NAME: builds one target and copies it, stripped.
built() {
    local kind=$1 name=$2 path
    path=$(cargo test --release --locked -p slipstream-device --features cuda "--$kind" "$name" \
        --no-run 2>&1 | tee /dev/stderr | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
    strip -o "$binaries/$name" "$path"
}

built test cuda
built test cuda_lost
cargo build --release --locked -p slipstream-device --features cuda --example fences_cuda
strip -o "$binaries/fences_cuda" "${CARGO_TARGET_DIR:-target}/release/examples/fences_cuda"
ls -l "$binaries"
