#!/usr/bin/env bash
# The stream contract on a CUDA card: its tests, its memory and race checks, and the ablation of
# fences three times. Needs CUDA 13 and what bench/cuda/build.sh built; takes about five minutes.
#
#   bench/cuda/contract.sh LOGS BINARIES
#
# Exit code: 0 all passed, 1 something failed, 2 wrong arguments.
set -uo pipefail

[ $# -eq 2 ] || { echo 'usage: bench/cuda/contract.sh LOGS BINARIES' >&2; exit 2; }
logs=$1 binaries=$2
mkdir -p "$logs"

# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/card.sh"

check contract 150 "$binaries/cuda" --test-threads 1 --nocapture
check lost 40 "$binaries/cuda_lost" --nocapture
for run in 1 2 3; do
    check "fences-$run" 50 "$binaries/fences_cuda" 300
done

# What the checkers slow down a hundredfold, and what depends on lanes that run at once, is left out.
short=(a_lane_runs_its_jobs_in_order a_write_waits_for_every_reader rings_are_used_again
    a_replayed_graph_equals_eager_work what_jobs_use_outlives_its_owner new_buffers_hold_defaults
    few_steps_under_random_delays)
for tool in memcheck racecheck; do
    sanitized "$tool" contract 90 "$binaries/cuda" --test-threads 1 --exact "${short[@]}"
done

for run in 1 2 3; do
    echo
    echo "== fences, run $run"
    cat "$logs/fences-$run.log"
done
echo
grep -h 'values wrong' "$logs/contract.log"
grep -h 'the device stopped' "$logs/lost.log"
grep -h 'test result' "$logs/contract.log" "$logs/lost.log"
finish
