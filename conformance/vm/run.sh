#!/usr/bin/env bash
# Runs tests in guests, for make vm, bench, measure and suites. Usage: run.sh WHAT
# KERNEL is 6.1, 6.12, a comma-separated list, or all. VMFLAGS are flags for vmtest. GO is the go command.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:-all}
go=${GO:-go}
kernel=${KERNEL:-all}
export CGO_ENABLED=${CGO_ENABLED:-0}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

vm() { "$go" run ./conformance/vm/cmd/vmtest "$@"; }

# if_all prints KERNEL, or the kernels given in place of all for a test that does not run on every kernel.
if_all() { if [ "$kernel" = all ]; then echo "$1"; else echo "$kernel"; fi; }

# librpma is no longer developed. Only the Debian releases of these kernels have it.
rpma_kernels=$(if_all 6.1,6.12)

# The C peer, and a library that makes its allocations fail.
rpma_peer() {
	.ci/deps gcc libc6-dev librpma-dev
	gcc -O2 -Wall -Werror -shared -fPIC -o "$dir/faults.so" conformance/vm/rpma/peer/faults.c
	with_rpma=(-with ./conformance/vm/rpma/peer/rpmapeer.c -file "$dir/faults.so=/usr/lib/faults.so")
}

# rdma of iproute2 and those of its libraries that guests do not have.
rdma_tool() {
	.ci/deps iproute2
	with_rdma=(-file "$(command -v rdma)=/usr/bin/rdma")
	local library path
	while read -r library path; do
		with_rdma+=(-file "$path=/usr/lib/x86_64-linux-gnu/$library")
	done < <(ldd "$(command -v rdma)" | awk '/=> \// && !/libc\.so/ {print $1, $3}')
}

perftests=(-root bookworm:perftest=/bookworm -root trixie:perftest=/trixie
	-env GOVERBS_PERFTEST=/bookworm,/trixie -with ./cmd/goverbs)

.ci/deps qemu-system-x86
vm -fetch -kernel "$kernel"

case $what in
fetch) ;;
all) # about 6 min a kernel, 20 s if only the software device has changed
	# shellcheck disable=SC2086
	set -- ${VMFLAGS:-}
	vm "$@" -kernel "$kernel" -with ./examples/... -with ./conformance/vm/cm/peer/cmpeer.c -- \
		./conformance/vm/{rxe,ioctls,promises,objects,interop,roce,cm,s3} ./rdma/native
	rpma_peer
	vm "$@" -kernel "$rpma_kernels" "${with_rpma[@]}" -- ./conformance/vm/rpma
	rdma_tool
	# doctor must be last: it removes modules and devices
	vm "$@" -kernel "$kernel" -with ./cmd/goverbs "${with_rdma[@]}" -- \
		./conformance/dropin ./cmd/goverbs/internal/{resources,top,exporter,trace,doctor} \
		-run 'TestQuery|TestPing$|TestWithoutLibraries|TestGuest|TestQuiet'
	vm "$@" -kernel "$kernel" -pair -cpus 1 -- ./conformance/vm/pair ./conformance/vm/cm -run '^TestMove$|TwoHosts'
	;;
native) # without rdma-core, compared with the results of libibverbs; connections; perftest; 14 min, 25 on a busy machine
	vm -kernel "$kernel" -build=-tags=goverbs_static -with ./conformance/static/confined -- ./conformance/static \
		-test.run TestConfined
	vm -kernel "$kernel" -timeout 20m -env GOVERBS_NATIVE=1 -- ./conformance/vm/{rxe,s3} ./rdma/native
	vm -kernel "$kernel" -timeout 20m -env GOVERBS_NATIVE=1 -with ./conformance/vm/cm/peer/cmpeer.c -- ./conformance/vm/cm
	vm -kernel "$(if_all 6.1)" -timeout 40m "${perftests[@]}" -env GOVERBS_NATIVE=1 -- ./conformance/vm/interop \
		-run 'TestPerftest$'
	;;
