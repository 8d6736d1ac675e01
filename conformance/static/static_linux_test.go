// SPDX-License-Identifier: BSD-2-Clause

package static

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// built returns a static program of a folder below this one. Guests have it in their path.
func built(t *testing.T, name string) string {
	t.Helper()
	if os.Getenv("GOVERBS_GUEST") != "" {
		file, err := exec.LookPath(name)
		if err != nil {
			t.Skip("needs the program: vmtest -build=-tags=goverbs_static -with ./conformance/static/", name)
		}
		return file
	}
	file := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-tags", "goverbs_static", "-o", file, "./"+name)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}

// mostToFirstByte is the longest time from the start of a program to the first byte that an echo server returns, on a
// machine that needs a millisecond for a program that does nothing.
const mostToFirstByte = 15 * time.Millisecond

// TestStart measures the time from the start of a static program to the first byte that comes back over a stream.
func TestStart(t *testing.T) {
	if os.Getenv("GOVERBS_LONG") == "" || os.Getenv("GOVERBS_GUEST") != "" {
		t.Skip("it builds a program and measures time; GOVERBS_LONG=1, which make test sets, runs it")
	}
	client := built(t, "client")
	fabric, _, err := soft.Named("soft@127.0.88.2")
	require.NoError(t, err)
	listen := stream.ListenConfig{Config: stream.Config{Backend: fabric}}
	listener, err := listen.Listen(t.Context(), "127.0.88.2:7471")
	require.NoError(t, err)
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(conn, conn)
			}()
		}
	}()
	var times []time.Duration
	limit, shortest := mostToFirstByte, time.Hour // of a program that does nothing
	for range 400 {                               // on a busy machine most of them wait
		begun := time.Now()
		require.NoError(t, exec.Command("true").Run())
		shortest = min(shortest, time.Since(begun))
		limit = max(mostToFirstByte, 16*shortest)
		cmd := exec.Command(client, "127.0.88.2:7471")
		cmd.Env = append(os.Environ(), "GOVERBS_DEVICE=soft@127.0.88.3")
		var problems bytes.Buffer
		cmd.Stderr = &problems
		started := time.Now().UnixNano()
		out, err := cmd.Output()
		require.NoError(t, err, "%s", &problems)
		at, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
		require.NoError(t, err)
		times = append(times, time.Duration(at-started))
		if len(times) >= 40 && slices.Min(times) <= limit {
			break
		}
	}
	slices.Sort(times)
	t.Logf("first byte after %v at least, %v in the middle; a program that does nothing takes %v", times[0],
		times[len(times)/2], shortest)
	assert.LessOrEqual(t, times[0], limit)
}

// TestConfined runs a static program without rights in a directory with nothing but the program and, in a guest, the
// device files: confined before it starts, and by itself after it has opened its device.
func TestConfined(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can confine a program to a directory (chroot)")
	}
	const nobody = 65534
	program, device, by, address := built(t, "confined"), "soft0", "software", "127.0.0.1"
	guest := os.Getenv("GOVERBS_GUEST") != ""
	if guest {
		device, by, address = "native:"+os.Getenv("GOVERBS_DEVICE"), "native", os.Getenv("GOVERBS_ADDRESS")
	}
	root := t.TempDir()
	require.NoError(t, os.Chmod(root, 0o755))
	copied := filepath.Join(root, "confined")
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(copied, content, 0o755))
	empty := t.TempDir()
	require.NoError(t, os.Chmod(empty, 0o755))
	if guest {
		files, err := filepath.Glob("/dev/infiniband/*")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		require.NoError(t, os.MkdirAll(filepath.Join(root, "dev/infiniband"), 0o755))
		for _, file := range files {
			var stat unix.Stat_t
			require.NoError(t, unix.Stat(file, &stat))
			deviceFile := filepath.Join(root, file)
			require.NoError(t, unix.Mknod(deviceFile, unix.S_IFCHR, int(stat.Rdev)))
			require.NoError(t, os.Chmod(deviceFile, 0o666))
		}
	}
	run := func(name string, attr *syscall.SysProcAttr, args ...string) {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", []string{}, attr
		out, err := cmd.CombinedOutput()
		assert.NoError(t, err, "%s", out)
		assert.Equal(t, "sent and received by "+by+"\n", string(out))
	}
	run("/confined", &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}},
		"-stream", address, device)
	run(copied, nil, "-root", empty, strings.TrimPrefix(device, "native:"))
}
