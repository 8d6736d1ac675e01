#!/usr/bin/env bash
# Runs the suites of kernels on the software device. Usage: soft.sh [WIRE]
#   none      as they are; OUT=DIR is where the tables of answers go, .soft unless given
#   encoded   over a wire that makes bytes of every message and reads them again, with the device's own tests
#   packets   over a wire that makes RoCE packets of them
#   lossy     over packets of which some are lost, repeated, overtaken, damaged and late, with a virtual clock
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go}
suites=(./conformance/vm/{rxe,promises,objects,cm,rpma})
if [ -n "${GOVERBS_EVERYTHING:-}" ]; then
	once=() losses='lossy:1:10 lossy:2:10 lossy:3:5 lossy:4:1'
	export RAPID_CHECKS=20 GOVERBS_PACKETS=100000
else # tests that are the same on every wire are left out
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
	echo "goverbs: no wire $1; WIRE is encoded, packets or lossy" >&2
	exit 2
	;;
esac
