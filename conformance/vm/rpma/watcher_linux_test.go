// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rpma"
)

// Roles of watchers, which print each event of a connection until it ends: the active side and the passive side.
const (
	watch        = "watch"
	watchPassive = "watched"
)

func init() {
	programs[watch] = roleOf(watchConnection)
	programs[watchPassive] = roleOf(watchListener)
	programs[memory] = roleOf(withoutMemory)
}

// roleOf returns the main function of a process for a role of rpmapeer.c. The role needs its own process, since a
// device cannot be removed while the test has it open.
func roleOf(role func(at, host string) error) func(args []string) {
	return func(args []string) {
		if err := role(net.JoinHostPort(args[0], args[1]), args[0]); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
	}
}

func watchConnection(at, host string) error {
	peer, end, err := openPeer(rpma.Remote, host)
	if err != nil {
		return err
	}
	q, err := peer.NewConnRequest(context.Background(), at, &config)
	if err != nil {
		return err
	}
	c, err := q.Connect(nil)
	if err != nil {
		return err
	}
	return printEvents(c, end)
}

func watchListener(at, host string) error {
	peer, end, err := openPeer(rpma.Local, host)
	if err != nil {
		return err
	}
	e, err := peer.Listen(context.Background(), at)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	q, err := e.NextConnRequest(context.Background(), &config)
	if err != nil {
		return err
	}
	c, err := q.Connect(nil)
	if err != nil {
		return err
	}
	return printEvents(c, func() error {
		if err := e.Close(); err != nil {
			return err
		}
		return end()
	})
}

func openPeer(side rpma.Side, host string) (peer *rpma.Peer, end func() error, err error) {
	d, err := rpma.FindDevice(context.Background(), side, host)
	if err != nil {
		return nil, nil, err
	}
	peer, err = rpma.NewPeer(d, rpma.PeerOptions{})
	return peer, func() error {
		if err := peer.Close(); err != nil {
			return err
		}
		return d.Close()
	}, err
}

// printEvents prints the events of a connection until it ends. It then waits for EOF on standard input, since the other
// side would notice an earlier exit, and closes everything, even on a removed device.
func printEvents(c *rpma.Conn, end func() error) error {
	for {
		e, err := c.NextEvent(context.Background())
		fmt.Printf("event %d, result %d\n", e, rpma.CodeOf(err))
		if e == rpma.Established {
			continue
		}
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			return err
		}
		if err := c.Close(); err != nil {
			return err
		}
		return end()
	}
}

// watcher is a process that runs one of these roles.
type watcher struct {
	t     *testing.T
	desc  string
	cmd   *exec.Cmd
	input io.Closer
	lines *bufio.Scanner
}

// newWatcher returns a program in C or Go for a role.
func newWatcher(ctx context.Context, t *testing.T, language, role string, at netip.AddrPort) *watcher {
	t.Helper()
	name := "rpmapeer"
	args := []string{role, at.Addr().String(), strconv.Itoa(int(at.Port()))}
	if language == inGo {
		self, err := os.Executable()
		require.NoError(t, err)
		name, args = self, args[1:]
	}
	w := &watcher{t: t, desc: language + ", " + role, cmd: exec.CommandContext(ctx, name, args...)}
	w.cmd.Env = append(os.Environ(), envRole+"="+role)
	w.cmd.Stderr = os.Stderr
	w.cmd.WaitDelay = time.Second
	return w
}

// startWatcher starts a watcher.
func startWatcher(ctx context.Context, t *testing.T, language, role string, at netip.AddrPort) *watcher {
	t.Helper()
	w := newWatcher(ctx, t, language, role, at)
	var err error
	w.input, err = w.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, w.cmd.Start())
	w.lines = bufio.NewScanner(out)
	return w
}

// next returns the next line.
func (w *watcher) next() string {
	w.t.Helper()
	require.True(w.t, w.lines.Scan(), "%s: watcher exited: %v", w.desc, w.lines.Err())
	return w.lines.Text()
}

// expect checks the next line.
func (w *watcher) expect(line string) {
	w.t.Helper()
	require.Equal(w.t, line, w.next(), w.desc)
}

// stop stops the watcher and checks that it prints nothing else.
func (w *watcher) stop() {
	w.t.Helper()
	require.NoError(w.t, w.input.Close())
	require.False(w.t, w.lines.Scan(), "%s: %s", w.desc, w.lines.Text())
	require.NoError(w.t, w.cmd.Wait(), w.desc)
}
