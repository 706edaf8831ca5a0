#!/usr/bin/env bash
# Builds what bench/cuda/contract.sh, bench/cuda/kernels.sh and bench/cuda/engine.sh run on a machine with
# a card and without Rust.
#
#   bench/cuda/build.sh BINARIES
set -euo pipefail

[ $# -eq 1 ] || { echo 'usage: bench/cuda/build.sh BINARIES' >&2; exit 2; }
mkdir -p "$1"
binaries=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."

# test_of CRATE NAME AS: builds a test and copies it, stripped.
test_of() {
    local path
    path=$(cargo test --release --locked -p "$1" --features card --test "$2" --no-run 2>&1 |
        tee /dev/stderr | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
    strip -o "$binaries/$3" "$path"
}

# example_of CRATE NAME: the same of an example.
example_of() {
    cargo build --release --locked -p "$1" --features cuda --example "$2"
    strip -o "$binaries/$2" "${CARGO_TARGET_DIR:-target}/release/examples/$2"
}

test_of slipstream-device cuda cuda
test_of slipstream-device cuda_lost cuda_lost
example_of slipstream-device fences_cuda
test_of slipstream-kernels cuda kernels
example_of slipstream-kernels cuda_cycle
test_of slipstream-model cuda models
test_of slipstream-engine cuda engine
cargo build --release --locked -p slipstream
strip -o "$binaries/slipstream" "${CARGO_TARGET_DIR:-target}/release/slipstream"
ls -l "$binaries"
