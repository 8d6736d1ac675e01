// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm"
)

// measured are arguments for both perftest's programs and goverbs perf. Each sends 100 messages.
var measured = []string{
	"send bw -q 3 -l 5 -t 20 -r 40", "send bw -c UD -s 1024 -q 2", "send bw -R -e", "write bw -R -q 2",
	"read bw -s 5001", "atomic bw -q 2 -b", "send lat -c UD -s 200", "write lat -s 100",
	"read lat -R", "atomic lat -x 0", "send lat -c UD -R -s 200",
}

// slowTests are more arguments, many of which are slower: perftest calibrates the clock for a second at each size.
var slowTests = []string{
	"send bw", "send bw -c UC -s 3000", "write bw -m 1024", "write bw -c UC -I 64 -s 64", "send lat", "send lat -R -e",
	"send bw -a -n 20", "write bw -a -n 20", "read bw -a -R -n 20", "send lat -a -n 20", "send bw -c UD -a -n 20",
	"send bw -D 3", "write bw -D 3", "read lat -D 3", "send lat -D 3",
	"send bw -b -q 2", "send bw -b -c UD -t 20 -s 500", "send bw -b -a -n 20", "send bw -b -R", "send bw -b -D 3",
	"write bw -b", "write bw -b -a -n 20", "write bw -b -R", "write bw -b -D 3", "read bw -b -q 2",
	"read bw -b -a -n 20",
	"send bw -c UD -R -s 1024 -q 2", "send bw -c UD -R -b -t 20 -s 500 -q 2", "send lat -c UD -R -e",
}

// TestPerf runs goverbs perf against programs of perftest, in both roles.
func TestPerf(t *testing.T) {
	dir := built(t)
	if _, err := exec.LookPath("ib_send_bw"); err != nil {
		t.Skip("ib_send_bw is not installed: make deps installs perftest")
	}
	tests := measured
	if os.Getenv("GOVERBS_EVERYTHING") != "" {
		tests = append(tests, slowTests...)
	}
	perfWith(t, dir, tests, nil)
}

// TestPerfNewer is TestPerf with the perftest of Debian 13 and its C library.
func TestPerfNewer(t *testing.T) {
	dir := built(t)
	if os.Getenv("GOVERBS_EVERYTHING") == "" {
		t.Skip("TestPerf has an older perftest, and " +
			"conformance/vm/interop this one: GOVERBS_EVERYTHING=1 runs it here")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("packages are fetched for amd64 only")
	}
	root, err := vm.PrepareRoot(t.Context(), "trixie", []string{"perftest"}, vm.CacheDir(), t.Logf)
	require.NoError(t, err)
	libDir := filepath.Join(root.Dir, "usr", "lib", "x86_64-linux-gnu")
	perfWith(t, dir, append(measured, slowTests...), func(name string) []string {
		return []string{filepath.Join(libDir, "ld-linux-x86-64.so.2"), "--library-path", dir + ":" + libDir,
			filepath.Join(root.Dir, "usr", "bin", name)}
	})
}

// perfWith runs tests with perftest's programs. called returns the command for a program, by default its name.
func perfWith(t *testing.T, dir string, tests []string, called func(name string) []string) {
	goverbs := goverbs(t)
	if called == nil {
		called = func(name string) []string { return []string{name} }
	}
	for _, test := range tests {
		test := test + " -u 20" // a busy machine loses no packets
		if !strings.Contains(test, "-D") && !strings.Contains(test, "-n") {
			test += " -n 100"
		}
		words := strings.Fields(test)
		perftestArgs := append(append(called("ib_"+words[0]+"_"+words[1]), "-F"), words[2:]...)
		goverbsArgs := append([]string{goverbs, "--json", "perf", words[0], "--" + words[1]}, words[2:]...)
		t.Run(test+"/perftest server", func(t *testing.T) {
			t.Parallel()
			_, printed := measure(t, dir, perftestArgs, goverbsArgs)
			results(t, test, printed, true)
		})
		t.Run(test+"/perftest client", func(t *testing.T) {
			t.Parallel()
			printed, table := measure(t, dir, goverbsArgs, perftestArgs)
			if strings.HasPrefix(test, "send") || strings.HasPrefix(test, "write lat") {
				results(t, test, printed, false)
			}
			if strings.Contains(test, "-n 100") {
				n := 100
				for i, word := range words {
					if word == "-q" {
						n = 100 * int(words[i+1][0]-'0')
					}
				}
				assert.Regexp(t, fmt.Sprintf(`(?m)^ \d+ +%d +`, n), string(table))
			}
		})
	}
}

