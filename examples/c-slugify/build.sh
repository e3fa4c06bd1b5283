#!/bin/sh
# Compile the tool; the toolchain is named in sdk/guest/c/build.sh. The manifest
# goes into the module, so that slugify.wasm is all that there is to install.
set -eu
cd "$(dirname "$0")"
../../sdk/guest/c/build.sh core slugify.wasm src/slugify.c manifest.json
