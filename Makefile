# make help lists the targets. The two that matter: make demo, make test.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
GO ?= go
export CGO_ENABLED ?= 0
GEN := $(GO) run ./gen/cmd/gen
# the packages of headers bring the libraries too
DEPS := gcc libc6-dev libibverbs-dev librdmacm-dev librpma-dev
# programs of other machines are run with qemu-user
EMULATORS := qemu-user
# they say whether our packets, completions and manual are right, and whether programs of C run on our libraries
JUDGES := tshark ibverbs-utils rdmacm-utils perftest curl netcat-traditional iperf3 zsh fish groff-base
TARGETS := amd64,arm64,ppc64le,riscv64,s390x
# the C witness for every release whose headers are here, on every target; a target without a C compiler is a failure, and so are
# fewer releases than there are, up to three
WITNESS = n=$$(compgen -G 'headers/cache/*/include' | wc -l || true); if ((n)); then \
	$(GO) run ./conformance/abi/cmd/abicheck -cache headers/cache -require $(TARGETS) -minimum-releases $$((n < 3 ? n : 3)); \
	else echo 'no headers of any release can be had: the C witness was not heard'; fi

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@echo 'Times are processor time, measured on amd64 after a first build; those of test and test-all are what passes on two processors.'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## send on the software device, and between two processes; append to a remote log and read it; check the Go packages against the headers and libraries installed here; count what is generated; 20 s
	@$(GO) run ./examples/demo
	@echo; $(GO) run ./examples/wire
	@echo; $(GO) run ./examples/rpma-log
	@echo; .ci/deps $(DEPS)
	@$(GO) run ./conformance/abi/cmd/abicheck
	@echo; $(GEN) generate; $(GEN) summary --short
	@echo; echo 'make tables prints what is valid where, and why; go run ./gen/cmd/gen summary lists what is excepted, with the reasons.'

# property tests draw the same in every run, so that a run says something about a change; make programs draws anew
test test-all test-32: export RAPID_SEED ?= 1
# collecting garbage takes a fifth of a compiler's time, and there is memory enough; tests that are about it collect by themselves, or set this anew
test test-all test-32: export GOGC ?= 400

# The steps of make test, in the order in which they begin, JOBS of them at a time. Each says how long it took. What go test and vmtest have
# seen pass is not run again before something of it has changed. Make asks whether go can begin when it gives vet a place, which is once there
# are headers; before vet, it would be asked last.
STEPS := generated vm vet go race 32 witness bench encoded nofd
JOBS ?= 2
TESTKERNEL ?= 6.1
AGAIN ?= false

.PHONY: test
test: deps ## set up and test what a change may break; 15 min from nothing, 1 min when little has changed; each step tells its time
	@.ci/step together $(MAKE) --no-print-directory -j$(JOBS) --output-sync=recurse $(STEPS:%=step-%)

.PHONY: test-all
test-all: ## all of make test, and what takes long and seldom fails alone: every kernel, more machines, gRPC, fuzzing, suites of others; 2 h
	@GOVERBS_EVERYTHING=1 $(MAKE) --no-print-directory test TESTKERNEL=all AGAIN=true
	@.ci/step dax $(MAKE) --no-print-directory vm-dax
	@.ci/step unreachable $(MAKE) --no-print-directory vm-unreachable
	@.ci/step perftest $(MAKE) --no-print-directory vm-perftest
	@.ci/step rsockets $(MAKE) --no-print-directory vm-rsockets
	@.ci/step doctor $(MAKE) --no-print-directory vm-doctor
	@.ci/step grpc $(MAKE) --no-print-directory check-grpc
	@.ci/step valkey $(MAKE) --no-print-directory valkey GOVERBS_EVERYTHING=1
	@.ci/step vm-valkey $(MAKE) --no-print-directory vm-valkey KERNEL=6.1
	@.ci/step fuzz $(MAKE) --no-print-directory fuzz FUZZTIME=1500x
	@.ci/step providers $(MAKE) --no-print-directory providers
	@.ci/step suites $(MAKE) --no-print-directory suites
	@.ci/step suites-rxe $(MAKE) --no-print-directory suites-rxe
	GOVERBS_PACKETS=10000000 $(GO) test -count=1 -timeout 20m ./rdma/soft -run TestHostilePackets

# generated brings headers that tests read
step-go step-witness: step-generated

step-%:
	@.ci/step $* $(MAKE) --no-print-directory check-$*

TESTFLAGS := -vet=off -timeout 30m
GOTEST := $(GO) test $(TESTFLAGS)