// measure runs a server and its client on separate devices and returns their output.
func measure(t *testing.T, dir string, server, client []string) (serverResult, clientResult []byte) {
	port, serverAddr, clientAddr := freePort(t), freeAddress(t), freeAddress(t)
	var printed, wrong bytes.Buffer
	at := func(address string, args []string, more ...string) *exec.Cmd {
		cmd := with(t, dir, args[0], append(append(args[1:len(args):len(args)], "-p", port), more...)...)
		cmd.Env = append(cmd.Env, "GOVERBS_DEVICE=soft@"+address)
		return cmd
	}
	listens := at(serverAddr, server)
	listens.Stdout, listens.Stderr = &printed, &wrong
	require.NoError(t, listens.Start())
	done := make(chan error, 1)
	go func() { done <- listens.Wait() }()
	defer func() {
		if t.Failed() {
			_ = listens.Process.Kill()
			t.Logf("server output: %s%s", &printed, &wrong)
		}
	}()
	manager := slices.Contains(server, "-R")
	require.Eventually(t, func() bool { return len(done) > 0 || listening(t, serverAddr, port, manager) }, time.Minute,
		10*time.Millisecond)
	var first []byte
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // with -R, it may not listen yet
		connects := at(clientAddr, client, serverAddr)
		var bad bytes.Buffer
		connects.Stderr = &bad
		out, err := connects.Output()
		if err == nil {
			clientResult = out
			break
		}
		if first == nil { // later errors may only mean that the server is busy
			first = bad.Bytes()
		}
		if time.Now().After(deadline) || len(done) > 0 {
			require.NoError(t, err, "%s%s\nfirst: %s", out, &bad, first)
		}
	}
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		require.Fail(t, "the server does not exit")
	}
	return printed.Bytes(), clientResult
}

// listening reports whether a server listens at a TCP port, or at least has a device at an address.
func listening(t *testing.T, address, port string, manager bool) bool {
	if manager { // looked up without binding, which would block the server
		text, err := os.ReadFile("/proc/net/udp")
		require.NoError(t, err)
		ip := net.ParseIP(address).To4()
		return strings.Contains(string(text), fmt.Sprintf(" %02X%02X%02X%02X:%04X ", ip[3], ip[2], ip[1], ip[0], 4791))
	}
	number, err := strconv.Atoi(port)
	require.NoError(t, err)
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); strings.HasSuffix(f[1], fmt.Sprintf(":%04X", number)) && f[3] == "0A" {
				return true
			}
		}
	}
	return false
}

// results checks the JSON output of goverbs perf.
func results(t *testing.T, test string, text []byte, client bool) {
	var report struct {
		Test    string
		Client  bool
		Results []struct {
			Bytes, Messages int
			MiB             float64 `json:"mib_per_s"`
			Median          float64 `json:"median_us"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &report), "%s", text)
	assert.Equal(t, client, report.Client)
	require.NotEmpty(t, report.Results)
	for _, row := range report.Results {
		assert.Positive(t, row.Messages)
		if strings.Contains(test, " lat") {
			assert.Positive(t, row.Median)
		} else {
			assert.Positive(t, row.MiB)
		}
	}
	if strings.Contains(test, " -a") {
		assert.Greater(t, len(report.Results), 10)
	}
}
