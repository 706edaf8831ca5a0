#!/usr/bin/env bash
# The kernels on a CUDA card: their tests, their memory and race checks, and what a synthetic drafting
# cycle takes. Needs CUDA 13 and what bench/cuda/build.sh built; takes about three minutes.
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
# What the checkers slow down a hundredfold is left out, and of races also what they have too many accesses
# to follow in.
short=(choose:: confidence:: gemm::a_row_of_nan_stays_alone small:: rope:: attention::attention_matches)
more=(rules:: gemm::products_of_many_rows)
sanitized memcheck 120 "$binaries/kernels" --test-threads 1 "${short[@]}" "${more[@]}"
sanitized racecheck 120 "$binaries/kernels" --test-threads 1 "${short[@]}"

cat "$logs"/cycle-*.log
grep -h 'test result' "$logs/kernels.log"
finish memcheck racecheck
