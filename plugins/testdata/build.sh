#!/bin/sh
# Builds the guests of the tests into testdata/wasm. The result is committed, so that go test needs only Go; the same
# clang gives the same bytes. Needs clang 14 with wasm-ld, and wasi-libc for the commands.
set -eu
cd "$(dirname "$0")/src"
out=../wasm
mkdir -p "$out"
core="--target=wasm32 -O1 -nostdlib -Wall -Wno-infinite-recursion -Wl,--no-entry -Wl,--strip-debug -Wl,-z,stack-size=65536"
for f in core*.c; do
	clang $core -o "$out/${f%.c}.wasm" "$f"
done
for f in cmd*.c; do
	[ -e "$f" ] || continue
	clang --target=wasm32-wasi -O1 -Wall -Wl,--strip-debug -o "$out/${f%.c}.wasm" "$f"
done