siw) # Soft-iWARP, built from Debian's kernel source; libsiw, and without rdma-core; 5 min a kernel, 15 on a busy machine
	tests='Test(Source|CreateQP|PostSend|WRPost|.*OnIWARP)$'
	if [ -n "${GOVERBS_MEASURE:-}" ]; then # record the answers of libsiw
		vm -kernel "$kernel" -driver siw -timeout 15m -env GOVERBS_MEASURE=1 -out conformance/vm/results \
			-- ./conformance/vm/rxe -run "$tests"
		"$go" test ./conformance/vm/results -update
	fi
	vm -kernel "$kernel" -driver siw -timeout 15m -- ./conformance/vm/rxe ./rdma/native -run "$tests|TestGuest"
	vm -kernel "$kernel" -driver siw -timeout 15m -env GOVERBS_NATIVE=1 -- ./conformance/vm/rxe -run "$tests"
	vm -kernel "$kernel" -driver siw -- ./conformance/vm/ioctls
	vm -kernel "$kernel" -driver siw -- ./conformance/vm/cm -run 'OnIWARP$'
	vm -kernel "$kernel" -driver siw -env GOVERBS_NATIVE=1 -- ./conformance/vm/cm -run 'OnIWARP$'
	;;
s3) # S3 over RDMA, through libibverbs and without it; 3 min a kernel
	vm -kernel "$kernel" -timeout 10m -- ./conformance/vm/s3
	vm -kernel "$kernel" -timeout 10m -env GOVERBS_NATIVE=1 -- ./conformance/vm/s3
	;;
race) # objects with the race detector; 3 min a kernel
	CGO_ENABLED=1 vm -kernel "$kernel" -memory 2048 -timeout 15m -build=-race -- ./conformance/vm/objects
	;;
unreachable) # an unreachable peer, against librpma; the timeout of 70 s passes quickly on a counted clock
	rpma_peer
	vm -kernel "$rpma_kernels" -counted -cpus 1 -env GOVERBS_UNREACHABLE=1 "${with_rpma[@]}" -- \
		./conformance/vm/rpma -run TestUnreachable
	;;
dax) # persistent memory on an NVDIMM of QEMU
	.ci/deps e2fsprogs
	truncate -s 128M "$dir/nvdimm"
	/sbin/mke2fs -q -t ext4 -b 4096 "$dir/nvdimm" 64M
	vm -kernel "$(if_all 6.12)" -nvdimm "$dir/nvdimm" -- ./conformance/vm/rpma -run TestPersistentMemory
	;;
grpc) # the gRPC example, a separate module
	(cd examples/grpc && "$go" test -c -trimpath -o "$dir/grpc.test" .)
	vm -kernel "$kernel" -- "$dir/grpc.test" -test.v
	;;
doctor) # faults on a host and between two hosts; writes results/doctor-*; 9 min a kernel
	needs=libnftables1,libnftnl11,libmnl0,libxtables12,libjansson4,libgmp10,libedit2,libtinfo6,libbsd0,libmd0
	nft=(-env GOVERBS_NFT=/nft -root "bookworm:nftables,$needs,libreadline8=/nft")
	vm -again=false -kernel "$(if_all 6.1,6.12)" -timeout 14m "${nft[@]}" -with ./cmd/goverbs \
		-out conformance/vm/results -- ./conformance/vm/interop ./cmd/goverbs/internal/doctor \
		-run 'TestDoctor$|TestGuest$|TestInterrupt$|TestCopy$' -v
	vm -again=false -kernel "$(if_all 6.1,6.12)" -timeout 14m -pair -cpus 1 "${nft[@]}" -with ./cmd/goverbs \
		-out conformance/vm/results -- ./conformance/vm/interop -run 'TestDoctorGuests$' -v
	;;
perftest) # goverbs perf with perftest of Debian 12 and 13 as peer, in both roles; 5 min
	vm -kernel "$(if_all 6.1)" -timeout 40m "${perftests[@]}" -- ./conformance/vm/interop -run 'TestPerftest$'
	;;
rsockets) # rsockets streams against rstream, riostream, rcopy, and curl, netcat and iperf3 preloaded; 5 min
	needs=libcurl4,libnghttp2-14,libidn2-0,librtmp1,libssh2-1,libpsl5,libssl3,libgssapi-krb5-2,libldap-2.5-0,libzstd1
	needs+=,libbrotli1,libunistring2,libgnutls30,libhogweed6,libnettle8,libgmp10,libkrb5-3,libk5crypto3,libcom-err2
	needs+=,libkrb5support0,libsasl2-2,libp11-kit0,libtasn1-6,libkeyutils1,libffi8
	# select of librspreload works in 44.12, 62.1, 63 and later: iperf3 needs it
	vm -kernel "$(if_all 6.1)" -timeout 10m \
		-env GOVERBS_TCPROOT=/tcp -root "bookworm:netcat-traditional,curl,$needs=/tcp" \
		-env GOVERBS_NEWERROOT=/newer -root testing:iperf3,libiperf0,libsctp1,libssl3t64,libzstd1=/newer \
		-- ./conformance/vm/cm -run TestRSocket
	;;
