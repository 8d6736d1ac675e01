// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/rig"
	"github.com/goverbs/goverbs/rdma/cm"
)

// tcpRoot names that directory.
const tcpRoot = "GOVERBS_TCPROOT"

// preload is a directory of the guest with programs for TCP, and the library with which they speak rsockets.
type preload struct{ root, library string }

// needTCPRoot skips what make vm-rsockets runs.
func needTCPRoot(t *testing.T) {
	t.Helper()
	if os.Getenv(tcpRoot) == "" {
		t.Skip("this takes longer: make vm-rsockets")
	}
}

func openPreload(t *testing.T) preload {
	rig.Kernel(t)
	root := os.Getenv(tcpRoot)
	if root == "" {
		t.Skip("programs for TCP are not in this guest: make vm-rsockets")
	}
	for _, dir := range []string{"/dev", "/proc", "/sys"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		require.NoError(t, unix.Mount(dir, filepath.Join(root, dir), "", unix.MS_BIND|unix.MS_REC, ""))
		t.Cleanup(func() { _ = unix.Unmount(filepath.Join(root, dir), unix.MNT_DETACH) })
	}
	found, err := filepath.Glob(filepath.Join(root, "usr/lib/*/rsocket/librspreload.so"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	return preload{root, strings.TrimPrefix(found[0], root)}
}

// command is a program of the directory.
func (p preload) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: p.root, Pdeathsig: syscall.SIGKILL}
	cmd.Dir = "/"
	cmd.Env = []string{"LD_PRELOAD=" + p.library, "PATH=/usr/bin"}
	cmd.WaitDelay = time.Second
	return cmd
}

// TestRSocketServesCurl: curl, made for TCP, is the client of net/http.
func TestRSocketServesCurl(t *testing.T) {
	p := openPreload(t)
	body := make([]byte, 3_000_000)
	rand.NewChaCha8([32]byte{1}).Read(body)
	require.NoError(t, os.WriteFile(filepath.Join(p.root, "body"), body, 0o600))
	onEnds(t, 4, func(t *testing.T, e ends) {
		at := netip.AddrPortFrom(e.own, 7520)
		l, err := rsocketOn(e).Listen(soon(t), at.String())
		require.NoError(t, err)
		var from []string
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			from = append(from, r.UserAgent())
			h := sha256.New()
			n, _ := io.Copy(h, r.Body)
			fmt.Fprintf(w, "%d %x\n", n, h.Sum(nil))
			w.Write(body[:n/2])
		})}
		go server.Serve(l)
		defer server.Close()
		for range 2 {
			want := append(fmt.Appendf(nil, "%d %x\n", len(body), sha256.Sum256(body)), body[:len(body)/2]...)
			var wrong bytes.Buffer
			curl := p.command(soon(t), "/usr/bin/curl", "-sS", "-H", "Expect:", "--data-binary", "@/body",
				"http://"+at.String()+"/")
			curl.Stderr = &wrong
			got, err := curl.Output()
			require.NoError(t, err, "%s", &wrong)
			assert.True(t, bytes.Equal(want, got), "%d bytes: %.80q", len(got), got)
		}
		assert.Len(t, from, 2)
	})
}

// TestRSocketBesideNetcat: netcat, made for TCP, sends and takes a file, as the client and as the server.
func TestRSocketBesideNetcat(t *testing.T) {
	p := openPreload(t)
	onEnds(t, 2, func(t *testing.T, e ends) {
		if e.own.Is6() {
			return // it knows no such addresses
		}
		to, from := make([]byte, 700_000), make([]byte, 900_000)
		rand.NewChaCha8([32]byte{2}).Read(to)
		rand.NewChaCha8([32]byte{3}).Read(from)
		both := func(t *testing.T, nc *exec.Cmd, connect func() *cm.Conn) {
			var got, wrong bytes.Buffer
			nc.Stdin, nc.Stdout, nc.Stderr = bytes.NewReader(from), &got, &wrong
			require.NoError(t, nc.Start())
			conn := connect()
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
			sent := make(chan error, 1)
			go func() {
				_, err := conn.Write(to)
				sent <- err
			}()
			all := make([]byte, len(from))
			_, err := io.ReadFull(conn, all)
			require.NoError(t, err, "%s", &wrong)
			assert.True(t, bytes.Equal(from, all))
			require.NoError(t, <-sent)
			require.NoError(t, conn.Close())
			require.NoError(t, nc.Wait(), "%s", &wrong)
			assert.True(t, bytes.Equal(to, got.Bytes()), "%d bytes: %s", got.Len(), &wrong)
		}
		l, err := rsocketOn(e).Listen(soon(t), netip.AddrPortFrom(e.own, 7521).String())
		keep(t, l, err)
		both(t, p.command(soon(t), "/usr/bin/nc.traditional", e.own.String(), "7521"), func() *cm.Conn {
			conn, err := l.AcceptRDMA(soon(t))
			require.NoError(t, err)
			return conn
		})
		nc := p.command(soon(t), "/usr/bin/nc.traditional", "-l", "-s", e.theirs.String(), "-p", "7522")
		both(t, nc, func() *cm.Conn {
			return patiently(t, func() (*cm.Conn, error) {
				return rsocketOn(e).Dial(soon(t), netip.AddrPortFrom(e.theirs, 7522).String())
			})
		})
	})
}