.PHONY: check-generated check-vet check-witness check-vm check-go check-race check-encoded check-nofd check-32 check-bench check-grpc check-valkey
check-generated: # is what it would be made again, and everything is formatted
	$(GEN) headers --available
	$(GEN) generate --check
	test -z "$$(gofmt -l cmd conformance dropin examples gen generated headers internal rdma rpma runtime | tee /dev/stderr)"

check-vet:
	$(GO) vet ./...

check-witness:
	@$(WITNESS)

check-vm:
	@$(MAKE) --no-print-directory vm KERNEL=$(TESTKERNEL) VMFLAGS="-again=$(AGAIN) -timeout=15m $(if $(GOVERBS_EVERYTHING),-env GOVERBS_EVERYTHING=1)"

check-go: # it boots guests of a kernel, which check-vm may not have brought yet
	@$(MAKE) --no-print-directory vm-deps KERNEL=$(TESTKERNEL)
	RAPID_CHECKS=$(if $(GOVERBS_EVERYTHING),100,40) GOVERBS_LONG=1 GOVERBS_VM=1 GOVERBS_TSHARK=1 $(GO) tool gotestsum --format pkgname --format-hide-empty-pkg -- $(TESTFLAGS) ./...

# What other builds and other wires repeat: tshark judges packets once, for they are the same; one goroutine takes all ports once; programs drawn
# at random and hostile packets are fewer. Make test-all repeats all of it.
ONCE = $(if $(GOVERBS_EVERYTHING),,-skip '^TestCapture(Of|InMemory)|^TestSoftEphemeralPorts$$')
FEWER = RAPID_CHECKS=$(if $(GOVERBS_EVERYTHING),20,5) GOVERBS_PACKETS=$(if $(GOVERBS_EVERYTHING),100000,20000)

# Packages with goroutines: elsewhere the race detector finds nothing.
RACING = $$(grep -rlE '\.Go\(|^\s*go |AfterFunc|Parallel\(' --include='*.go' rdma | xargs -n1 dirname | sort -u | sed 's,^,./,')

check-race:
	$(FEWER) GOVERBS_ROUNDS=$(if $(GOVERBS_EVERYTHING),2000,200) CGO_ENABLED=1 \
		$(GOTEST) -race $(ONCE) $(RACING) ./conformance/vm/cm

check-encoded:
	$(MAKE) --no-print-directory soft-encoded
	$(MAKE) --no-print-directory soft-lossy

# packages whose tests have software devices: the rest do not know what their wires are, or have no descriptors
DEVICES = ./rdma/soft ./rdma/soft/internal/device ./rdma/soft/internal/cm ./rdma/cm

check-nofd: # as on systems without eventfd
	$(FEWER) GOVERBS_ROUNDS=200 $(GOTEST) -tags goverbs_nofd $(ONCE) $(DEVICES) ./rdma ./rdma/registration ./rdma/rdmatest

check-32: # elsewhere than on amd64 no programs of a 386 run
	@if [ "$$($(GO) env GOHOSTARCH)" = amd64 ]; then $(MAKE) --no-print-directory test-32; fi

check-grpc:
	cd examples/grpc && $(GO) vet . && $(GO) test .

# without valkey-go, which takes a minute to compile: make valkey has it
check-valkey:
	cd examples/valkey && $(GO) vet ./valkeyrdma && $(GOTEST) ./valkeyrdma

# What Debian's archive has of Valkey as source. Its stable release has no command for RDMA but the server, and a later one may be gone from the
# archive when there is a newer one.
VALKEY = $(CURDIR)/conformance/suites/cache
.PHONY: valkey-programs valkey vm-valkey
valkey-programs:
	@.ci/deps gcc libc6-dev libibverbs-dev librdmacm-dev tcl
	@conformance/suites/build/valkey '$(VALKEY)'
	@conformance/suites/build/valkey-tools '$(VALKEY)' || { rm -rf '$(VALKEY)/valkey-tools-9.1.2'; \
		echo 'goverbs: valkey-cli and valkey-benchmark of 9.1.2 cannot be had, and are left out; pin another release in conformance/suites/build/valkey-tools' >&2; }

VALKEYS = GOVERBS_VALKEY='$(VALKEY)/valkey-8.1.1' GOVERBS_VALKEY_TOOLS="$$(ls -d '$(VALKEY)/valkey-tools-9.1.2' 2>/dev/null || true)"

valkey: valkey-programs ## Valkey over RDMA: valkey-go, the race detector on, valkey-server and its own test of RDMA, valkey-cli and valkey-benchmark over the wire; 3 min, of which 2 build; 5 min more for 1,600 tests of its suite with GOVERBS_EVERYTHING=1
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && dropin/build "$$dir" && cd examples/valkey && $(VALKEYS) GOVERBS_LIBRARIES="$$dir" \
		GOVERBS_DEVICE=soft@127.44.0.1 GOVERBS_EVERYTHING='$(GOVERBS_EVERYTHING)' CGO_ENABLED=1 $(GOTEST) -race -count=1 -v ./...

