// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestOutOfRange checks that a value out of range is a usage error with the flag, the value and the range.
func TestOutOfRange(t *testing.T) {
	t.Setenv("GOVERBS_DEVICE", "soft0")
	for line, want := range map[string]string{
		"ping -n 0 127.0.0.1":                          "--count 0: less than 1; see goverbs ping --help",
		"ping -s 0 127.0.0.1":                          "--size 0: not in 1 to 1048576; see goverbs ping --help",
		"ping -s 1048577 127.0.0.1":                    "--size 1048577: not in 1 to 1048576; see goverbs ping --help",
		"ping -t 0s 127.0.0.1":                         "--timeout 0s: less than 1ms; see goverbs ping --help",
		"ping -p 65536 127.0.0.1":                      "--port 65536: not in 1 to 65535; see goverbs ping --help",
		"ping -x 256 127.0.0.1":                        "--gid-index 256: not in -1 to 255; see goverbs ping --help",
		"serve -p 0":                                   "--port 0: not in 1 to 65535; see goverbs serve --help",
		"serve --cm-port=-1":                           "--cm-port -1: not in 0 to 65535; see goverbs serve --help",
		"doctor --interval=-1s":                        "--interval -1s: less than 0s; see goverbs doctor --help",
		"doctor --cm-port 0 127.0.0.1":                 "--cm-port 0: not in 1 to 65535; see goverbs doctor --help",
		"perf send -n 0":                               "--iters 0: not in 1 to 1073741824; see goverbs perf --help",
		"perf send -q 0":                               "--qp 0: not in 1 to 16384; see goverbs perf --help",
		"perf send -t 0":                               "--tx-depth 0: not in 1 to 32768; see goverbs perf --help",
		"perf send -r 32769":                           "--rx-depth 32769: not in 1 to 32768; see goverbs perf --help",
		"perf send -l 129":                             "--post_list 129: not in 1 to 128; see goverbs perf --help",
		"perf send -u 32":                              "--qp-timeout 32: not in 0 to 31; see goverbs perf --help",
		"perf send --duration=-1":                      "--duration -1: not in 0 to 2147483647; see goverbs perf --help",
		"perf send -Q 0":                               "--cq-mod 0: not in 1 to 2147483647; see goverbs perf --help",
		"perf send --inline_size=-2":                   "--inline_size -2: not in -1 to 2147483647; see goverbs perf --help",
		"perf send -p 65536":                           "--port 65536: not in 1 to 65535; see goverbs perf --help",
		"perf send -s 0":                               "invalid message size \"0\"",
		"top -i 1ms":                                   "--interval 1ms: less than 10ms; see goverbs top --help",
		"top --count=-1":                               "--count -1: less than 0; see goverbs top --help",
		"exporter --processes=-1":                      "--processes -1: less than 0; see goverbs exporter --help",
		"echo --listen 127.0.0.1 --clients 0":          "--clients 0: less than 1; see goverbs echo --help",
		"s3 --backend http://127.0.0.1:1 --sessions 0": "--sessions 0: less than 1; see goverbs s3 --help",
		"s3 --backend http://127.0.0.1:1 --idle=-1":    "--idle -1: less than 0; see goverbs s3 --help",
		"s3 --backend http://127.0.0.1:1 --grace=-1s":  "--grace -1s: less than 0s; see goverbs s3 --help",
	} {
		code, _, problems := goverbs(strings.Fields(line)...)
		assert.Equal(t, exitUsage, code, line)
		assert.Contains(t, problems, want, line)
	}
}
