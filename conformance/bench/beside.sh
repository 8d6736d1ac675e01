#!/bin/sh
# Measures this tree's posting and polling beside those of another commit: this bench over either, in turn, and what
# benchstat says of it.
# usage: beside.sh COMMIT [REGEXP of cells] [rounds]
set -eu
cd "$(dirname "$0")"
base=$1 cells=${2:-'goroutines=1|objects'} rounds=${3:-6}
out=$(mktemp -d)
trap 'git worktree remove --force "$out/tree" 2>/dev/null || true; rm -rf "$out"' EXIT
git worktree add --quiet --detach "$out/tree" "$base"
cp ./*.go ./*.c ./*.h "$out/tree/conformance/bench"
(cd "$out/tree/conformance/bench" && CGO_ENABLED=1 go build -o "$out/before" .)
CGO_ENABLED=1 go build -o "$out/after" .
for _ in $(seq "$rounds"); do
	"$out/before" -cells "$cells" >>"$out/before.txt"
	"$out/after" -cells "$cells" >>"$out/after.txt"
done
go run golang.org/x/perf/cmd/benchstat@latest before="$out/before.txt" after="$out/after.txt"
