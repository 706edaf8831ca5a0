# shellcheck shell=bash
# Sourced by the scripts that run on a machine with a card, which have set $logs and $binaries: where
# its libraries are, and checks with a log each.

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
# Set by the script that sources this.
: "${logs:?}" "${binaries:?}"

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
    table+=("$(printf '%-20s %-12s %4s s' "$name" "$said" "$((SECONDS - begun))")")
}

# sanitized TOOL NAME SECONDS COMMAND…: the same under a tool of compute-sanitizer, as TOOL-NAME. Calls
# that return an error are the callers' business, and they look at each.
sanitized() {
    local tool=$1 name=$1-$2 most=$3
    shift 3
    if [ -n "$sanitizer" ]; then
        check "$name" "$most" "$sanitizer" --tool "$tool" --error-exitcode 9 --report-api-errors no "$@"
    else
        table+=("$name not run: no compute-sanitizer")
        failed=1
    fi
}

# beside COMMAND…: `check` or `sanitized` with its arguments, while the script goes on; for what is not timed.
beside() {
    (
        "$@"
        printf '%s\n' "${table[@]}" >"$logs/$BASHPID.said"
        exit "$failed"
    ) &
}

# together: waits for all that runs beside.
together() {
    local each
    for each in $(jobs -p); do
        wait "$each" || failed=1
    done
    for each in "$logs"/*.said; do
        [ -e "$each" ] && table+=("$(cat "$each")") && rm "$each"
    done
}

# finish: the summaries of the tools and of all checks; ends the script.
finish() {
    grep -H 'SUMMARY' "$logs"/memcheck-*.log "$logs"/racecheck-*.log "$logs"/initcheck-*.log 2>/dev/null |
        sed "s|^$logs/||"
    echo
    printf '%s\n' "${table[@]}"
    exit "$failed"
}

{
    nvidia-smi -L
    nvidia-smi --query-gpu=driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv
    uname -r
    nproc
    echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
    echo "compute-sanitizer: ${sanitizer:-not found}"
} 2>&1 | tee "$logs/machine.log"