vm-valkey: vm-deps valkey-programs ## the same without the suite and the race detector, on Soft-RoCE of a real kernel; 4 min
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && (cd examples/valkey && CGO_ENABLED=0 $(GO) test -c -trimpath -o "$$dir/valkey.test" .) && \
		files=$$(for f in '$(VALKEY)'/valkey-8.1.1/{valkey-server,rdma-test} '$(VALKEY)'/valkey-tools-9.1.2/valkey-{cli,benchmark}; do \
			[ ! -e "$$f" ] || echo "-file $$f=/valkey/$${f##*/}"; done) && \
		$(VM) -kernel '$(if $(filter all,$(KERNEL)),6.1,$(KERNEL))' -memory 2048 -cpus 2 -timeout 10m $$files \
			-file "$$(ldd '$(VALKEY)/valkey-8.1.1/valkey-server' | awk '/libm\.so/ {print $$3}')=/usr/lib/x86_64-linux-gnu/libm.so.6" \
			-env GOVERBS_VALKEY=/valkey -env GOVERBS_VALKEY_TOOLS=/valkey -- "$$dir/valkey.test" -test.v

check-bench: check-valkey # both are modules of their own
	cd conformance/bench && CGO_ENABLED=1 $(GO) vet ./... && \
		CGO_ENABLED=1 $(GO) tool -modfile=../../go.mod gotestsum --format pkgname -- $(TESTFLAGS) ./...

.PHONY: test-32
test-32: ## the objects' tests with 32 bits, on the software device: an amd64 runs programs of a 386; 2 min 30 s
	$(FEWER) GOARCH=386 GOVERBS_ROUNDS=200 $(GOTEST) $(ONCE) ./rdma/... ./cmd/goverbs/internal/trace ./conformance/vm/objects ./conformance/vm/cm

VM := $(GO) run ./conformance/vm/cmd/vmtest
KERNEL ?= all
# kernels beside whose libraries the archive has librpma, which is no longer developed
RPMAKERNEL = $(if $(filter all,$(KERNEL)),6.1$(comma)6.12,$(KERNEL))
comma := ,

# the peer in C, and what makes its memory run out
RPMAPEER = dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	gcc -O2 -Wall -Werror -shared -fPIC -o "$$dir/faults.so" conformance/vm/rpma/peer/faults.c &&
WITHRPMA = -with ./conformance/vm/rpma/peer/rpmapeer.c -file "$$dir/faults.so=/usr/lib/faults.so"

# rdma of iproute2, with those of this host's libraries that guests do not have
WITHRDMA = -file "$$(command -v rdma)=/usr/bin/rdma" \
	$$(ldd "$$(command -v rdma)" | awk '/=> \// && !/libc\.so/ {print "-file " $$3 "=/usr/lib/x86_64-linux-gnu/" $$1}')

# cmtime of Debian 12, which later releases changed, and what gives its queue pairs completion queues of their own
OWNQUEUES = dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && \
	gcc -O2 -Wall -Werror -shared -fPIC -o "$$dir/ownqueues.so" conformance/vm/cm/peer/ownqueues.c &&
WITHCMTIME = -root bookworm:rdmacm-utils=/bookworm -env GOVERBS_CMTIME=/bookworm -file "$$dir/ownqueues.so=/usr/lib/ownqueues.so"

.PHONY: vm-deps
vm-deps: ## install QEMU and bring the kernels of KERNEL into the cache; 1 min 30 s, then 1 s
	@.ci/deps qemu-system-x86
	@$(VM) -fetch -kernel '$(KERNEL)'

.PHONY: vm
vm: vm-deps ## tests on real kernels with Soft-RoCE; KERNEL=6.1 for one; 6 to 8 min a kernel, 20 s when nothing but the software device has changed (VMFLAGS=-again=false)
	@$(VM) $(VMFLAGS) -kernel '$(KERNEL)' -with ./examples/... -with ./conformance/vm/cm/peer/cmpeer.c \
		-- ./conformance/vm/rxe ./conformance/vm/promises ./conformance/vm/objects ./conformance/vm/interop ./conformance/vm/roce ./conformance/vm/cm
	@.ci/deps librpma-dev
	@$(RPMAPEER) $(VM) $(VMFLAGS) -kernel '$(RPMAKERNEL)' $(WITHRPMA) -- ./conformance/vm/rpma
	@.ci/deps iproute2
	@# doctor comes last: it takes modules and devices away
	@$(VM) $(VMFLAGS) -kernel '$(KERNEL)' -with ./cmd/goverbs $(WITHRDMA) \
		-- ./conformance/dropin ./cmd/goverbs/internal/resources ./cmd/goverbs/internal/top ./cmd/goverbs/internal/exporter ./cmd/goverbs/internal/trace ./cmd/goverbs/internal/doctor -run 'TestQuery|TestPing$$|TestWithoutLibraries|TestGuest|TestQuiet'
	@$(VM) $(VMFLAGS) -kernel '$(KERNEL)' -pair -cpus 1 -- ./conformance/vm/pair ./conformance/vm/cm -run '^TestMove$$|TwoHosts'

