#!/bin/busybox sh
# shellcheck shell=dash
# The first process of the emulated machine, see emulate.sh.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
cd /state || exit

for node in /sys/devices/system/node/node*; do
    echo "${node##*/}: CPUs $(cat "$node/cpulist"), $(sed -n 's/.*MemTotal: *//p' "$node/meminfo")"
done
# The first page frame of node 1; those of node 0 are below.
second=$(awk '/^Node 1/ { there = 1 } there && /start_pfn/ && $2 > 0 { print $2; exit }' /proc/zoneinfo)

# weights PROCESS: the nodes of its memory for weights, which alone asks for huge pages (flag hg), page by page.
weights() {
    awk '/^[0-9a-f]+-[0-9a-f]+ / { split($1, range, "-") } /^VmFlags:.* hg/ { print range[1], range[2] }' \
        "/proc/$1/smaps" >ranges
    while read -r from to; do
        dd if="/proc/$1/pagemap" bs=8 skip=$((0x$from / 4096)) count=$(((0x$to - 0x$from) / 4096)) 2>/dev/null
    done <ranges | hexdump -v -e '2/4 "%u " "\n"' | awk -v second="$second" '
        function flush() { if (run) printf " %d on node %d,", run, node; run = 0 }
        BEGIN { printf "pages as they follow each other:" }
        {
            present = $2 >= 2147483648
            now = $1 >= second
            if (!present || now != node) flush()
            if (present) { node = now; run++; all[now]++ }
        }
        END { flush(); printf " in all %d on node 0, %d on node 1\n", all[0], all[1] }'
}

# run NUMA OPTIONS…: generates, and looks at the process when the first text is there.
run() {
    numa=$1
    shift
    slipstream generate --file /prompt.txt --model /models/target.gguf --draft /models/drafter \
        --threads 4 --max-tokens 24 --numa "$numa" "$@" >out 2>err &
    process=$!
    while [ ! -s out ] && kill -0 $process 2>/dev/null; do sleep 1; done
    echo "--- --numa $numa $*"
    head -n 2 err
    weights $process
    for task in /proc/"$process"/task/*; do
        echo "thread $(cat "$task/comm"): CPUs $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$task/status")"
    done
    wait $process
    echo "ended with $?, bytes $(sha256sum out | cut -c 1-16)"
    rm out
}

for numa in replicate off; do
    run $numa
    run $numa --temperature 0.8 --seed 7
done
reboot -f
