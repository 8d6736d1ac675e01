// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bufio"
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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/rdma/stream"
)

// tcpRoot names the directory of TCP programs.
const tcpRoot = "GOVERBS_TCPROOT"

// preload is a directory of the guest with TCP programs, and the library that makes them use rsockets.
type preload struct{ root, library string }

// needTCPRoot skips tests that only make vm WHAT=rsockets runs.
func needTCPRoot(t *testing.T) {
	t.Helper()
	if os.Getenv(tcpRoot) == "" {
		t.Skip("slow: make vm WHAT=rsockets runs it")
	}
}

func openPreload(t *testing.T, name string) preload {
	testbed.Kernel(t)
	root := os.Getenv(name)
	if root == "" {
		t.Skip("programs for TCP are not in this guest: make vm WHAT=rsockets")
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "tmp"), 0o777)) // iperf3 creates a file there
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

// command returns the command of a program in the directory.
func (p preload) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: p.root, Pdeathsig: syscall.SIGKILL}
	cmd.Dir = "/"
	cmd.Env = []string{"LD_PRELOAD=" + p.library, "PATH=/usr/bin"}
	cmd.WaitDelay = time.Second
	return cmd
}

// TestRSocketServesCurl runs curl as the client of net/http over rsockets.
func TestRSocketServesCurl(t *testing.T) {
	p := openPreload(t, tcpRoot)
	body := make([]byte, 3_000_000)
	rand.NewChaCha8([32]byte{1}).Read(body)
	require.NoError(t, os.WriteFile(filepath.Join(p.root, "body"), body, 0o600))
	onEnds(t, 4, func(t *testing.T, e ends) {
		at := netip.AddrPortFrom(e.own, 7520)
		l, err := listenConfig(rsocketOn(e)).Listen(withTimeout(t), at.String())
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
			curl := p.command(withTimeout(t), "/usr/bin/curl", "-sS", "-H", "Expect:", "--data-binary", "@/body",
				"http://"+at.String()+"/")
			curl.Stderr = &wrong
			got, err := curl.Output()
			require.NoError(t, err, "%s", &wrong)
			assert.True(t, bytes.Equal(want, got), "%d bytes: %.80q", len(got), got)
		}
		assert.Len(t, from, 2)
	})
}

// netcat is a listening netcat. Between listen and accept it prints a message to a full pipe, which blocks it until
// resume.
type netcat struct {
	*exec.Cmd
	output *os.File
	filled int
}

const (
	netcatPath   = "/usr/bin/nc.traditional"
	smallestPipe = 4096
	// reuseportWarning is printed earlier, since rsockets do not support this option.
	reuseportWarning = "nnetfd reuseport failed : Operation not supported\n"
)

// inAccept matches the system call of accept, in which librdmacm reads connections from a pipe.
var inAccept = fmt.Sprintf("^%d ", unix.SYS_READ)

// listen starts a netcat and returns when it listens.
func (p preload) listen(t *testing.T, at netip.AddrPort, stdin []byte, stdout io.Writer) *netcat {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer w.Close()
	t.Cleanup(func() { r.Close() })
	_, err = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, smallestPipe)
	require.NoError(t, err)
	n := &netcat{p.command(withTimeout(t), netcatPath, "-n", "-v", "-l", "-s", at.Addr().String(), "-p",
		strconv.Itoa(int(at.Port()))), r, smallestPipe - len(reuseportWarning)}
	_, err = w.Write(make([]byte, n.filled))
	require.NoError(t, err)
	n.Stdin, n.Stdout, n.Stderr = bytes.NewReader(stdin), stdout, w
	require.NoError(t, n.Start())
	expected := fmt.Sprintf("listening on [%s] %d ...", at.Addr(), at.Port())
	n.await(t, fmt.Sprintf("^%d 0x2 0x[0-9a-f]+ %#x ", unix.SYS_WRITE, len(expected)))
	return n
}

// resume lets netcat continue to accept.
func (n *netcat) resume(t *testing.T) {
	t.Helper()
	require.NoError(t, n.output.SetReadDeadline(time.Now().Add(opTimeout)))
	output := bufio.NewReader(n.output)
	_, err := output.Discard(n.filled)
	require.NoError(t, err)
	for _, want := range []string{reuseportWarning, "listening on "} {
		line, err := output.ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, want)
	}
}

// await waits until the first thread of netcat blocks in a system call.
func (n *netcat) await(t *testing.T, call string) {
	t.Helper()
	want := regexp.MustCompile(call)
	retry(t, func() (struct{}, error) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", n.Process.Pid))
		if err == nil && !want.Match(b) {
			err = fmt.Errorf("netcat is in %q, not in %q", b, call)
		}
		return struct{}{}, err
	})
}

