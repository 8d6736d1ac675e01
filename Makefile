# make help lists the targets. The two that matter: make demo, make test.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
export GO
export CGO_ENABLED ?= 0
GEN := $(GO) run ./gen/cmd/gen

.DEFAULT_GOAL := help

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The Debian packages that tests need, and why. NOINSTALL=1 installs nothing, and tests that need them are skipped.
# Packages of headers bring the libraries too.
DEPS := gcc libc6-dev libibverbs-dev librdmacm-dev librpma-dev
EMULATORS := qemu-user
JUDGES := tshark ibverbs-utils rdmacm-utils perftest curl netcat-traditional iperf3 zsh fish groff-base

.PHONY: demo
demo: ## send on the software device, check the Go packages against this host; 20 s
	@$(GO) run ./examples/demo
	@echo; $(GO) run ./examples/wire
	@echo; $(GO) run ./examples/rpma-log
	@echo
	@.ci/deps -why 'compare the Go packages with C headers and libraries' $(DEPS)
	@if command -v gcc >/dev/null; then $(GO) run ./conformance/abi/cmd/verbsabi$(if $(NOINSTALL), || true); fi
	@echo; $(GEN) generate; $(GEN) summary --short

# Property tests draw the same in every run, so that a run says something about a change; make fuzz draws anew.
test test-all check-32: export RAPID_SEED ?= 1
# Collecting garbage takes a fifth of a compiler's time. Tests that are about it collect by themselves, or set this.
test test-all check-32: export GOGC ?= 400
# Tests that take more than some seconds.
test test-all check-go: export GOVERBS_LONG = 1

# The steps of make test, in the order in which they begin, JOBS of them at a time. What go test and vmtest have seen
# pass is not run again before something of it has changed. Step encoded waits for timers most of the time.
STEPS := $(if $(NOINSTALL),generated vet go encoded 32,generated vm vet go encoded race 32 witness bench) \
	$(if $(GOVERBS_EVERYTHING),nofd) static
JOBS ?= 2
comma := ,
TESTKERNEL ?= 6.1
AGAIN ?= false

.PHONY: test
test: deps ## run what a change may break; 20 min, then 1 min; NOINSTALL=1 installs no packages
	@$(if $(NOINSTALL),echo 'NOINSTALL=1: the steps vm$(comma) race$(comma) witness and bench are skipped')
	@.ci/lists .ci/step together $(MAKE) --no-print-directory -j$(JOBS) --output-sync=recurse $(STEPS:%=step-%)

.PHONY: test-all
test-all: ## run make test, every kernel, fuzzing, and test suites of others; 2 h
	@GOVERBS_EVERYTHING=1 $(MAKE) --no-print-directory test TESTKERNEL=all AGAIN=true
	@while read -r step; do .ci/step "$$step" $(MAKE) --no-print-directory $$step </dev/null; done <.ci/nightly

.PHONY: deps
deps: ## install the Debian packages and Go modules that make test needs
	@.ci/deps -why 'compile C that judges layouts and calls, for five targets' $(DEPS) cross \
		$(if $(GOVERBS_EVERYTHING),ports)
	@.ci/deps -why 'run programs of other processors' $(EMULATORS)
	@.ci/deps -why 'judge packets, completions and manuals, and be peers' $(JUDGES)
	@.ci/modules . conformance/bench examples/grpc examples/valkey s3rdma/sdktest \
		$(if $(GOVERBS_EVERYTHING),conformance/house/tools)

.PHONY: generate
generate: ## make generated/ from the recorded models, offline; 2 s
	@$(GEN) generate

.PHONY: bump
bump: ## make FROM (66.0-1@sid, a directory) the primary release; DRY_RUN=1 only reports; 9 s
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; $(GO) build -o "$$dir/gen" ./gen/cmd/gen; \
	rc=0; "$$dir/gen" bump '$(FROM)' $(if $(DRY_RUN),--dry-run) $(BUMP_FLAGS) || rc=$$?; \
	$(if $(DRY_RUN),,$(GO) test ./headers -update;) exit $$rc

