#!/bin/sh
# Prints changes of the exported API of packages since a commit, using golang.org/x/exp/cmd/apidiff.
# Usage: apidiff.sh COMMIT PACKAGE...
set -eu
cd "$(dirname "$0")/../.."
base=${1:?usage: apidiff.sh COMMIT PACKAGE...}
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/tree"
git archive "$base" | tar -x -C "$dir/tree"
(cd conformance/house/tools && go build -o "$dir/" golang.org/x/exp/cmd/apidiff)
for package in $(go list -f '{{if ne .Name "main"}}{{.ImportPath}}{{end}}' "$@" | grep -v /internal/); do
	echo "$package"
	if (cd "$dir/tree" && "$dir/apidiff" -w "$dir/before" "$package") 2>/dev/null; then
		"$dir/apidiff" "$dir/before" "$package"
	else
		echo "  new package"
	fi
done