.PHONY: vm-unreachable
vm-unreachable: vm-deps ## a peer that does not answer, beside librpma: the kernel asks for 70 s, which a guest whose clock counts instructions has not to wait; 1 min
	@.ci/deps librpma-dev
	@$(RPMAPEER) $(VM) -kernel '$(RPMAKERNEL)' -counted -cpus 1 -env GOVERBS_UNREACHABLE=1 $(WITHRPMA) -- ./conformance/vm/rpma -run TestUnreachable

.PHONY: vm-dax
vm-dax: vm-deps ## persistent memory of a kernel, an NVDIMM of QEMU: registered, and flushed for persistence; 1 min
	@.ci/deps e2fsprogs
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && truncate -s 128M "$$dir/nvdimm" && /sbin/mke2fs -q -t ext4 -b 4096 "$$dir/nvdimm" 64M && \
		$(VM) -kernel '$(if $(filter all,$(KERNEL)),6.12,$(KERNEL))' -nvdimm "$$dir/nvdimm" -- ./conformance/vm/rpma -run TestPersistentMemory

.PHONY: vm-grpc
vm-grpc: vm-deps ## gRPC over RDMA, the example in a module of its own, on a real kernel; 1 min
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && (cd examples/grpc && CGO_ENABLED=0 $(GO) test -c -trimpath -o "$$dir/grpc.test" .) && \
		$(VM) -kernel '$(KERNEL)' -- "$$dir/grpc.test" -test.v

.PHONY: soft
soft: ## the suites of Soft-RoCE on the software device, each difference with its reason; OUT=DIR is where their tables go; 7 s
	@out='$(abspath $(or $(OUT),$(CURDIR)/.soft))'; mkdir -p "$$out"; GOVERBS_OUT="$$out" $(GO) test -count=1 ./conformance/vm/rxe ./conformance/vm/promises ./conformance/vm/objects ./conformance/vm/cm ./conformance/vm/rpma

.PHONY: soft-encoded
soft-encoded: ## the same suites and the software device's tests with a wire that makes bytes of every message and reads them again; 40 s
	$(FEWER) GOVERBS_SOFT_WIRE=encoded $(GOTEST) $(ONCE) ./conformance/vm/rxe ./conformance/vm/promises ./conformance/vm/objects ./conformance/vm/cm ./conformance/vm/rpma $(DEVICES)
	$(FEWER) GOVERBS_SOFT_WIRE=packets $(GOTEST) ./conformance/vm/rxe ./conformance/vm/promises ./conformance/vm/objects ./conformance/vm/cm ./conformance/vm/rpma

LOSSES = lossy:1:10 $(if $(GOVERBS_EVERYTHING),lossy:2:10 lossy:3:5) lossy:4:1
# the first of LOSSES is for these too
LOSSY = ./conformance/vm/cm ./conformance/vm/rpma ./rpma ./rdma/cm
.PHONY: soft-lossy
soft-lossy: ## suites over packets of which some are lost, repeated, overtaken, damaged and late, by seeds and percents of LOSSES, with a virtual clock; 50 s
	@for l in $(LOSSES); do echo $$l; .ci/lossy $$l ./conformance/vm/rxe ./conformance/vm/promises ./conformance/vm/objects || exit 1; done
	@.ci/lossy $(firstword $(LOSSES)) $(LOSSY)