.PHONY: headers
headers: ## download the pinned headers to headers/cache; FROM=DIR takes them from there; 1 s
	@.ci/lists $(GEN) headers $(if $(FROM),--from '$(FROM)')

.PHONY: record
record: headers ## read the headers again and write the models; 10 s
	@$(GEN) record
	@$(GO) test ./headers -update

.PHONY: measure
measure: ## ask Soft-RoCE of KERNEL what is valid; PROMOTE=1 records the answers in headers/
	@$(if $(PROMOTE),conformance/vm/results/promote.sh,conformance/vm/run.sh measure)

.PHONY: tables
FORMAT ?= text
tables: ## print what is valid where; FORMAT=text, json or html; TABLE=NAME; OUT=FILE
	@$(GEN) tables --format '$(FORMAT)' $(if $(TABLE),--table '$(TABLE)') $(if $(OUT),--out '$(OUT)')

.PHONY: docs
docs: ## write the generated pages: docs/verbs.md, rpma.md, conformance.md and suites.md; 3 s
	@$(GO) test ./conformance/verbsdoc ./conformance/vm/promises ./conformance/suites -run TestPage -update

.PHONY: api
PACKAGES ?= ./rdma/... ./runtime/... ./rpma
api: ## print changes of the exported API since commit BASE; PACKAGES=./rdma/cm
	@conformance/house/apidiff.sh '$(BASE)' $(PACKAGES)

.PHONY: abi
abi: deps check-witness ## compare layouts with C, for every release and target; 8 s

.PHONY: bench
WHAT ?=
bench: ## measure WHAT=post, soft, mlx5, streams, wire, s3, dropin, gen, vm, perftest; BASE=COMMIT
	@conformance/bench/bench.sh '$(or $(WHAT),post)'

.PHONY: vm
vm: ## run tests on real kernels: KERNEL=6.1, WHAT=native, siw, race, doctor, perftest, rsockets …
	@conformance/vm/run.sh '$(or $(WHAT),all)'

.PHONY: soft
soft: ## run these tests on the software device: WIRE=encoded, packets or lossy; OUT=DIR
	@conformance/vm/soft.sh '$(WIRE)'

.PHONY: stress
stress: deps ## run the storms of the call layer for STRESS=10m
	GOVERBS_EVERYTHING=1 STRESS=$(or $(STRESS),10m) $(GO) test -v -count=1 -timeout 120m ./conformance/stress

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME=30s; WHAT=programs runs random programs of verbs
	@WHAT='$(WHAT)' .ci/fuzz

.PHONY: providers
providers: ## test libraries of adapters over emulated devices: mlx5, mlx4, efa, erdma; 35 min
	@.ci/deps $(DEPS) cross $(EMULATORS) perftest
	GOVERBS_VM=1 GOVERBS_PROVIDERS=1 $(GO) test -count=1 -timeout 90m ./conformance/provider

.PHONY: adapter
adapter: ## test an adapter: DEVICE=mlx5_0 ADDRESS=192.0.2.1, NATIVE=mlx5; or DEVICE=emulated
	@conformance/provider/adapter.sh

.PHONY: dropin
DROPIN ?= bin/dropin
dropin: ## build the drop-in libraries for C, and packages of them, in bin/dropin; 1 min
	@.ci/deps gcc libc6-dev
	@dropin/build $(DROPIN)
	@install dropin/goverbs-run $(DROPIN)
	@dropin/pack $(DROPIN) "$$(git describe --tags --match 'v*' 2>/dev/null || echo 0.0.0)"

.PHONY: suites
suites: ## run test suites of others: SUITES=NAME, KERNEL=6.1 for Soft-RoCE, UPDATE=1; 35 min
	@conformance/suites/run.sh

