// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// console returns the console output of a kernel. All files but "stuck" were recorded in guests and cut at 110 columns.
func console(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "console", name+".txt"))
	require.NoError(t, err)
	return string(text)
}

func TestClassify(t *testing.T) {
	quiet := "[    2.243333] rdma0 speed is unknown, defaulting to 1000\r\n"
	passed := []Result{{Program: "a"}, {Program: "b"}}
	for name, c := range map[string]struct {
		saw     observed
		kind    Kind
		status  int // exit status of vmtest
		program string
		detail  string // beginning of the detail
	}{
		"all passed": {observed{console: quiet, ready: true, done: true, results: passed}, Passed, 0, "", ""},
		"one failed": {observed{console: quiet, ready: true, done: true,
			results: []Result{{Program: "a"}, {Program: "b", Status: 3}, {Program: "c", Status: 4}}}, Exited, 3, "b",
			""},
		"could not start": {observed{console: quiet, ready: true, done: true,
			results: []Result{{Program: "a", Status: 127, Text: "fork/exec a: no such file"}}}, Exited, 127, "a",
			"fork/exec a: no such file"},
		"killed": {observed{console: quiet, ready: true, done: true,
			results: []Result{{Program: "a", Status: 137, Signal: "killed"}}}, Exited, 137, "a", ""},
		"oops of 6.1": {observed{console: console(t, "oops-6.1"), ready: true, running: "a"}, Oops, StatusKernel, "a",
			"[    3.024683] BUG: kernel NULL pointer dereference, address: 0000000000000138\n"},
		"oops of 6.12": {observed{console: console(t, "oops-6.12"), ready: true, running: "a"}, Oops, StatusKernel, "a",
			"[    3.839936] BUG: kernel NULL pointer dereference"},
		"panic": {observed{console: console(t, "panic-6.12"), ready: true, running: "a",
			results: []Result{{Program: "before"}}}, Panic, StatusKernel, "a", ""},
		"panic, timed out": {observed{console: console(t, "panic-6.12"), ready: true, running: "a", timedOut: true},
			Panic, StatusKernel, "a", ""},
		"out of memory": {observed{console: console(t, "oom-6.12"), ready: true, done: true,
			results: []Result{{Program: "a", Status: 137, Signal: "killed"}}}, OutOfMemory, StatusOutOfMemory, "a", ""},
		"initramfs too large": {observed{console: "[    1.0] Initramfs unpacking failed: write error\n[    1.1] " +
			"Kernel panic - not syncing: No working init found.\n"}, OutOfMemory, StatusOutOfMemory, "",
			"[    1.0] Initramfs"},
		"program hangs": {observed{console: quiet, ready: true, done: true,
			results: []Result{{Program: "a", Status: 2, TimedOut: true, Last: "x\nlast", Where: "SIGQUIT: quit"}}},
			Hang, StatusHang, "a",
			"the program did not end in time; last output:\nx\nlast\noutput after SIGQUIT:\n" +
				"SIGQUIT: quit"},
		"hangs, exit 0": {observed{console: quiet, ready: true, done: true,
			results: []Result{{Program: "a", TimedOut: true}}}, Hang,
			StatusHang, "a", "the program did not end in time"},
		"stuck in the kernel": {observed{console: console(t, "stuck"), ready: true, running: "a",
			failed: "a did not exit within 1s, nor when it was killed: it is stuck in the kernel"}, Hang, StatusHang,
			"a", "a did not exit within 1s"},
		"guest hangs": {observed{console: console(t, "stuck"), ready: true, running: "a", timedOut: true,
			limit: time.Minute, output: "1\n2\n"}, Hang, StatusHang, "a",
			"the guest did not end within 1m0s; last output of the programs:\n1\n2\nlast output of the kernel:"},
		"does not boot": {observed{timedOut: true, limit: bootTime}, Hang, StatusHang, "", "the guest did not end " +
			"within 1m30s"},
		"init fails": {observed{console: quiet, failed: "module rdma_rxe: exec format error"}, Broken, StatusBroken, "",
			"init: module rdma_rxe: exec format error\n[    2.243333]"},
		"stops": {observed{console: quiet, ready: true, running: "a"}, Broken, StatusBroken, "a",
			"the guest stopped for no known reason"},
		"a stall, and passed": {observed{console: console(t, "stuck"), ready: true, done: true, results: passed},
			Passed, 0, "", ""},
	} {
		o := classify(c.saw)
		assert.Equal(t, c.kind, o.Kind, name)
		assert.Equal(t, c.status, o.ExitStatus(), name)
		assert.Equal(t, c.program, o.Program, name)
		if c.detail == "" && c.kind != Panic && c.kind != OutOfMemory {
			assert.Empty(t, o.Detail, name)
		}
		assert.Regexp(t, "^"+regexp.QuoteMeta(c.detail), o.Detail, name)
	}
}

// TestKernelText checks that the text contains the trace of a fault or, if memory ran out, both the allocating and the
// killed process.
func TestKernelText(t *testing.T) {
	kind, text := trouble(console(t, "oops-6.1"))
	assert.Equal(t, Oops, kind)
	assert.Contains(t, text, "rxe_invalidate_mw+0x7d/0xe0 [rdma_rxe]")
	assert.NotContains(t, text, "mtrr")
	kind, text = trouble(console(t, "panic-6.12"))
	assert.Equal(t, Panic, kind)
	assert.Contains(t, text, "Kernel panic - not syncing: sysrq triggered crash")
	assert.Contains(t, text, "sysrq_handle_crash")
	kind, text = trouble(console(t, "oom-6.12"))
	assert.Equal(t, OutOfMemory, kind)
	assert.Regexp(t, `^.*invoked oom-killer.*\n.*Out of memory: Killed process \d+ \(0-misbehave\).*$`, text)
	assert.Equal(t, []string{"[   62.411902] INFO: task 0-rxe.test:104 blocked for more than 20 seconds."},
		classify(observed{console: console(t, "stuck"), done: true}).Warnings)
	kind, _ = trouble("[    1.0] Oopsie, the panic of BUGs\n")
	assert.Empty(t, kind)
}
