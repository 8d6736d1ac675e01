#!/usr/bin/env bash
# Runs third-party test suites on the drop-in libraries, or with KERNEL on Soft-RoCE, and compares the results with
# conformance/suites/results. SUITES=NAME,NAME selects suites, UPDATE=1 writes results. SUITES=valkey is Valkey over
# RDMA, with valkey-go, valkey-server and its own tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
go=${GO:-go}
if [ "${SUITES:-}" = valkey ] && [ -n "${KERNEL:-}" ]; then
	exec conformance/vm/run.sh valkey
elif [ "${SUITES:-}" = valkey ]; then # 3 min, of which 2 build; 5 min more for its suite with GOVERBS_EVERYTHING=1
	conformance/suites/build/all-valkey
	cache=$PWD/conformance/suites/cache
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	dropin/build "$dir"
	cd examples/valkey
	GOVERBS_VALKEY=$cache/valkey-8.1.1 GOVERBS_VALKEY_TOOLS=$(ls -d "$cache/valkey-tools-9.1.2" 2>/dev/null || true) \
		GOVERBS_LIBRARIES=$dir GOVERBS_DEVICE=soft@127.44.0.1 CGO_ENABLED=1 \
		"$go" test -vet=off -timeout 30m -race -count=1 -v ./...
	exit
fi
arguments=(${SUITES:+-suites "$SUITES"} ${UPDATE:+-update})
case ${KERNEL:-} in
'') # 35 min, of which 8 build suites that exist only as source
	"$go" run ./conformance/suites/cmd/suites "${arguments[@]}"
	;;
*) # 15 min a kernel
	kernels=$KERNEL
	[ "$kernels" != all ] || kernels=6.1,6.12
	conformance/vm/run.sh fetch
	for kernel in ${kernels//,/ }; do
		"$go" run ./conformance/suites/cmd/suites -kernel "$kernel" "${arguments[@]}"
	done
	;;
esac
