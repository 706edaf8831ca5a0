#!/usr/bin/env bash
# The engine on a CUDA card: its tests on tiny models and on the default pair, and what plain and drafted
# decoding take. Needs CUDA 13, what bench/cuda/build.sh built, and the default pair where the program
# finds it; run from the repository's root. Takes about three minutes.
#
#   bench/cuda/engine.sh LOGS BINARIES
#
# Exit code: 0 all passed, 1 something failed, 2 wrong arguments.
set -uo pipefail

[ $# -eq 2 ] || { echo 'usage: bench/cuda/engine.sh LOGS BINARIES' >&2; exit 2; }
logs=$1 binaries=$2
mkdir -p "$logs"
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/card.sh"

check models 60 "$binaries/models" --test-threads 1 --nocapture
check engine-tiny 120 "$binaries/engine" --test-threads 1 --nocapture tiny:: scores:: judged::
check engine-pair 120 "$binaries/engine" --test-threads 1 --nocapture default_pair::
check lossless 120 "$binaries/slipstream" bench lossless --device cuda --count 12 --max-tokens 96
check speed 60 "$binaries/slipstream" bench speed --device cuda --count 12 --repeats 3

grep -h 'apart' "$logs"/models.log "$logs"/engine-tiny.log
grep -h ' of .* equal' "$logs/lossless.log"
cat "$logs/speed.log"
grep -h 'test result' "$logs"/models.log "$logs"/engine-*.log
finish
