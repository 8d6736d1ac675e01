// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	envCMTime = "GOVERBS_CMTIME"        // root directory of cmtime, if it is not the guest's
	ownQueues = "/usr/lib/ownqueues.so" // built from peer/ownqueues.c
)

// cmtime runs the cmtime of rdma-core before 52. Newer versions then connect a second time, without queue pairs. Client
// and server count the QP numbers of these connections from the same start, so that on a single device the kernel takes
// such a connection for a stale one and rejects it.
//
// A client opens all connections before it closes any. The server passes the same attributes to rdma_create_qp for each
// request, and rdma_create_qp stores the completion queues of the first connection in them. When the first connection
// ends, these queues are destroyed, and the server rejects later requests of any client, in C or Go: "failure creating
// qp: Invalid argument".
type cmtime struct {
	root   string // optional
	server string // name of the server, whose calls are not counted
}

func openCMTime(t *testing.T) cmtime {
	c := cmtime{root: os.Getenv(envCMTime)}
	if c.root != "" {
		for _, dir := range []string{"/dev", "/proc", "/sys"} {
			require.NoError(t, os.MkdirAll(filepath.Join(c.root, dir), 0o755))
			require.NoError(t, unix.Mount(dir, filepath.Join(c.root, dir), "", unix.MS_BIND|unix.MS_REC, ""))
			t.Cleanup(func() { _ = unix.Unmount(filepath.Join(c.root, dir), unix.MNT_DETACH) })
		}
		text, err := os.ReadFile(ownQueues)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(c.root, ownQueues), text, 0o755))
	}
	text, err := os.ReadFile(filepath.Join(c.root, "/usr/bin/cmtime"))
	require.NoError(t, err)
	require.NotContains(t, string(text), "test - no QPs", "cmtime is of rdma-core 52 or later: name the directory of "+
		"an older one with "+envCMTime)
	c.server = "/usr/bin/cmserver"
	require.NoError(t, os.Symlink("cmtime", filepath.Join(c.root, c.server)))
	t.Cleanup(func() { _ = os.Remove(filepath.Join(c.root, c.server)) })
	return c
}

func (c cmtime) command(name, variant string, at netip.AddrPort, n int, role string) *exec.Cmd {
	cmd := exec.Command(name, "-p", strconv.Itoa(int(at.Port())), "-c", strconv.Itoa(n), role, at.Addr().String())
	if c.root != "" {
		cmd.SysProcAttr, cmd.Dir = &unix.SysProcAttr{Chroot: c.root}, "/"
	}
	if strings.HasSuffix(variant, "own queues") {
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+ownQueues)
	}
	return cmd
}

// connecting runs the server and the client, and returns the run time of the client.
func (c cmtime) connecting(t *testing.T, variant string, at netip.AddrPort, n int) time.Duration {
	server := c.command(c.server, variant, at, n, "-b")
	require.NoError(t, server.Start())
	time.Sleep(500 * time.Millisecond) // cmtime does not report when it listens
	start := time.Now()
	out, err := c.command("/usr/bin/cmtime", variant, at, n, "-s").CombinedOutput()
	elapsed := time.Since(start)
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "event:", "%s", out) // reports a failure
	_ = server.Process.Kill()                                // the server does not exit
	_ = server.Wait()
	return elapsed
}