// TestRSocketNetcat sends and receives a file with netcat, as client and as server. The server is in accept when the
// connection arrives; see TestRSocketSelectOfLibrspreload.
func TestRSocketNetcat(t *testing.T) {
	p := openPreload(t, tcpRoot)
	to, from := netcatFiles()
	onEnds(t, 2, func(t *testing.T, e ends) {
		if e.own.Is6() {
			return // netcat does not support IPv6
		}
		runBoth := func(t *testing.T, nc *exec.Cmd, got *bytes.Buffer, conn *stream.Conn) {
			defer conn.Close()
			require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
			sent := make(chan error, 1)
			go func() {
				_, err := conn.Write(to)
				sent <- err
			}()
			all := make([]byte, len(from))
			_, err := io.ReadFull(conn, all)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(from, all))
			require.NoError(t, <-sent)
			require.NoError(t, conn.Close())
			require.NoError(t, nc.Wait())
			assert.True(t, bytes.Equal(to, got.Bytes()), "%d bytes", got.Len())
		}
		l, err := listenConfig(rsocketOn(e)).Listen(withTimeout(t), netip.AddrPortFrom(e.own, 7521).String())
		keep(t, l, err)
		var got, wrong bytes.Buffer
		client := p.command(withTimeout(t), netcatPath, e.own.String(), "7521")
		client.Stdin, client.Stdout, client.Stderr = bytes.NewReader(from), &got, &wrong
		require.NoError(t, client.Start())
		conn, err := l.AcceptRDMA(withTimeout(t))
		require.NoError(t, err)
		runBoth(t, client, &got, conn)
		assert.Empty(t, wrong.String())

		at := netip.AddrPortFrom(e.theirs, 7522)
		got.Reset()
		server := p.listen(t, at, from, &got)
		server.resume(t)
		server.await(t, inAccept)
		conn, err = dialer(rsocketOn(e)).Dial(withTimeout(t), at.String())
		require.NoError(t, err)
		runBoth(t, server.Cmd, &got, conn)
	})
}

func netcatFiles() (to, from []byte) {
	to, from = make([]byte, 700_000), make([]byte, 900_000)
	rand.NewChaCha8([32]byte{2}).Read(to)
	rand.NewChaCha8([32]byte{3}).Read(from)
	return to, from
}

// TestRSocketSelectOfLibrspreload demonstrates, with two C programs, a defect of librspreload before rdma-core 44.12,
// 62.1 and 63: select reports the wrong sockets as ready if the library's descriptor of one is smaller than the
// program's. This happens if the connection arrives before the program calls accept: netcat then sends all its data and
// never reads.
func TestRSocketSelectOfLibrspreload(t *testing.T) {
	p := openPreload(t, tcpRoot)
	to, from := netcatFiles()
	to = to[:10_000] // fits into the buffers without being read
	at := address(t, 7523)
	for name, early := range map[string]bool{"in accept": false, "before accept": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			create := func(name string) *os.File {
				f, err := os.Create(filepath.Join(dir, name))
				return keep(t, f, err)
			}
			server := p.listen(t, at, from, create("server"))
			if !early {
				server.resume(t)
				server.await(t, inAccept)
			}
			client := p.command(withTimeout(t), netcatPath, "-n", "-v", at.Addr().String(), strconv.Itoa(int(at.Port())))
			client.Stdin, client.Stdout, client.Stderr = bytes.NewReader(to), create("client"), create("says")
			require.NoError(t, client.Start())
			got := func(name string) []byte {
				b, err := os.ReadFile(filepath.Join(dir, name))
				require.NoError(t, err)
				return b
			}
			if early {
				require.Eventually(t, func() bool { return bytes.Contains(got("says"), []byte("open")) }, opTimeout,
					10*time.Millisecond)
				server.resume(t)
			}
			all := func(name string, want []byte) {
				t.Helper()
				require.Eventually(t, func() bool { return bytes.Equal(want, got(name)) }, opTimeout,
					10*time.Millisecond)
			}
			all("client", from)
			if early {
				time.Sleep(time.Second)
				assert.Empty(t, got("server"), "netcat reads: the library has been fixed")
			} else {
				all("server", to)
			}
			for _, nc := range []*exec.Cmd{client, server.Cmd} {
				require.NoError(t, nc.Process.Kill())
				assert.Error(t, nc.Wait())
			}
		})
	}
}