measure) # answers of Soft-RoCE, written to results; 2 min a kernel
	vm -kernel "$kernel" -env GOVERBS_MEASURE=1 -out conformance/vm/results -- ./conformance/vm/rxe
	vm -kernel "$kernel" -out conformance/vm/results -- ./cmd/goverbs/internal/trace -run TestGuest
	"$go" test ./conformance/vm/results -update
	;;
bench) # latencies and rates, written to results; 14 min
	.ci/deps gcc libc6-dev libibverbs-dev librdmacm-dev librpma-dev
	out=(-out conformance/vm/results)
	one=$(if_all 6.1)
	vm -kernel "$one" -cpus 2 -timeout 20m -env GOVERBS_MEASURE=1 "${out[@]}" -with ./examples/rc-pingpong \
		-with conformance/vm/interop/c/rc-latency.c -- ./conformance/vm/interop -run TestLatency -v
	# cmtime of Debian 12, which later releases changed, and a library that gives each of its queue pairs its own CQs
	gcc -O2 -Wall -Werror -shared -fPIC -o "$dir/ownqueues.so" conformance/vm/cm/peer/ownqueues.c
	vm -kernel "$one" -cpus 2 -timeout 12m -env GOVERBS_SPEED=1 "${out[@]}" -root bookworm:rdmacm-utils=/bookworm \
		-env GOVERBS_CMTIME=/bookworm -file "$dir/ownqueues.so=/usr/lib/ownqueues.so" \
		-- ./conformance/vm/cm -run '^Test(Speed|Counts|Connections)$' -v
	vm -kernel "$one" -cpus 2 -env GOVERBS_SPEED=1 "${out[@]}" -- ./conformance/vm/objects -run TestRegistrationSpeed -v
	vm -kernel "$one" -cpus 1 -counted -env GOVERBS_SPEED=1 -- ./rdma/native -run TestGuestCosts -v
	vm -kernel "$kernel" -cpus 2 -env GOVERBS_SPEED=1 "${out[@]}" -- ./conformance/vm/roce -run TestSpeed -v
	vm -kernel "$rpma_kernels" -cpus 1 -counted -env GOVERBS_SPEED=1 "${out[@]}" \
		-with ./conformance/vm/rpma/peer/rpmapeer.c -- ./conformance/vm/rpma -run TestSpeed -v
	;;
bench-perftest) # goverbs perf against perftest, in one boot; writes results/perftest-*; 7 min
	for flags in '-cpus 1 -counted' '-cpus 2'; do
		# shellcheck disable=SC2086
		vm -kernel "$(if_all 6.1)" $flags -timeout 14m "${perftests[@]}" -env GOVERBS_MEASURE=1 \
			-out conformance/vm/results -- ./conformance/vm/interop -run TestPerftestSpeed -v
	done
	;;
bench-soft) # operations between two software devices on one core, against Soft-RoCE in an emulated guest; 45 s
	GOOS=linux GOARCH=amd64 "$go" build -o "$dir/demo" ./examples/demo
	vm -kernel "$(if_all 6.12)" -out "$dir" -- "$dir/demo" -- -device rxe0 -time 200ms \
		-write /out/rxe-6.12-emulated.csv >"$dir/log" || { cat "$dir/log"; exit 1; }
	GOMAXPROCS=1 "$go" run ./examples/demo -time 500ms -baseline "$dir/rxe-6.12-emulated.csv"
	;;
valkey) # Valkey over RDMA, without its suite and the race detector; 4 min
	conformance/suites/build/all-valkey
	cache=$PWD/conformance/suites/cache
	files=(-file "$(ldd "$cache/valkey-8.1.1/valkey-server" | awk '/libm\.so/ {print $3}')=/usr/lib/x86_64-linux-gnu/libm.so.6")
	for f in "$cache"/valkey-8.1.1/{valkey-server,rdma-test} "$cache"/valkey-tools-9.1.2/valkey-{cli,benchmark}; do
		[ ! -e "$f" ] || files+=(-file "$f=/valkey/${f##*/}")
	done
	(cd examples/valkey && "$go" test -c -trimpath -o "$dir/valkey.test" .)
	vm -kernel "$(if_all 6.1)" -memory 2048 -cpus 2 -timeout 10m "${files[@]}" \
		-env GOVERBS_VALKEY=/valkey -env GOVERBS_VALKEY_TOOLS=/valkey -- "$dir/valkey.test" -test.v
	;;
*)
	echo "goverbs: no tests $what; WHAT is all, native, s3, siw, race, unreachable, dax, grpc, doctor, perftest, rsockets, valkey or fetch" >&2
	exit 2
	;;
esac
