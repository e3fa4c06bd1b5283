#!/bin/sh
# Rebuild the bundled modules; the toolchain is named in sdk/guest/c/build.sh.
set -eu
cd "$(dirname "$0")"
../../sdk/guest/c/build.sh core ask.wasm ask/ask.c
../../sdk/guest/c/build.sh core files.wasm files/files.c
