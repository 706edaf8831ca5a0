#!/usr/bin/env bash
# The official OpenAI clients for Python and Node against the real binary and the default pair; the code of
# the guide; the playground in Chromium; then load, leaks, crowds of clients, and SIGTERM while it works.
# Clients are installed below target/; the binary is the one named, or target/release/slipstream.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
binary=${1:-$target/release/slipstream}
work=$target/openai-clients

OPENAI_PYTHON=3.57.0
OPENAI_NODE=7.59.0
PLAYWRIGHT=1.60.0

mkdir -p "$work"
if [ "$("$work/venv/bin/python" -c 'import openai; print(openai.__version__)' 2>/dev/null)" != "$OPENAI_PYTHON" ]; then
    python3 -m venv --clear "$work/venv"
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "openai==$OPENAI_PYTHON"
fi
npm install --silent --no-audit --no-fund --prefix "$work" "openai@$OPENAI_NODE" "playwright-core@$PLAYWRIGHT"
cp "$here"/*.test.mjs "$work/"

printf '# for the suite\nsk-suite\n' >"$work/keys"
# Few descriptors, so that crowds meet the limit.
(ulimit -n 1024 && exec "$binary" serve --port 0 --served-name smollm2 --api-key-file "$work/keys" --log json \
    >"$work/ready" 2>"$work/log") &
server=$!
trap 'kill -KILL $server 2>/dev/null || true' EXIT

# The line appears once the model is loaded (and, the first time, fetched).
for _ in $(seq 3000); do
    grep -q '^listening on ' "$work/ready" && break
    if ! kill -0 $server 2>/dev/null; then
        cat "$work/log" >&2
        exit 1
    fi
    sleep 0.1
done
SLIPSTREAM_URL=$(sed -n 's/^listening on //p' "$work/ready")
export SLIPSTREAM_URL

"$work/venv/bin/python" "$here/openai_client.py"
(cd "$work" && node --test openai_client.test.mjs)
"$work/venv/bin/python" "$here/snippets.py" "$work" "$root/docs/guide/serve.md" "$root/docs/guide/clients.md"
SLIPSTREAM_BROWSER=$(command -v chromium)
export SLIPSTREAM_BROWSER
(cd "$work" && node --test page.test.mjs)
"$work/venv/bin/python" "$here/load.py" "$binary"
SLIPSTREAM_PID=$server "$work/venv/bin/python" "$here/flood.py"

wait $server
trap - EXIT
grep -c '"generated"' "$work/log" >/dev/null
printf 'clients: passed; the server ended with exit code 0\n'
