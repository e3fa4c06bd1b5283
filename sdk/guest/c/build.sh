#!/bin/sh
# Compile a C guest:  build.sh core|wasi OUT.wasm SOURCE.c [MANIFEST.json]
#
# core is level 2 (pawl.h, no libc), wasi is level 0 and 1 (wasi-libc). With a
# manifest, it becomes the module's custom section pawl.manifest.
#
# The modules of this repository are checked in and must come out the same byte
# for byte, so the toolchain is named here: Debian 12's
#
#   apt-get install clang-14 lld-14 llvm-14 wasi-libc libclang-rt-14-dev-wasm32
#
# Another clang is fine for your own tools: PAWL_CLANG=clang build.sh …
set -eu
want=14.0.6
clang=${PAWL_CLANG:-clang-14}
objcopy=${PAWL_OBJCOPY:-llvm-objcopy-14}
here=$(cd "$(dirname "$0")" && pwd)

if ! command -v "$clang" >/dev/null; then
  echo "build.sh: $clang is not installed; on Debian 12: apt-get install clang-14 lld-14 llvm-14 wasi-libc libclang-rt-14-dev-wasm32" >&2
  exit 1
fi
if [ -z "${PAWL_CLANG:-}" ] && ! "$clang" --version | grep -q "version $want"; then
  echo "build.sh: $clang is not $want: the modules would differ from those checked in; set PAWL_CLANG=$clang if you want that" >&2
  exit 1
fi

kind=$1 out=$2 src=$3 manifest=${4:-}
case $kind in
core)
  # The stack comes first: an overflow then leaves the memory and traps, instead
  # of growing into the data. 16 KiB of it keep a small tool within one page.
  "$clang" --target=wasm32 -mbulk-memory -std=c11 -Os -Wall -Wextra -Werror -nostdlib -ffreestanding -fno-builtin \
    -I"$here" -I"$(dirname "$src")" -Wl,--no-entry -Wl,--strip-all -Wl,--stack-first -Wl,-z,stack-size=16384 -o "$out" "$src"
  ;;
wasi)
  "$clang" --target=wasm32-wasi -mbulk-memory -I"$here" -std=c11 -Os -Wall -Wextra -Werror \
    -Wl,--strip-all -Wl,--stack-first -Wl,-z,stack-size=65536 -o "$out" "$src"
  ;;
*)
  echo "usage: build.sh core|wasi OUT.wasm SOURCE.c [MANIFEST.json]" >&2
  exit 2
  ;;
esac
if [ -n "$manifest" ]; then
  "$objcopy" --add-section=pawl.manifest="$manifest" "$out"
fi
chmod 644 "$out"
