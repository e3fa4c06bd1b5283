#!/bin/sh
# Compile the tool; the toolchain is named in sdk/guest/c/build.sh.
set -eu
cd "$(dirname "$0")"
../../sdk/guest/c/build.sh wasi word-count.wasm src/word_count.c
