#!/bin/sh
# Compile hello to sdk/abi/tck/hello.wasm, where tests and benchmarks find it.
# The bytes depend on the Go release; this one made those that are checked in.
set -eu
cd "$(dirname "$0")"
export GOTOOLCHAIN=go1.26.8
GOOS=wasip1 GOARCH=wasm go build -trimpath -buildvcs=false -buildmode=c-shared -ldflags='-s -w -buildid=' -o ../../../abi/tck/hello.wasm .
chmod 644 ../../../abi/tck/hello.wasm
