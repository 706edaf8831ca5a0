#!/usr/bin/env bash
# The kernels on a CUDA card: their tests, and what a synthetic drafting cycle and each of its kernels
# take. Needs CUDA 13 and what bench/cuda/build.sh built; takes about two minutes.
#
#   bench/cuda/kernels.sh LOGS BINARIES
#
# Exit code: 0 all passed, 1 something failed, 2 wrong arguments.
set -uo pipefail

[ $# -eq 2 ] || { echo 'usage: bench/cuda/kernels.sh LOGS BINARIES' >&2; exit 2; }
logs=$1 binaries=$2
mkdir -p "$logs"
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/card.sh"

check kernels 150 "$binaries/kernels" --test-threads 1 --nocapture
for model in qwen3-8b smollm2-135m; do
    check "cycle-$model" 60 "$binaries/cuda_cycle" "$model"
done
cat "$logs"/cycle-*.log
grep -h 'test result' "$logs/kernels.log"
finish
