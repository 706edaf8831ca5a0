#!/usr/bin/env bash
# The figures of the engine on a CUDA card: medians of five, of three where REPEATS=3 says so, least and most, and
# shares of what the same run found the card to allow. Needs CUDA 13 and what bench/cuda/build.sh built, for the part
# `peer` PyTorch and transformers; run from the repository's root. Takes about twenty-two minutes on an H200, the part
# `load` six of them.
#
#   [REPEATS=N] bench/cuda/figures.sh LOGS BINARIES [PART…]
#
# Parts, all of them without any, but `pair` only where its files are found:
#   cycle    what the card reads at most, and synthetic steps, of one request and of a crowd, with each of their kernels
#   load     the shape of Qwen3-8B, plain and drafted, at 1 to 64 requests at once, so many in turn that the
#            crowd is whole nearly all the time: short answers, of whose work four tenths are prompts
#   steady   the same shape at 32 at once, long answers, of which nearly all is decoding, with a drafter as if
#            trained for blocks of 4, 8 and 16
#   prefill  prompts of 512, 4,096 and 16,384 tokens
#   fences   what orders one step after another, with the GPU's idle time
#   pair     the default pair at T 0 and 0.7
#   peer     transformers and a DFlash loop in PyTorch, on the same shape
#
# Exit code: 0 all passed, 1 something failed, 2 wrong arguments.
set -uo pipefail

[ $# -ge 2 ] || { echo 'usage: bench/cuda/figures.sh LOGS BINARIES [PART…]' >&2; exit 2; }
logs=$1 binaries=$2
shift 2
here=$(dirname "$0")
mkdir -p "$logs"
# shellcheck source-path=SCRIPTDIR
. "$here/card.sh"

shape=bench/configs/qwen3-8b.json
# Prompts of random weights are of lengths, not of words; but tokens are chosen, and drafted, among as many as the
# model has.
tokenizer=$(mktemp -d)
trap 'rm -rf "$tokenizer"' EXIT
python3 "$here/tokenizer_of.py" fixtures/models/qwen3 "$shape" "$tokenizer" || exit 2
random=(--device cuda --random-weights "$shape" --model "$tokenizer")
repeats=${REPEATS:-5}

# bench_load NAME SECONDS ARGUMENTS…: a load, as a table and as JSON.
bench_load() {
    local name=$1 most=$2
    shift 2
    check "$name" "$most" "$binaries/slipstream" bench load --json "$logs/$name.json" --repeats "$repeats" "$@"
}

cycle() {
    check cycle-qwen3-8b 90 "$binaries/cuda_cycle" qwen3-8b
    check cycle-smollm2-135m 90 "$binaries/cuda_cycle" smollm2-135m
    check cycle-crowd 90 "$binaries/cuda_cycle" qwen3-8b 640 32x8
}

load() {
    bench_load load 500 "${random[@]}" --compare plain,drafted --simulate-acceptance 4.24,6.36,8 \
        --concurrency 1,4,16,32,64 --requests 4,24,96,192,320 --running 96 --kv-tokens 49152 \
        --input-tokens fixed:128 --output-tokens fixed:192 --warmup 8
}

steady() {
    local told
    # Of a drafter that is equally sure of all drafts, and of one whose confidences tell as much as our own one's do.
    for told in 0 0.55; do
        bench_load "steady-$told" 500 "${random[@]}" --random-blocks 4,8,16 --compare plain,drafted \
            --simulate-acceptance 6.48 --simulate-told "$told" --concurrency 32 --requests 160 --running 96 \
            --kv-tokens 131072 --input-tokens fixed:128 --output-tokens fixed:1024 --warmup 8
    done
}

prefill() {
    local trace=$logs/prefill.jsonl length
    for length in 512 512 4096 16384; do
        echo "{\"at\": 0, \"input_tokens\": $length, \"max_tokens\": 2, \"ignore_eos\": true}"
    done >"$trace"
    bench_load prefill 120 "${random[@]}" --compare plain --trace "$trace" --concurrency 1 --chunk 2048 --warmup 4
}

fences() {
    bench_load fences 240 "${random[@]}" --compare plain,drafted --simulate-acceptance 6.36 --fence self,coarse,fine \
        --concurrency 1,16 --requests 2,16 --running 32 --kv-tokens 16384 --input-tokens fixed:128 \
        --output-tokens fixed:128 --warmup 4 --time-device
}

pair() {
    local temperature
    for temperature in 0 0.7; do
        bench_load "pair-$temperature" 240 --device cuda --compare plain,drafted --concurrency 1,4,16,32,64 \
            --requests 60,96,192,320,640 --temperature "$temperature" --warmup 12
    done
    check pair-acceptance 60 "$binaries/slipstream" bench acceptance --device cuda --count 60 --running 16 \
        --widths 8,16 --temperatures 0,0.7
}

peer() {
    check peer 240 python3 "$here/transformers_peer.py" --config "$shape" --json "$logs/peer.json"
}

parts=("$@")
if [ ${#parts[@]} -eq 0 ]; then
    parts=(cycle load steady prefill fences peer)
    "$binaries/slipstream" models | grep -q 'not here' || parts+=(pair)
fi
for part in "${parts[@]}"; do
    case $part in
        cycle) cycle ;;
        load) load ;;
        steady) steady ;;
        prefill) prefill ;;
        fences) fences ;;
        pair) pair ;;
        peer) peer ;;
        *) echo "there is no part $part" >&2; exit 2 ;;
    esac
done

python3 "$here/figures.py" "$logs" "$shape" | tee "$logs/figures.md"
finish
