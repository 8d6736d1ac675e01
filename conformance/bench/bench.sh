#!/usr/bin/env bash
# Measures speed: make bench WHAT=NAME. With BASE=COMMIT, post and soft are compared with that commit, in interleaved
# rounds.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
case ${1:-post}${BASE:+-compare} in
post) # posting and polling from Go, C, cgo and purego; writes results/post.*; 20 s
	.ci/deps gcc libc6-dev libibverbs-dev librdmacm-dev
	cd conformance/bench
	CGO_ENABLED=1 "$go" run .
	;;
post-compare) # CELLS=REGEXP selects some
	sh conformance/bench/compare.sh post "$BASE" "${CELLS:-}"
	;;
soft) # operations on software devices against Soft-RoCE in an emulated guest; 45 s
	conformance/vm/run.sh bench-soft
	;;
soft-compare) # operations, streams and connections on software devices; fails if one is over 3 % slower; 1 min
	sh conformance/bench/compare.sh soft "$BASE"
	;;
mlx5) # libmlx5 from C and Go, and the data path in Go, over the emulated device; writes results/mlx5.csv; 40 s
	cd conformance/bench
	CGO_ENABLED=1 "$go" run ./mlx5
	;;
streams) # streams on the software device, loopback TCP and Unix sockets; 15 s
	cd conformance/bench
	"$go" run ./rivals
	;;
wire) # RDMA between two processes over UDP, and plain UDP sockets; fails below 0.7 of their throughput; 30 s
	cd conformance/bench
	"$go" build -o "$dir/" ./bare ./wire ./ratios
	for _ in 1 2 3 4 5 6 7 8 9 10 11 12; do
		"$dir/bare" -time 500ms >>"$dir/bare.txt"
		"$dir/wire" -time 500ms >>"$dir/wire.txt"
	done
	"$dir/ratios" -most 30 -but '64 bytes and back=37.5' "$dir/bare.txt" "$dir/wire.txt"
	;;
s3) # S3 objects by RDMA and by HTTP, in one process and between two; PROTOCOL=hipobj-rc-v2, direct or dynamic; 2 min
	cd s3rdma/sdktest
	"$go" build -o "$dir/s3" ./bench
	"$dir/s3" -protocol "${PROTOCOL:-direct}"
	;;
dropin) # calls of C through the drop-in libraries; 10 s
	.ci/deps gcc libc6-dev libibverbs-dev librdmacm-dev
	dropin/build "$dir"
	install dropin/goverbs-run "$dir"
	"${CC:-cc}" -O1 -o "$dir/host" conformance/dropin/testdata/host.c "$dir/libibverbs.so.1" "$dir/librdmacm.so.1" -pthread
	"$dir/goverbs-run" "$dir/host" costs
	;;
gen) # reading headers and generating; 2 min
	"$go" run ./gen/cmd/bench
	;;
vm) # on Soft-RoCE: latency, streams, connections, registration, the wire, rpma; writes conformance/vm/results; 14 min
	conformance/vm/run.sh bench
	;;
perftest) # goverbs perf and perftest on Soft-RoCE; 7 min
	conformance/vm/run.sh bench-perftest
	;;
*)
	echo "goverbs: no benchmark ${1:-post}${BASE:+ with BASE}; WHAT is post, soft, mlx5, streams, wire, s3, dropin, gen, vm or" \
		"perftest, and BASE is for post and soft" >&2
	exit 2
	;;
esac
