#!/usr/bin/env bash
# Runs the kernel test suites on the software device. Usage: soft.sh [WIRE]
#   none      passes messages in memory; writes result tables to $OUT (default .soft)
#   encoded   encodes and decodes every message; also runs the device's own tests
#   packets   turns messages into RoCE packets
#   lossy     loses, duplicates, reorders, corrupts and delays packets, with a virtual clock
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go}
suites=(./conformance/vm/{rxe,promises,objects,cm,rpma})
if [ -n "${GOVERBS_EVERYTHING:-}" ]; then
	once=() losses='lossy:1:10 lossy:2:10 lossy:3:5 lossy:4:1'
	export RAPID_CHECKS=20 GOVERBS_PACKETS=100000
else # skip tests that do not depend on the wire
	once=(-skip '^TestCapture(Of|InMemory)|^TestSoftEphemeralPorts$') losses='lossy:1:10 lossy:4:1' # seed and percent
	export RAPID_CHECKS=5 GOVERBS_PACKETS=20000
fi
test=("$go" test -vet=off -timeout 30m)
case ${1:-} in
'')
	out=$(realpath -m "${OUT:-.soft}")
	mkdir -p "$out"
	GOVERBS_OUT=$out "$go" test -count=1 "${suites[@]}"
	;;
encoded)
	GOVERBS_SOFT_WIRE=encoded "${test[@]}" "${once[@]}" "${suites[@]}" \
		./rdma/soft ./rdma/soft/internal/{device,cm} ./rdma/cm ./rdma/stream
	;;
packets)
	GOVERBS_SOFT_WIRE=packets "${test[@]}" "${suites[@]}"
	;;
lossy)
	unset RAPID_CHECKS GOVERBS_PACKETS
	for loss in $losses; do
		echo "$loss"
		.ci/lossy "$loss" ./conformance/vm/{rxe,promises,objects}
	done
	.ci/lossy "${losses%% *}" ./conformance/vm/{cm,rpma} ./rpma ./rdma/cm ./rdma/stream
	;;
*)
	echo "goverbs: unknown wire: $1; use encoded, packets or lossy" >&2
	exit 2
	;;
esac
