#!/usr/bin/env bash
# Runs a pair on an emulated machine of two memory nodes (QEMU, no rights needed) and says where its weights lie and
# where its threads stay, with `--numa replicate` and `--numa off`; then compares the bytes with this machine's.
#
#   bench/numa/emulate.sh SLIPSTREAM TARGET DRAFTER
#
# Needs a kernel for x86-64 (KERNEL=PATH, or the newest in /boot), qemu-system-x86_64, cpio and a static busybox:
# on Debian qemu-system-x86, linux-image-cloud-amd64, cpio and busybox-static. Some minutes of two cores.
set -euo pipefail

[ $# -eq 3 ] || { echo 'usage: bench/numa/emulate.sh SLIPSTREAM TARGET DRAFTER' >&2; exit 2; }
slipstream=$(realpath "$1") target=$(realpath "$2") drafter=$(realpath "$3")
here=$(cd "$(dirname "$0")" && pwd)
newest=$(find /boot -name 'vmlinuz-*' | sort -V | tail -n 1)
kernel=${KERNEL:-$newest}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the machine has: the program and what it is linked to, the models, a shell.
root=$work/root
mkdir -p "$root"/{bin,proc,sys,dev,state,models}
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$here/guest.sh" "$root/init"
chmod +x "$root/init"
strip -o "$root/bin/slipstream" "$slipstream"
for library in $(ldd "$slipstream" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
cp "$target" "$root/models/target.gguf"
cp -r "$drafter" "$root/models/drafter"
cp "$here/prompt.txt" "$root/prompt.txt"
(cd "$root" && find . | cpio --quiet -o -H newc) >"$work/initramfs"

node() {
    printf -- '-object memory-backend-ram,size=2G,id=m%s -numa node,nodeid=%s,cpus=%s,memdev=m%s' "$1" "$1" "$2" "$1"
}
# shellcheck disable=SC2046 # Several words are meant.
nice -n 19 qemu-system-x86_64 -machine q35 -cpu max -accel tcg,thread=multi -smp 4 -m 4G \
    $(node 0 0-1) $(node 1 2-3) -nographic -no-reboot -net none \
    -kernel "$kernel" -initrd "$work/initramfs" -append 'console=ttyS0 quiet panic=-1' |
    tr -d '\r' | tee "$work/log"

# Each node has as many pages as the other: a copy.
[ "$(grep -A 2 'numa replicate' "$work/log" | grep -c 'in all \([0-9]*\) on node 0, \1 on node 1')" -eq 2 ] ||
    { echo 'the nodes do not have a copy each' >&2; exit 1; }

# The same here, on as many threads.
for drawn in '' '--temperature 0.8 --seed 7'; do
    # shellcheck disable=SC2086 # Several words are meant.
    sum=$("$slipstream" generate --file "$here/prompt.txt" --model "$target" --draft "$drafter" \
        --threads 4 --max-tokens 24 $drawn 2>/dev/null | sha256sum | cut -c 1-16)
    printf 'this machine%s: bytes %s\n' "${drawn:+ $drawn}" "$sum"
    [ "$(grep -c "bytes $sum" "$work/log")" -eq 2 ] || { echo 'the bytes differ' >&2; exit 1; }
done