.PHONY: vm-bench
vm-bench: vm-deps ## latency of our ping-pong beside those in C, streams beside raw writes, TCP and C's rstream, connections beside cmtime, registrations beside a cache, the wire beside Soft-RoCE; package rpma beside librpma; writes conformance/vm/results/{pingpong,cm-speed,cm-counts,cm-connections,registration,roce-speed,rpma-speed}-*; 14 min
	@.ci/deps $(DEPS)
	@$(VM) -kernel '$(if $(filter all,$(KERNEL)),6.1,$(KERNEL))' -cpus 2 -timeout 20m -env GOVERBS_MEASURE=1 -out conformance/vm/results -with ./examples/rc-pingpong \
		-with conformance/vm/interop/c/rc-latency.c -- ./conformance/vm/interop -run TestLatency -v
	@$(OWNQUEUES) $(VM) -kernel '$(if $(filter all,$(KERNEL)),6.1,$(KERNEL))' -cpus 2 -timeout 12m -env GOVERBS_SPEED=1 -out conformance/vm/results $(WITHCMTIME) \
		-- ./conformance/vm/cm -run '^Test(Speed|Counts|Connections)$$' -v
	@$(VM) -kernel '$(if $(filter all,$(KERNEL)),6.1,$(KERNEL))' -cpus 2 -env GOVERBS_SPEED=1 -out conformance/vm/results -- ./conformance/vm/objects -run TestRegistrationSpeed -v
	@$(VM) -kernel '$(KERNEL)' -cpus 2 -env GOVERBS_SPEED=1 -out conformance/vm/results -- ./conformance/vm/roce -run TestSpeed -v
	@$(VM) -kernel '$(RPMAKERNEL)' -cpus 1 -counted -env GOVERBS_SPEED=1 -out conformance/vm/results -with ./conformance/vm/rpma/peer/rpmapeer.c \
		-- ./conformance/vm/rpma -run TestSpeed -v

# nft of Debian 12, and the libraries that it needs
NFTROOT = -env GOVERBS_NFT=/nft -root bookworm:nftables,libnftables1,libnftnl11,libmnl0,libxtables12,libjansson4,libgmp10,libedit2,libtinfo6,libbsd0,libmd0,libreadline8=/nft

.PHONY: vm-doctor
vm-doctor: vm-deps ## faults of a host, and between two hosts with a firewall by nft, each named by goverbs doctor and mended as it says; the same between two guests; writes conformance/vm/results/doctor-*; 9 min a kernel
	@$(VM) -again=false -kernel '$(if $(filter all,$(KERNEL)),6.1$(comma)6.12,$(KERNEL))' -timeout 14m $(NFTROOT) -with ./cmd/goverbs -out conformance/vm/results \
		-- ./conformance/vm/interop ./cmd/goverbs/internal/doctor -run 'TestDoctor$$|TestGuest$$|TestLeaving$$|TestCopy$$' -v
	@$(VM) -again=false -kernel '$(if $(filter all,$(KERNEL)),6.1$(comma)6.12,$(KERNEL))' -timeout 14m -pair -cpus 1 $(NFTROOT) -with ./cmd/goverbs \
		-out conformance/vm/results -- ./conformance/vm/interop -run 'TestDoctorGuests$$' -v

.PHONY: vm-perftest
vm-perftest: vm-deps ## goverbs perf with the perftest of Debian 12 and of 13 as its peer, in both roles, on Soft-RoCE; 5 min
	@$(VM) -kernel '$(if $(filter all,$(KERNEL)),6.1,$(KERNEL))' -timeout 40m $(PERFTESTS) -- ./conformance/vm/interop -run 'TestPerftest$$'

.PHONY: vm-perftest-speed
vm-perftest-speed: vm-deps ## what goverbs perf measures, beside what perftest does, in one boot; writes conformance/vm/results/perftest-*; 7 min
	@for flags in '-cpus 1 -counted' '-cpus 2'; do \
		$(VM) -kernel '$(if $(filter all,$(KERNEL)),6.1,$(KERNEL))' $$flags -timeout 14m $(PERFTESTS) -env GOVERBS_MEASURE=1 -out conformance/vm/results \
			-- ./conformance/vm/interop -run TestPerftestSpeed -v || exit 1; \
	done

.PHONY: vm-rsockets
vm-rsockets: vm-deps ## streams as rsockets beside rstream, riostream and rcopy, and curl, netcat and iperf3 under librspreload.so, on Soft-RoCE; 5 min
	@$(VM) -kernel '$(if $(filter all,$(KERNEL)),6.1,$(KERNEL))' -timeout 10m $(TCPROOT) $(NEWERROOT) -- ./conformance/vm/cm -run TestRSocket

# curl and netcat, and the libraries that curl needs.
TCPROOT = -env GOVERBS_TCPROOT=/tcp -root bookworm:netcat-traditional,curl,libcurl4,libnghttp2-14,libidn2-0,librtmp1,libssh2-1,libpsl5,libssl3,libgssapi-krb5-2,libldap-2.5-0,libzstd1,libbrotli1,libunistring2,libgnutls30,libhogweed6,libnettle8,libgmp10,libkrb5-3,libk5crypto3,libcom-err2,libkrb5support0,libsasl2-2,libp11-kit0,libtasn1-6,libkeyutils1,libffi8=/tcp

