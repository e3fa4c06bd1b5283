#!/bin/sh
# Rebuild the conformance guests; the toolchain is named in sdk/guest/c/build.sh.
set -eu
cd "$(dirname "$0")"
# core.json as a C string: what pawl_describe gives is the file that people read.
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$/\\n"/' core.json >src/core.inc
../../guest/c/build.sh core core.wasm src/core.c
../../guest/c/build.sh wasi command.wasm src/command.c
rm src/core.inc
