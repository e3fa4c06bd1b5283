#!/bin/sh
# Compile hello to sdk/abi/tck/hello.wasm, where tests and benchmarks find it.
# The bytes depend on the Go release; this one made those that are checked in.
set -eu
cd "$(dirname "$0")"
want=go1.26.8
if [ "$(go env GOVERSION)" != "$want" ] && [ -z "${PAWL_ANY_GO:-}" ]; then
  echo "build.sh: $(go env GOVERSION) is not $want: the module would differ from the one checked in; set PAWL_ANY_GO=1 if you want that" >&2
  exit 1
fi
GOOS=wasip1 GOARCH=wasm go build -trimpath -buildvcs=false -buildmode=c-shared -ldflags='-s -w -buildid=' -o ../../../abi/tck/hello.wasm .
chmod 644 ../../../abi/tck/hello.wasm