export NOINSTALL KERNEL VMFLAGS BASE CELLS OUT DEVICE ADDRESS NATIVE SUITES UPDATE FUZZTIME CHECKS

# The rest are steps of make test, and of make test-all. generated brings headers that tests read.
step-go step-witness: step-generated

step-%:
	@.ci/step $* $(MAKE) --no-print-directory check-$*

TESTFLAGS := -vet=off -timeout 30m
GOTEST := $(GO) test $(TESTFLAGS)

.PHONY: check-generated check-vet check-witness check-vm check-go check-race check-encoded check-nofd check-32
.PHONY: check-static check-bench check-grpc check-formats check-s3rdma check-hostile
check-generated: # is what it would be made again, and everything is formatted
	$(GEN) headers --available
	$(GEN) generate --check
	test -z "$$(gofmt -l cmd conformance dropin examples gen generated headers internal rdma rpma runtime s3rdma | tee /dev/stderr)"

check-vet:
	$(GO) vet ./...

# The C witness for every release whose headers are here, on every target. A target without a C compiler is a failure,
# and so are fewer releases than there are, up to three.
TARGETS := amd64,arm64,ppc64le,riscv64,s390x
check-witness:
	@$(GEN) headers --available
	@releases=$$(compgen -G 'headers/cache/*/include' | wc -l || true); \
	if ((releases == 0)); then echo 'no headers of any release can be had: layouts are not compared with C'; \
	else $(GO) run ./conformance/abi/cmd/verbsabi -cache headers/cache -require $(TARGETS) \
		-minimum-releases $$((releases < 3 ? releases : 3)); fi

check-vm:
	@KERNEL=$(TESTKERNEL) conformance/vm/run.sh all
check-vm: export VMFLAGS = -again=$(AGAIN) -retries=1 -timeout=15m $(if $(GOVERBS_EVERYTHING),-env GOVERBS_EVERYTHING=1)

check-go: # it boots guests of a kernel, which check-vm may not have brought yet
	@$(if $(NOINSTALL),,KERNEL=$(TESTKERNEL) conformance/vm/run.sh fetch)
	RAPID_CHECKS=$(if $(GOVERBS_EVERYTHING),100,20) $(if $(NOINSTALL),,GOVERBS_VM=1 GOVERBS_TSHARK=1) \
		$(GO) tool gotestsum --format pkgname --format-hide-empty-pkg -- $(TESTFLAGS) ./...

# What other builds and other wires repeat: tshark judges packets once, for they are the same; one goroutine takes all
# ports once; programs drawn at random and hostile packets are fewer. Make test-all repeats all of it.
ONCE = $(if $(GOVERBS_EVERYTHING),,-skip '^TestCapture(Of|InMemory)|^TestSoftEphemeralPorts$$')
FEWER = RAPID_CHECKS=$(if $(GOVERBS_EVERYTHING),20,5) GOVERBS_PACKETS=$(if $(GOVERBS_EVERYTHING),100000,20000)

# Packages with goroutines: elsewhere the race detector finds nothing.
RACING = $$(grep -rlE '\.Go\(|^\s*go |AfterFunc|Parallel\(' --include='*.go' --exclude-dir=sdktest rdma s3rdma | xargs -n1 dirname | sort -u | sed 's,^,./,')
check-race:
	$(FEWER) GOVERBS_ROUNDS=$(if $(GOVERBS_EVERYTHING),2000,200) CGO_ENABLED=1 \
		$(GOTEST) -race $(ONCE) $(RACING) ./conformance/vm/cm

check-encoded:
	@conformance/vm/soft.sh encoded
	@conformance/vm/soft.sh packets
	@conformance/vm/soft.sh lossy

# Packages whose tests have software devices: the rest do not know what their wires are, or have no descriptors.
DEVICES = ./rdma/soft ./rdma/soft/internal/device ./rdma/soft/internal/cm ./rdma/cm ./rdma/stream
check-nofd: # as on systems without eventfd
	$(FEWER) GOVERBS_ROUNDS=200 $(GOTEST) -tags goverbs_nofd $(ONCE) $(DEVICES) ./rdma ./rdma/registration ./rdma/rdmatest

