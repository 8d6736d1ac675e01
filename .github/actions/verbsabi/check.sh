#!/usr/bin/env bash
# Runs verbsabi for the action: annotations on standard output, SARIF and JUnit files, and the job's summary. The inputs
# of action.yml are in variables of the same names.
set -euo pipefail
package=github.com/goverbs/goverbs/conformance/abi/cmd/verbsabi
if [ -z "${VERSION:-}" ] && go tool -n verbsabi >/dev/null 2>&1; then
	verbsabi=(go tool verbsabi)
else
	bin=$(mktemp -d)
	GOBIN=$bin go install "$package@${VERSION:-latest}"
	verbsabi=("$bin/verbsabi")
fi
args=(-format github)
flag() { # -name value
	if [ -n "$2" ]; then args+=("$1" "$2"); fi
}
flag -only "${ONLY:-}"
flag -dwarf "${DWARF:-}"
flag -btf "${BTF:-}"
flag -pkg "${PACKAGES:-}"
flag -require "${REQUIRE:-}"
flag -I "${INCLUDE:-}"
flag -L "${LIBRARIES:-}"
flag -policy "${POLICY:-}"
flag -baseline "${BASELINE:-}"
summary=$(mktemp)
write=markdown=$summary
[ -z "${SARIF:-}" ] || write+=,sarif=$SARIF
[ -z "${JUNIT:-}" ] || write+=,junit=$JUNIT
code=0
"${verbsabi[@]}" "${args[@]}" -write "$write" || code=$?
cat "$summary" >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
echo "exit-code=$code" >>"${GITHUB_OUTPUT:-/dev/null}"
exit "$code"
