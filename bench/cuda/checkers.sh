#!/usr/bin/env bash
# The tests on a CUDA card under compute-sanitizer: accesses out of bounds, races in shared memory, reads of
# what nothing wrote. They run beside each other: nothing here is timed. Needs CUDA 13 and what
# bench/cuda/build.sh built; run from the repository's root. Takes about three minutes.
#
#   bench/cuda/checkers.sh LOGS BINARIES
#
# Exit code: 0 all passed, 1 something failed, 2 wrong arguments.
set -uo pipefail

[ $# -eq 2 ] || { echo 'usage: bench/cuda/checkers.sh LOGS BINARIES' >&2; exit 2; }
logs=$1 binaries=$2
mkdir -p "$logs"
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/card.sh"

# A ring's slots are read and copied to again so often that racecheck runs out of room for what it has yet to judge,
# and warns of that.
export NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS=2000000

# The tools slow kernels down a hundredfold. Of the largest tests there are smaller ones for them, whose
# names begin with `few`.
short=(choose:: confidence:: bias:: small:: rope:: gemm::a_row_of_nan_stays_alone attention::attention_matches)
tests=(--test-threads 1)
for tool in memcheck racecheck initcheck; do
    beside sanitized "$tool" short 280 "$binaries/kernels" "${tests[@]}" "${short[@]}"
    beside sanitized "$tool" products 280 "$binaries/kernels" "${tests[@]}" gemm::few gated::few
    beside sanitized "$tool" attention 280 "$binaries/kernels" "${tests[@]}" attention::few
    beside sanitized "$tool" around 280 "$binaries/kernels" "${tests[@]}" short::few
done
# Those that only races are too many accesses for.
beside sanitized memcheck rules 280 "$binaries/kernels" "${tests[@]}" rules::
beside sanitized memcheck rows 280 "$binaries/kernels" "${tests[@]}" gemm::products_of_many_rows gemm::a_bias
for tool in memcheck initcheck; do
    beside sanitized "$tool" models 280 "$binaries/models" "${tests[@]}" a_row_does_not_depend_on_its_pass steps_that_are_left
    beside sanitized "$tool" engine 280 "$binaries/engine" "${tests[@]}" tiny::a_crowd_has_the_same_bytes
done
together

grep -H 'test result' "$logs"/*check-*.log | sed "s|^$logs/||"
finish