# iperf3, with a librspreload whose select works: 44.12, 62.1, 63 or later.
NEWERROOT = -env GOVERBS_NEWERROOT=/newer -root testing:iperf3,libiperf0,libsctp1,libssl3t64,libzstd1=/newer

PERFTESTS = -root bookworm:perftest=/bookworm -root trixie:perftest=/trixie -env GOVERBS_PERFTEST=/bookworm,/trixie -with ./cmd/goverbs

.PHONY: vm-race
vm-race: vm-deps ## tests of rdma's objects on real kernels with the race detector; 3 min a kernel
	@CGO_ENABLED=1 $(VM) -kernel '$(KERNEL)' -memory 2048 -timeout 15m -build=-race -- ./conformance/vm/objects

.PHONY: vm-measure
vm-measure: vm-deps ## measure again what Soft-RoCE answers, and write conformance/vm/results; 2 min a kernel
	@$(VM) -kernel '$(KERNEL)' -env GOVERBS_MEASURE=1 -out conformance/vm/results -- ./conformance/vm/rxe
	@$(VM) -kernel '$(KERNEL)' -out conformance/vm/results -- ./cmd/goverbs/internal/trace -run TestGuest
	@$(GO) test ./conformance/vm/results -update

.PHONY: measured
measured: ## promote conformance/vm/results to headers/measured, with the versions that vm-measure found; KERNEL=6.1 for one; 1 s
	@for k in $(if $(filter all,$(KERNEL)),$$(ls conformance/vm/results | sed -n 's/^post_send-\(.*\)\.csv$$/\1/p'),$(KERNEL)); do \
		$(GEN) measured --provider rxe --kernel "$$k" --source "$$(cat conformance/vm/results/source-"$$k".txt)" conformance/vm/results/{create_qp,post_send,wr_post}-"$$k".csv; \
	done
	@$(GEN) generate

.PHONY: stress
STRESS ?= 10m
stress: deps ## the storms of the call layer for STRESS, which is 10m unless given, and takes as long
	GOVERBS_EVERYTHING=1 STRESS=$(STRESS) $(GO) test -v -count=1 -timeout 120m ./conformance/stress

.PHONY: fuzz
FUZZTIME ?= 30s
fuzz: ## run every fuzz target for FUZZTIME, which is 30s unless given; FUZZTIME=1500x takes 2 min
	@for pkg in $$($(GO) list ./gen/... ./rdma/... ./rpma/...); do \
		dir=$$($(GO) list -f '{{.Dir}}' $$pkg); \
		for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9]+' $$dir/*_test.go 2>/dev/null | cut -c6-); do \
			out=$$($(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg 2>&1) || { echo "$$out"; exit 1; }; \
			echo "$$f $$(tail -n 1 <<<"$$out")"; \
		done; \
	done

.PHONY: programs
CHECKS ?= 2000
programs: ## random programs of verbs against the reference, CHECKS of each kind, other ones in every run; 2 min with the usual 2000
	$(GO) test ./rdma/soft/internal/device -run 'TestModel|Programs' -timeout 0 -rapid.seed=0 -rapid.checks=$(CHECKS)

.PHONY: generate
generate: ## make generated/ from the recorded models (offline); 2 s
	@$(GEN) generate

.PHONY: tables
FORMAT ?= text
tables: ## print the tables of what is valid; FORMAT=text, json or html, TABLE=NAME for one of them, OUT=FILE to write a file; 1 s
	@$(GEN) tables --format '$(FORMAT)' $(if $(TABLE),--table '$(TABLE)') $(if $(OUT),--out '$(OUT)')

.PHONY: docs
docs: ## write docs/verbs.md and docs/rpma.md, where each function of C is in Go, docs/conformance.md, what the pages of posting promise, and docs/suites.md, how suites of others end; 3 s
	@$(GO) test ./conformance/verbsdoc ./conformance/vm/promises ./conformance/suites -run TestPage -update

.PHONY: api
PACKAGES ?= ./rdma/... ./runtime/... ./rpma
api: ## print how the exported API has changed since BASE, a commit; PACKAGES=... for other packages
	@conformance/house/apidiff.sh '$(BASE)' $(PACKAGES)

.PHONY: headers
headers: ## bring the pinned headers into headers/cache; FROM=DIR takes them from an include directory or source tree; 1 s when they are there
	@$(GEN) headers $(if $(FROM),--from '$(FROM)')

.PHONY: record
record: headers ## read the headers again and write the models; 10 s
	@$(GEN) record
	@$(GO) test ./headers -update

