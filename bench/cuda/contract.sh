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

# Folders that hold the driver's and the compiler's libraries where the linker does not look.
folders=()
for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/local/cuda/lib64 \
    /usr/local/cuda*/targets/x86_64-linux/lib; do
    [ -d "$folder" ] && folders+=("$folder")
done
wheel=$(python3 -c 'import nvidia.cu13, os; print(os.path.join(list(nvidia.cu13.__path__)[0], "lib"))' \
    2>/dev/null) && folders+=("$wheel")
joined=$(IFS=:; echo "${folders[*]}")
export LD_LIBRARY_PATH="$joined${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export RUST_BACKTRACE=0

sanitizer=$(command -v compute-sanitizer || true)
for found in /usr/local/cuda*/bin/compute-sanitizer \
    /usr/local/cuda*/compute-sanitizer/compute-sanitizer; do
    [ -z "$sanitizer" ] && [ -x "$found" ] && sanitizer=$found
done

table=()
failed=0

# check NAME SECONDS COMMAND…: runs a command with its log and remembers how it went.
check() {
    local name=$1 most=$2 code begun=$SECONDS said=passed
    shift 2
    timeout "$most" "$@" >"$logs/$name.log" 2>&1
    code=$?
    if [ "$code" -ne 0 ]; then
        said="FAILED ($code)"
        failed=1
        tail -n 40 "$logs/$name.log"
    fi
    table+=("$(printf '%-12s %-12s %4s s' "$name" "$said" "$((SECONDS - begun))")")
}

{
    nvidia-smi -L
    nvidia-smi --query-gpu=driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv
    uname -r
    nproc
    echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
    echo "compute-sanitizer: ${sanitizer:-not found}"
} 2>&1 | tee "$logs/machine.log"

check contract 150 "$binaries/cuda" --test-threads 1 --nocapture
check lost 40 "$binaries/cuda_lost" --nocapture
for run in 1 2 3; do
    check "fences-$run" 50 "$binaries/fences_cuda" 300
done

# What the checkers slow down a hundredfold, and what depends on lanes that run at once, is left out.
short=(a_lane_runs_its_jobs_in_order a_write_waits_for_every_reader rings_are_used_again
    a_replayed_graph_equals_eager_work what_jobs_use_outlives_its_owner new_buffers_hold_defaults
    few_steps_under_random_delays)
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        # Calls that return an error are the callers' business, and they look at each.
        check "$tool" 90 "$sanitizer" --tool "$tool" --error-exitcode 9 --report-api-errors no \
            "$binaries/cuda" --test-threads 1 --exact "${short[@]}"
    done
else
    table+=('memcheck     not run: no compute-sanitizer' 'racecheck    not run')
    failed=1
fi

for run in 1 2 3; do
    echo
    echo "== fences, run $run"
    cat "$logs/fences-$run.log"
done
echo
grep -h 'values wrong' "$logs/contract.log"
grep -h 'the device stopped' "$logs/lost.log"
grep -h 'test result' "$logs/contract.log" "$logs/lost.log"
grep -h 'SUMMARY' "$logs/memcheck.log" "$logs/racecheck.log" 2>/dev/null
echo
printf '%s\n' "${table[@]}"
exit "$failed"
