// SPDX-License-Identifier: BSD-2-Clause

package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// perftests lists arguments for both perftest's programs and goverbs perf.
var perftests = []string{
	"send bw", "send bw -R", "send bw -c UC", "send bw -c UD -s 1024", "send bw -c UD -s 1024 -R",
	"send bw -c UD -R -q 2 -b -s 500", "send bw -b", "send bw -e -q 2",
	"send lat", "send lat -R", "send lat -c UC", "send lat -c UD", "send lat -c UD -R", "send lat -e",
	"write bw", "write bw -R", "write bw -c UC", "write bw -q 3 -l 5", "write bw -b", "write lat", "write lat -R",
	"write lat -c UC",
	"read bw", "read bw -R", "read bw -b", "read lat", "read lat -R",
	"atomic bw", "atomic bw -R", "atomic lat", "atomic lat -R",
}

// ends starts programs of perftest releases, and goverbs, on the guest's device.
type ends struct {
	device, address string
	roots           []string // directories with one perftest release each
}

func openEnds(t *testing.T) *ends {
	testbed.Kernel(t)
	roots := os.Getenv("GOVERBS_PERFTEST")
	if roots == "" {
		t.Skip("perftest is not in this guest: run make vm WHAT=perftest")
	}
	e := &ends{device: os.Getenv(wire.EnvDevice), address: os.Getenv(wire.EnvAddress), roots: strings.Split(roots, ",")}
	for _, root := range e.roots {
		for _, dir := range []string{"/dev", "/proc", "/sys"} {
			require.NoError(t, os.MkdirAll(path.Join(root, dir), 0o755))
			require.NoError(t, unix.Mount(dir, path.Join(root, dir), "", unix.MS_BIND|unix.MS_REC, ""))
			t.Cleanup(func() { _ = unix.Unmount(path.Join(root, dir), unix.MNT_DETACH) })
		}
	}
	return e
}

// theirs returns the command of a perftest release for a test, and ours that of goverbs.
func (e *ends) theirs(root, test string, port int) *exec.Cmd {
	words := strings.Fields(test)
	cmd := exec.Command("/usr/bin/ib_"+words[0]+"_"+words[1], append([]string{"-F", "-d", e.device, "-p",
		strconv.Itoa(port)}, words[2:]...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	cmd.Dir = "/"
	return cmd
}

func (e *ends) ours(test string, port int) *exec.Cmd {
	words := strings.Fields(test)
	return exec.Command("/usr/bin/goverbs", append([]string{"--json", "perf", words[0], "--" + words[1], "-d", e.device,
		"-p", strconv.Itoa(port)}, words[2:]...)...)
}

// run starts a server, and then a client that connects to it.
func (e *ends) run(server, client *exec.Cmd) (serverResult, clientResult string, err error) {
	var first, wrong bytes.Buffer
	running := *server
	running.Stdout, running.Stderr = &first, &wrong
	if err := running.Start(); err != nil {
		return "", "", err
	}
	done := make(chan error, 1)
	go func() { done <- running.Wait() }()
	// the server may not listen yet
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		again := exec.Command(client.Path, append(client.Args[1:len(client.Args):len(client.Args)], e.address)...)
		again.SysProcAttr, again.Dir = client.SysProcAttr, client.Dir
		var out, bad bytes.Buffer
		again.Stdout, again.Stderr = &out, &bad
		results := make(chan error, 1)
		if err := again.Start(); err != nil {
			return "", "", err
		}
		go func() { results <- again.Wait() }()
		select {
		case err = <-results:
		case <-time.After(30 * time.Second):
			_ = again.Process.Kill()
			<-results
			err = fmt.Errorf("the client hangs")
			deadline = time.Time{}
		}
		if err == nil {
			select {
			case err = <-done:
			case <-time.After(20 * time.Second):
				_ = running.Process.Kill()
				<-done
				err = fmt.Errorf("the server does not exit")
			}
			if err != nil {
				err = fmt.Errorf("server: %w: %s%s", err, first.String(), wrong.String())
			}
			return first.String(), out.String(), err
		}
		if over := time.Now().After(deadline); over || len(done) > 0 {
			if over {
				_ = running.Process.Kill()
			}
			<-done
			return "", "", fmt.Errorf("client: %w: %s%s\nserver: %s%s", err, out.String(), bad.String(),
				first.String(), wrong.String())
		}
	}
}

// TestPerftest runs goverbs perf against perftest of Debian's releases, in both roles. It skips tests that two perftest
// programs cannot run here.
func TestPerftest(t *testing.T) {
	e := openEnds(t)
	port := 21000
	for _, root := range e.roots {
		for _, test := range perftests {
			test += " -n 100"
			name := path.Base(root) + "/" + test
			t.Run(name, func(t *testing.T) {
				port++
				_, clientOutput, err := e.run(e.theirs(root, test, port), e.ours(test, port))
				if assert.NoError(t, err, "perftest server") {
					assert.Regexp(t, `"(mib_per_s|median_us)": *[0-9.]+`, clientOutput)
				}
				port++
				serverResult, clientOutput, err := e.run(e.ours(test, port), e.theirs(root, test, port))
				if assert.NoError(t, err, "perftest client") {
					// On a busy machine, perftest cannot determine the clock rate of an emulated processor.
					assert.Regexp(t, `(?m)^ \d+ +\d+00 +([0-9.]+|inf)`, clientOutput)
					assert.True(t, json.Valid([]byte(serverResult)), serverResult)
				}
				if t.Failed() {
					port++
					_, output, err := e.run(e.theirs(root, test, port), e.theirs(root, test, port))
					t.Logf("perftest with itself: %v %s", err, output)
				}
			})
		}
	}
}
