#!/usr/bin/env bash
# Runs the object tests and storms on an adapter. DEVICE is its name, ADDRESS the address of its interface, and
# NATIVE=mlx5 selects the data path in Go. DEVICE=emulated uses an emulated mlx5 with rdma-core's libraries.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go}
device=${DEVICE:-}
address=${ADDRESS:-}
# tests of Soft-RoCE only, or that mlx5 cannot pass
skip='^TestUnsupportedObjects$|^TestResizedSRQ$|^TestRegistrationSpeed$'
exec=()
if [ "$device" = emulated ]; then
	device=mlx5_0 address=192.0.2.1
	# tests that conformance/provider skips too; suite_linux_test.go has the reasons
	skip+='|^TestGIDsOf(VLANs|Namespaces)$|^TestMulticast$|^TestGIDsAndGUIDsAsInSysfs$|^TestManyQueuePairs$'
	skip+='|^TestCacheOf(ChangedMemory|GoMemory)$'
	.ci/deps gcc libc6-dev libibverbs-dev librdmacm-dev
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	export GOVERBS_EMULATED_COUNTS="$dir/counts"
	"$go" build -o "$dir/emulate" ./conformance/provider/cmd/emulate
	exec=(-exec "$dir/emulate")
elif [ -z "$device" ] || [ -z "$address" ]; then
	echo 'usage: make adapter DEVICE=mlx5_0 ADDRESS=192.0.2.1, or DEVICE=emulated; see docs/adapter.md' >&2
	exit 2
elif [ ! -e "/sys/class/infiniband/$device" ]; then
	echo "goverbs: no adapter $device: /sys/class/infiniband has none; run go run ./cmd/goverbs doctor, see docs/hardware.md," \
		'or rehearse with make adapter DEVICE=emulated' >&2
	exit 2
fi
export GOVERBS_GUEST=6.1 GOVERBS_DEVICE=$device GOVERBS_STORM=$device GOVERBS_ADDRESS=$address GOVERBS_PATH=${NATIVE:-}
"$go" test -v -count=1 "${exec[@]}" ./conformance/vm/objects -skip "$skip"
GOVERBS_ROUNDS=400 "$go" test -v -count=1 "${exec[@]}" ./rdma -run '^TestStorm$'
