tool := go tool -modfile=tools/go.mod

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: short
short: ## run the tests on miniredis and plain servers: a minute on two cores
	go test -short -ldflags=-w -p 6 ./... # without what debuggers need, which takes a third of each link

.PHONY: test
test: ## run the tests on every backend: two minutes on two cores
	go test ./...

.PHONY: test-all
test-all: ## run all tests of this module, with the race detector: minutes, then those of test-long
	go test -race ./...
	$(MAKE) test-long

.PHONY: test-long
test-long: ## run the long tests too: failovers, hours of faults, many processes, more random cases
	go test -race -tags long -p 1 -timeout 30m -v . ./test/... ./internal/systest/...

.PHONY: ci
ci: ## run all that a change has to pass; installs redis-server, gcc, chromium and what else is missing with apt
	.ci/run

.PHONY: servers
servers: ## run the core on each Redis and Valkey that Debian has
	.ci/matrix

.PHONY: lint
lint: ## run the linters
	$(tool) golangci-lint run ./...

.PHONY: bench
bench: ## run the benchmarks
	go test -run '^$$' -bench . -benchmem .

.PHONY: sale
sale: ## hold the example's flash sale
	go run -C examples ./seckill

.PHONY: model
model: ## compare the library with its model at length: 100,000 cases, and the larger walks
	go test -C proof ./model -run Walk -full -v -timeout 0
	go test -C proof ./model -run Machine -rapid.checks 100000 -v -timeout 0

.PHONY: chaos
chaos: ## two minutes of processes under faults, checked
	go run -C proof ./chaos -for 2m

.PHONY: soak
soak: ## an hour of that
	go run -C proof ./chaos -for 1h

.PHONY: digests
digests: ## rewrite lua/digests.txt after a change to a script
	go test -run TestDigests ./test/scripts -update

.PHONY: fmt
fmt: ## format the Go files
	gofmt -l -w .

.PHONY: tidy
tidy: ## tidy every module
	find . -name go.mod -execdir go mod tidy \;

.PHONY: release
release: ## try a release, and leave nothing: make release VERSION=v0.1.0; .ci/release tags one
	.ci/release $(VERSION) -n
