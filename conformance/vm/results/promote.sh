#!/usr/bin/env bash
# Copies the results of make measure to headers/measured, with kernel and library versions, and runs the generator.
# KERNEL selects one kernel or a comma-separated list.
set -euo pipefail
cd "$(dirname "$0")/../../.."
go=${GO:-go}
kernels=${KERNEL:-all}
if [ "$kernels" = all ]; then
	kernels=$(ls conformance/vm/results | sed -n 's/^post_send-\(.*\)\.csv$/\1/p')
fi
for kernel in ${kernels//,/ }; do
	"$go" run ./gen/cmd/gen measured --provider rxe --kernel "$kernel" \
		--source "$(cat conformance/vm/results/source-"$kernel".txt)" \
		conformance/vm/results/{create_qp,post_send,wr_post}-"$kernel".csv
done
"$go" run ./gen/cmd/gen generate
