#!/usr/bin/env bash
# Runs a command first in line on a Linux machine that others use too, as far as the scheduler allows: in a
# session of its own whose group goes before others'. As root; elsewhere the command just runs.
#
#   bench/peers/first.sh COMMAND…
set -euo pipefail

[ $# -ge 1 ] || { echo 'usage: bench/peers/first.sh COMMAND…' >&2; exit 2; }
# shellcheck disable=SC2016 # The inner shell expands it.
setsid bash -c '{ echo -19 >/proc/self/autogroup; } 2>/dev/null || true; exec "$@"' first "$@" &
group=$!
# Whoever ends this ends what it started.
trap 'kill -- "-$group" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
wait "$group"
