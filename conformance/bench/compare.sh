#!/bin/sh
# Compares the speed of this tree with that of another commit in interleaved rounds.
# usage: compare.sh post COMMIT [REGEXP of cells] [rounds]    posting and polling, evaluated by benchstat
#        compare.sh soft COMMIT [rounds]    software devices: every operation of examples/demo, streams and connections;
#                                          fails if one is more than 3 % slower
set -eu
cd "$(dirname "$0")/../.."
what=$1 base=$2
out=$(mktemp -d)
trap 'git worktree remove --force "$out/tree" 2>/dev/null || true; rm -rf "$out"' EXIT
git worktree add --quiet --detach "$out/tree" "$base"

# both builds a program in both trees: both NAME DIRECTORY COMMAND...
both() {
	name=$1 dir=$2
	shift 2
	(cd "$out/tree/$dir" && "$@" -o "$out/$name-before" .)
	(cd "$dir" && "$@" -o "$out/$name-after" .)
}

# turns calls a function for both trees alternately and stores its output: turns ROUNDS FUNCTION
turns() {
	for _ in $(seq "$1"); do
		for side in before after; do
			"$2" "$side" >>"$out/$side.txt"
		done
	done
}

case $what in
post)
	cells=${3:-'goroutines=1|objects'}
	cp conformance/bench/*.go conformance/bench/*.c conformance/bench/*.h "$out/tree/conformance/bench"
	export CGO_ENABLED=1
	both post conformance/bench go build
	post() { "$out/post-$1" -cells "$cells"; }
	turns "${4:-6}" post
	go run golang.org/x/perf/cmd/benchstat@latest before="$out/before.txt" after="$out/after.txt"
	;;
soft)
	cp -R conformance/bench/streams "$out/tree/conformance/bench"
	both demo examples/demo go build
	both streams conformance/bench/streams go test -c
	(cd conformance/bench && go build -o "$out/ratios" ./ratios)
	export GOMAXPROCS=1
	soft() {
		rm -f "$out/round.csv"
		"$out/demo-$1" -time 60ms -write "$out/round.csv" >&2
		cat "$out/round.csv"
		"$out/streams-$1" -test.run '^$' -test.bench . -test.benchtime 40ms
	}
	turns "${3:-10}" soft 2>"$out/demos.txt" || { cat "$out/demos.txt"; exit 1; }
	"$out/ratios" "$out/before.txt" "$out/after.txt"
	;;
*)
	sed -n '2,6s/^# //p' "$0"
	exit 2
	;;
esac