# Without C, as in a static program; the devices are software. Make test also leaves out eventfd here, which is
# independent of C, and make test-all has a step for it. Make test runs the packages that call C or wait for descriptors
# (runtime, resource and what waits above it) and the command's scripts; the others are the same code in each build.
STATIC = goverbs_static$(if $(GOVERBS_EVERYTHING),,$(comma)goverbs_nofd)
STATICRUNS = $(if $(GOVERBS_EVERYTHING),$(DEVICES) ./rdma/soft/internal/... ./rdma/registration ./rdma/rdmatest \
	./cmd/goverbs,./rdma/soft/internal/device ./rdma/soft/internal/resource ./rdma/cm ./rdma/stream)
check-static:
	$(GO) $(if $(GOVERBS_EVERYTHING),vet,build) -tags $(STATIC) ./runtime/... ./rdma/... ./rpma ./cmd/goverbs/...
	$(FEWER) GOVERBS_ROUNDS=200 $(GOTEST) -tags $(STATIC) $(ONCE) ./runtime ./rdma ./rpma $(STATICRUNS)
	$(if $(GOVERBS_EVERYTHING),,$(GOTEST) -tags $(STATIC) -run '^TestScripts$$' ./cmd/goverbs)

# An amd64 whose kernel runs programs of a 386. Make test runs the packages that lay out memory for C, the kernel or a
# packet, compute with sizes, or use 64-bit atomics, and hostile packets; the others have no words of their own.
RUNS32 = $(if $(GOVERBS_EVERYTHING),./rdma/... ./conformance/vm/objects ./conformance/vm/cm,./rdma ./rdma/cm ./rdma/stream \
	./rdma/stream/internal/protocol ./rdma/registration ./rdma/native ./rdma/mlx5 ./rdma/internal/direct \
	$(addprefix ./rdma/soft/internal/,abi device message packet udp)) ./cmd/goverbs/internal/trace
check-32: export GOARCH = 386
check-32:
	@set -e; if [ "$$($(GO) env GOHOSTARCH)" != amd64 ]; then exit; fi; \
	if ! .ci/runs; then \
		echo 'this kernel does not run programs of a 386: they are only compiled'; $(GO) vet $(RUNS32); exit; fi; \
	$(FEWER) GOVERBS_ROUNDS=200 $(GOTEST) $(ONCE) $(RUNS32); \
	$(if $(GOVERBS_EVERYTHING),,$(GOTEST) -run '^TestHostile' ./rdma/soft)

check-grpc:
	cd examples/grpc && $(GO) vet . && $(GO) test .

check-formats: # of verbsabi, by schemas and libraries of others; the workflows of docs/abi-ci.md
	.ci/deps rsync
	command -v npx >/dev/null || .ci/deps npm # nodejs of other sources has it
	cd conformance/abi/formats && $(GO) vet . && GOVERBS_RUNNERS=1 $(GOTEST) .

check-s3rdma: # tests with SDKs, in a module of their own
	cd s3rdma/sdktest && CGO_ENABLED=1 $(GO) vet ./... && CGO_ENABLED=1 $(GOTEST) -race ./...

check-bench: # modules of their own; without valkey-go, which takes a minute to compile
	cd examples/valkey && $(GO) vet ./valkeyrdma && $(GOTEST) ./valkeyrdma
	cd conformance/bench && CGO_ENABLED=1 $(GO) vet ./... && CGO_ENABLED=1 \
		$(GO) tool -modfile=../../go.mod gotestsum --format pkgname -- $(TESTFLAGS) ./...

check-hostile:
	GOVERBS_PACKETS=10000000 $(GO) test -count=1 -timeout 20m ./rdma/soft -run TestHostilePackets
