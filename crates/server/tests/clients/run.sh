#!/usr/bin/env bash
# The official OpenAI clients for Python and Node against the real binary and the default pair; requests
# that schemathesis makes of the server's own OpenAPI document; the code of the guide; the playground in
# Chromium; then load, leaks, crowds of clients, and SIGTERM while it works. Clients are installed below
# target/; the binary is the one named, or target/release/slipstream.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
binary=${1:-$target/release/slipstream}
work=$target/openai-clients

OPENAI_PYTHON=3.57.0
OPENAI_NODE=7.59.0
PLAYWRIGHT=1.60.0
SCHEMATHESIS=4.32.5

# No mistake of the server's own, and no answer that the document does not describe.
SCHEMA_CHECKS=not_a_server_error,status_code_conformance,content_type_conformance
SCHEMA_CHECKS+=,response_headers_conformance,response_schema_conformance,negative_data_rejection
SCHEMA_CHECKS+=,unsupported_method,allow_header_conformance,ignored_auth

mkdir -p "$work"
installed=$("$work/venv/bin/python" -c 'from importlib.metadata import version
print(version("openai"), version("schemathesis"))' 2>/dev/null || true)
if [ "$installed" != "$OPENAI_PYTHON $SCHEMATHESIS" ]; then
    python3 -m venv --clear "$work/venv"
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        "openai==$OPENAI_PYTHON" "schemathesis==$SCHEMATHESIS"
fi
npm install --silent --no-audit --no-fund --prefix "$work" "openai@$OPENAI_NODE" "playwright-core@$PLAYWRIGHT"
cp "$here"/*.test.mjs "$work/"

printf '# for the suite\nsk-suite\n' >"$work/keys"
# Few descriptors, so that crowds meet the limit; little patience with connections whose end was lost; and no
# memory for answers that take longer than the suites wait.
(ulimit -n 1024 && exec "$binary" serve --port 0 --kv-tokens 4096 --header-timeout 15 --served-name smollm2 --api-key-file "$work/keys" --log json \
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
# A fixed seed and a fixed time: what is tried first is the same everywhere.
(cd "$work" && PYTHONPATH=$here SCHEMATHESIS_HOOKS=schema_hooks "$work/venv/bin/schemathesis" run \
    "$SLIPSTREAM_URL/openapi.json" --header 'Authorization: Bearer sk-suite' --no-color \
    --seed 1 --max-examples 30 --max-time 30 --phases coverage,fuzzing --generation-database none \
    --request-timeout 120 --suppress-health-check all --checks "$SCHEMA_CHECKS")
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
