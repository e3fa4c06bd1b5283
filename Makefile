# Everything a contributor types. The build itself needs only Go; what else a target needs, it says.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GUEST_BUILDS := plugins/bundled/build.sh plugins/testdata/build.sh sdk/abi/tck/build.sh
GUEST_BUILDS += $(sort $(wildcard sdk/guest/*/*/build.sh examples/*/build.sh))
GUEST_TOOLS := clang clang-14 wasm-ld-14 llvm-objcopy-14

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

.PHONY: build
build: ## Build ./pawl
	go build -o pawl ./cmd/pawl

.PHONY: test
test: ## Run all tests; says what was skipped and why
	@go test -json ./... | go run ./.ci/skipped

.PHONY: race
race: ## Run all tests under the race detector (the long ones shortened)
	go test -race -short -timeout 30m ./...

.PHONY: crash
crash: ## Kill a whole host 200 times under load (PAWL_CRASH_ROUNDS=n for another number)
	PAWL_CRASH_ROUNDS=$${PAWL_CRASH_ROUNDS:-200} go test -count=1 -timeout 40m -run SIGKILL -v ./cmd/pawl

.PHONY: fmt
fmt: ## Format the Go sources
	gofmt -w $$(git ls-files '*.go')

.PHONY: lint
lint: ## Check formatting, vet, staticcheck; golangci-lint too where it is installed
	@bad=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$bad" ]; then echo "gofmt would change: $$bad"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) -tests=false -checks inherit,-SA1019 ./... # deprecations are for upgrades, not for each change
	@if command -v golangci-lint >/dev/null; then golangci-lint run; \
	else echo "golangci-lint is not installed: its import rules are held by house_test.go all the same"; fi

.PHONY: guests
guests: ## Rebuild the checked-in WebAssembly modules (Debian 12: clang lld llvm-14 wasi-libc libclang-rt-14-dev-wasm32)
	@for b in $(GUEST_BUILDS); do if [ -x $$b ]; then echo "$$b"; $$b; fi; done

.PHONY: verify
verify: ## Regenerate what is generated, and show that nothing changes
	@missing=; for t in $(GUEST_TOOLS); do command -v $$t >/dev/null || missing="$$missing $$t"; done; \
	if [ -n "$$missing" ]; then \
	  if [ -n "$${CI:-}" ]; then echo "make verify: missing:$$missing"; exit 1; fi; \
	  echo "make verify: the guests are not rebuilt, missing:$$missing (see make guests)"; \
	else \
	  before=$$(git ls-files '*.wasm' | xargs sha256sum); $(MAKE) --no-print-directory guests; \
	  diff <(echo "$$before") <(git ls-files '*.wasm' | xargs sha256sum) && echo "the guests are what their sources give"; \
	fi
	go mod verify
	@before=$$(git ls-files '*.go' '*.json' '*.md' | xargs sha256sum); go generate ./...; \
	diff <(echo "$$before") <(git ls-files '*.go' '*.json' '*.md' | xargs sha256sum) && echo "generated files are up to date"

.PHONY: bench
bench: ## Measure, beside the budgets of the design (BENCH="-json -quick" for others)
	cd cmd/pawl-bench && go run . $(BENCH)
