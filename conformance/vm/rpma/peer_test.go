// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bufio"
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
)

// timeout returns a context with a generous timeout.
func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func address(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(os.Getenv(wire.EnvAddress)), port)
}

// Active and passive roles, of librpma's C program and of package rpma.
type (
	active  func(t *testing.T, at netip.AddrPort) string
	passive func(t *testing.T, at netip.AddrPort, ready func()) string
)

func program(t *testing.T, role string, at netip.AddrPort) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(timeout(t), "rpmapeer", role, at.Addr().String(), strconv.Itoa(int(at.Port())))
	cmd.WaitDelay = time.Second
	return cmd
}

func activeInC(role string) active {
	return func(t *testing.T, at netip.AddrPort) string {
		out, err := program(t, role, at).Output()
		assert.NoError(t, err, "%s", out)
		return string(out)
	}
}

func passiveInC(role string) passive {
	return func(t *testing.T, at netip.AddrPort, ready func()) string {
		cmd := program(t, role, at)
		var out bytes.Buffer
		cmd.Stdout = &out
		complaints, err := cmd.StderrPipe()
		assert.NoError(t, err)
		assert.NoError(t, cmd.Start())
		line, err := bufio.NewReader(complaints).ReadString('\n')
		assert.Equal(t, "ready\n", line, "%v", err)
		ready()
		assert.NoError(t, cmd.Wait(), "%s", &out)
		return out.String()
	}
}

// play runs two roles against each other and returns their observations.
func play(t *testing.T, port uint16, a active, p passive) (active, passive string) {
	t.Helper()
	ready, done := make(chan struct{}), make(chan string, 1)
	go func() {
		ended := ""
		defer func() { done <- ended }()
		ended = p(t, address(port), func() { close(ready) })
	}()
	select {
	case <-ready:
	case output := <-done:
		require.FailNow(t, "the passive role never listened", "%s", output)
	}
	active = a(t, address(port))
	return active, <-done
}

// inC skips tests with the C program on the software device: librpma needs a kernel device.
func inC(t *testing.T) {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft {
		t.Skip("the other end is a C program on a kernel device: run make vm")
	}
	if _, err := exec.LookPath("rpmapeer"); err != nil {
		t.Skip("the C peer is not in the guest: run vmtest -with ./conformance/vm/rpma/peer/rpmapeer.c")
	}
}

// TestPeers runs package rpma and librpma's C program in both roles of a script that contains every operation, and
// checks that each observes the same as C against C.
func TestPeers(t *testing.T) {
	inC(t)
	cx, cy := play(t, 7600, activeInC("x"), passiveInC("y"))
	gx, _ := play(t, 7601, x, passiveInC("y"))
	_, gy := play(t, 7602, activeInC("x"), y)
	assert.Equal(t, cx, gx, "the active role")
	assert.Equal(t, cy, gy, "the passive role")
	assert.Contains(t, cx, "read written by x, written by x, 8 bytes!\n")
	assert.Contains(t, cy, "imm a1b2c3d4\n")
	bx, by := play(t, 7603, x, y)
	assert.Equal(t, cx, bx)
	assert.Equal(t, cy, by)
}

// TestErrorsMatchC checks that calls that librpma rejects are rejected with the same code, and that requests that a
// peer rejects have the same status.
func TestErrorsMatchC(t *testing.T) {
	inC(t)
	c, _ := play(t, 7610, activeInC("errors"), passiveInC("serve"))
	observed, served := play(t, 7611, mistakes, passiveInC("serve"))
	assert.Equal(t, c, observed)
	_, observed = play(t, 7612, activeInC("errors"), serve)
	assert.Equal(t, served, observed)
}

// TestFullQueues checks that a queue accepts the requested number of operations, rejects the next one with C's code,
// and completes all that it accepted.
func TestFullQueues(t *testing.T) {
	observed, _ := play(t, 7613, full, serve)
	assert.Contains(t, observed,
		"room for 16 sends: 1, then -100002\nroom for 16 receives: 1, then -100002\nall have ended\n")
	inC(t)
	c, _ := play(t, 7614, activeInC("full"), passiveInC("serve"))
	assert.Equal(t, c, observed)
}

// TestRoles runs package rpma in both roles on any device.
func TestRoles(t *testing.T) {
	ax, ay := play(t, 7620, x, y)
	assert.Contains(t, ax, "read written by x, written by x, 8 bytes!\n")
	assert.Contains(t, ax, "received an answer,  answer\nevent 1\n")
	assert.Contains(t, ay, "imm a1b2c3d4\n")
	assert.Contains(t, ay, "written written by x, written by x, 8 bytes!, written\n")
	assert.Contains(t, ay, "received a message, message\n")
	errors, _ := play(t, 7621, mistakes, serve)
	assert.Contains(t, errors, "atomic write to an odd place: -100004\n")
}