.PHONY: bump
bump: ## make FROM (66.0-1@sid, a pinned release, an include directory, a source tree) the primary release and report what changes; DRY_RUN=1 only reports; 9 s
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; $(GO) build -o "$$dir/gen" ./gen/cmd/gen; \
	rc=0; "$$dir/gen" bump '$(FROM)' $(if $(DRY_RUN),--dry-run) $(BUMP_FLAGS) || rc=$$?; $(GO) test ./headers -update; exit $$rc

.PHONY: abi
abi: deps ## C witness for every release and target that can be had; 8 s
	@$(GEN) headers --available
	@$(WITNESS)

.PHONY: bench
bench: bench-post ## how long reading, generating, posting and polling take; 2 min, and bench-post
	@$(GO) run ./gen/cmd/bench

.PHONY: bench-post
bench-post: ## posting and polling from Go against C, cgo and purego; writes conformance/bench/results; 20 s
	@.ci/deps $(DEPS)
	@cd conformance/bench && CGO_ENABLED=1 $(GO) run .

# tests of conformance/vm/objects that are about Soft-RoCE, or that mlx5 cannot pass
NOTANADAPTERS = ^TestWhatTheDeviceLacks$$|^TestResizedSRQ$$|^TestRegistrationSpeed$$
ONADAPTER = GOVERBS_GUEST=6.1 GOVERBS_DEVICE='$(DEVICE)' GOVERBS_STORM='$(DEVICE)' GOVERBS_ADDRESS='$(ADDRESS)' GOVERBS_PATH='$(NATIVE)'
STORMING = $(ONADAPTER) GOVERBS_ROUNDS=400

.PHONY: adapter
adapter: ## on a machine that has an adapter: the tests of the objects and the storms on it, DEVICE=mlx5_0 ADDRESS=that of its interface; NATIVE=mlx5 for the data path in Go; 2 min
	@test -n '$(DEVICE)' && test -n '$(ADDRESS)' || { echo 'make adapter DEVICE=mlx5_0 ADDRESS=192.0.2.1: docs/adapter.md' >&2; exit 2; }
	@test -e '/sys/class/infiniband/$(DEVICE)' || { echo 'There is no adapter $(DEVICE) here, for /sys/class/infiniband has none: go run ./cmd/goverbs doctor, and docs/hardware.md. make adapter-rehearsal runs the same over an emulated one.' >&2; exit 2; }
	$(ONADAPTER) $(GO) test -v -count=1 ./conformance/vm/objects -skip '$(NOTANADAPTERS)'
	$(STORMING) $(GO) test -v -count=1 ./rdma -run '^TestStorm$$'

# what else conformance/provider leaves out, with the reasons: suite_linux_test.go
NOTEMULATED = ^TestGIDsOf(VLANs|Namespaces)$$|^TestMulticast$$|^TestNumbersAsTheKernelWritesThem$$|^TestManyQueuePairs$$|^TestCacheOf(ChangedMemory|GoMemory)$$

.PHONY: adapter-rehearsal
adapter-rehearsal: DEVICE = mlx5_0
adapter-rehearsal: ADDRESS = 192.0.2.1
adapter-rehearsal: ## what make adapter runs, over an emulated adapter of mlx5 with rdma-core's own libraries; NATIVE=mlx5 for the data path in Go; 1 min
	@.ci/deps $(DEPS)
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; export GOVERBS_EMULATED_COUNTS="$$dir/counts"; \
		$(GO) build -o "$$dir/emulate" ./conformance/provider/cmd/emulate && \
		$(ONADAPTER) $(GO) test -v -count=1 -exec "$$dir/emulate" ./conformance/vm/objects -skip '$(NOTANADAPTERS)|$(NOTEMULATED)' && \
		$(STORMING) $(GO) test -v -count=1 -exec "$$dir/emulate" ./rdma -run '^TestStorm$$'

.PHONY: providers
providers: ## libraries of adapters (mlx5, mlx4, erdma and efa of rdma-core 65.0, 56.1 and 44.0, on this machine and as arm64; posting of four more) over emulated devices: suites, streams, storms, 10⁷ lists of requests beside rdma/mlx5, pyverbs, ibverbs-utils and perftest; 35 min
	@.ci/deps $(DEPS) cross $(EMULATORS) perftest
	GOVERBS_VM=1 GOVERBS_PROVIDERS=1 $(GO) test -count=1 -timeout 90m ./conformance/provider

.PHONY: bench-mlx5
bench-mlx5: ## posting and polling by libmlx5, from C and Go, beside the data path in Go, over the emulated device; writes conformance/bench/results/mlx5.csv; 40 s
	@cd conformance/bench && CGO_ENABLED=1 $(GO) run ./mlx5

.PHONY: bench-beside
bench-beside: ## posting and polling of this tree beside those of another commit, in turn: BASE=COMMIT, CELLS=REGEXP; 6 rounds of bench-post in both trees
	@sh conformance/bench/beside.sh post $(BASE) $(CELLS)

.PHONY: bench-soft-beside
bench-soft-beside: ## every operation of examples/demo, streams and connections on software devices beside those of another commit, in turn: BASE=COMMIT; fails if one is more than 3 % slower; 1 min
	@sh conformance/bench/beside.sh soft $(BASE)

.PHONY: bench-streams
bench-streams: ## a stream on the software device, copying and lending, beside Go's TCP over loopback and a Unix socket, in turn: round trips, sleeps of threads, throughput; 15 s
	@cd conformance/bench && $(GO) run ./rivals

.PHONY: bench-wire
bench-wire: ## RDMA between two processes over UDP beside bare UDP sockets, in turn; fails below 0.7 of their throughput, or above 1.6 times their round trip, by the best rounds and the medians both; 30 s
	@dir=$$(mktemp -d) && trap 'rm -rf "$$dir"' EXIT && cd conformance/bench && $(GO) build -o "$$dir/" ./bare ./wire ./ratios && \
		for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do "$$dir/bare" -time 500ms >>"$$dir/bare.txt" && "$$dir/wire" -time 500ms >>"$$dir/wire.txt" || exit 1; done && \
		"$$dir/ratios" -most 30 -but '64 bytes and back=37.5' "$$dir/bare.txt" "$$dir/wire.txt"

.PHONY: bench-soft
bench-soft: ## operations a second between two software devices on one core, and on Soft-RoCE in an emulated guest beside; 45 s
	@$(MAKE) --no-print-directory vm-deps KERNEL=6.12
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; GOOS=linux GOARCH=amd64 $(GO) build -o "$$dir/demo" ./examples/demo; \
		$(VM) -kernel 6.12 -out "$$dir" -- "$$dir/demo" -- -device rxe0 -time 200ms -write /out/rxe-6.12-emulated.csv >"$$dir/log" || { cat "$$dir/log"; exit 1; }; \
		GOMAXPROCS=1 $(GO) run ./examples/demo -time 500ms -beside "$$dir/rxe-6.12-emulated.csv"

DROPIN ?= bin/dropin
.PHONY: dropin
dropin: ## build the drop-in libraries for programs of C, with goverbs-run, a tarball and a Debian package, into bin/dropin; 1 min
	@.ci/deps gcc libc6-dev
	@dropin/build $(DROPIN)
	@install dropin/goverbs-run $(DROPIN)
	@dropin/pack $(DROPIN) "$$(git describe --tags --match 'v*' 2>/dev/null || echo 0.0.0)"

.PHONY: bench-dropin
bench-dropin: dropin ## what a call of C through the drop-in libraries costs; 10 s
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; .ci/deps libibverbs-dev librdmacm-dev; \
		$${CC:-cc} -O1 -o "$$dir/host" conformance/dropin/testdata/host.c $(DROPIN)/libibverbs.so.1 \
		$(DROPIN)/librdmacm.so.1 -pthread && \
		$(DROPIN)/goverbs-run "$$dir/host" costs

.PHONY: deps
deps: ## install what is missing: C compilers for five targets, or eight with GOVERBS_EVERYTHING=1, the C library's headers, rdma-core's headers and libraries, tshark, Go modules; 1 s when all is there
	@.ci/deps $(DEPS) cross $(if $(GOVERBS_EVERYTHING),ports) $(EMULATORS) $(JUDGES)
	@.ci/modules . conformance/bench conformance/house/tools examples/grpc examples/valkey

.PHONY: suites
suites: ## test suites of others on the drop-in libraries: installs them, runs them and compares with what docs/suites.md says; SUITES=NAME,NAME for some, UPDATE=1 writes the results; 35 min, of which 8 build what is only there as source
	@$(GO) run ./conformance/suites/cmd/suites $(if $(SUITES),-suites '$(SUITES)') $(if $(UPDATE),-update)

.PHONY: suites-rxe
suites-rxe: vm-deps ## those of them that can run, on Soft-RoCE of a kernel in a guest: KERNEL=6.1 or 6.12, SUITES=NAME,NAME, UPDATE=1; 15 min a kernel
	@for k in $(if $(filter all,$(KERNEL)),6.1 6.12,$(KERNEL)); do \
		$(GO) run ./conformance/suites/cmd/suites -kernel $$k $(if $(SUITES),-suites '$(SUITES)') $(if $(UPDATE),-update) || exit 1; \
	done
