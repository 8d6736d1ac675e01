// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/dropin/engine/rsocket"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

var dir string // for binaries that the tests build

// libraries builds the drop-in libraries once and returns their directory.
var libraries = sync.OnceValues(func() (_ string, err error) {
	if dir, err = os.MkdirTemp("", "goverbs-dropin"); err != nil {
		return "", err
	}
	// Open the inputs so that go test tracks them: it does not see files that a script reads.
	for _, from := range []string{"../../dropin", "../../generated/dropin"} {
		err := filepath.WalkDir(from, func(file string, _ fs.DirEntry, err error) error {
			if err == nil {
				_, err = os.Stat(file)
			}
			return err
		})
		if err != nil {
			return "", err
		}
	}
	out, err := exec.Command("../../dropin/build", dir).CombinedOutput()
	if err != nil {
		return "", &buildError{string(out), err}
	}
	return dir, nil
})

type buildError struct {
	out string
	err error
}

func (e *buildError) Error() string { return e.err.Error() + "\n" + e.out }

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// built returns the directory of the libraries. It skips the test without a C compiler.
func built(t *testing.T) string {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler: make deps installs one")
	}
	dir, err := libraries()
	require.NoError(t, err)
	return dir
}

// compile builds a program of testdata.
func compile(t *testing.T, name string, flags ...string) string {
	program := filepath.Join(t.TempDir(), name)
	args := append([]string{"-Wall", "-Wextra", "-Werror", "-O1", "-o", program, "testdata/" + name + ".c"}, flags...)
	out, err := exec.Command("cc", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// with returns a command that uses the drop-in libraries, with a timeout.
func with(t *testing.T, dir, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "GOVERBS_DEVICE=")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// TestSymbols checks that the drop-in libraries export the same symbols and versions as the installed libraries of
// rdma-core.
func TestSymbols(t *testing.T) {
	dir := built(t)
	for _, name := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		real, err := exec.Command("cc", "-print-file-name="+name).Output()
		require.NoError(t, err)
		libSymbols, dropinSymbols := symbols(t, strings.TrimSpace(string(real))), symbols(t, filepath.Join(dir, name))
		assert.Greater(t, len(libSymbols), 60)
		for symbol := range libSymbols {
			assert.True(t, dropinSymbols[symbol], "%s: missing symbol %s", name, symbol)
		}
	}
}

// symbols returns the exported symbols of a library, as name@version.
func symbols(t *testing.T, path string) map[string]bool {
	f, err := elf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	all, err := f.DynamicSymbols()
	require.NoError(t, err)
	found := map[string]bool{}
	for _, s := range all {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS && s.HasVersion {
			hidden := ""
			// The default among private versions does not matter: only providers of the same release request one.
			if s.VersionIndex.IsHidden() && !strings.Contains(s.Version, "_PRIVATE_") {
				hidden = " (old)"
			}
			found[s.Name+"@"+s.Version+hidden] = true
		}
	}
	return found
}

// TestFunctions checks that the software device has every function that the libraries call, apart from listed ones.
func TestFunctions(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	defer fabric.Close()
	sockets := rsocket.New(func() (runtime.Backend, error) { return fabric, nil })
	n := 0
	for _, library := range []string{"libibverbs", "librdmacm"} {
		text, err := os.ReadFile("../../generated/dropin/" + library + ".c")
		require.NoError(t, err)
		row := regexp.MustCompile(`(?m)^\t\{"(\w+)", "(\w+)", FAILS_`)
		for _, m := range row.FindAllStringSubmatch(string(text), -1) {
			n++
			_, excepted := missing[m[2]]
			function := fabric.Function(m[1], m[2])
			if library == "librdmacm" && !strings.HasPrefix(m[2], "rdma_") {
				function = sockets.Function(m[2])
			}
			if excepted {
				assert.Nil(t, function, "%s exists: delete its row", m[2])
			} else {
				assert.NotNil(t, function, m[2])
			}
		}
	}
	assert.Greater(t, n, 130)
}

// missing are functions that the software device lacks, with the reason.
var missing = func() map[string]string {
	all := map[string]string{}
	for reason, names := range map[string]string{
		"no completion counters, like Soft-RoCE": "_ibv_query_comp_cntr_caps ibv_create_comp_cntr " +
			"ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr " +
			"ibv_set_comp_cntr ibv_set_err_comp_cntr ibv_qp_attach_comp_cntr",
		"epoll for rsockets is new in rdma-core 65, whose programs do not use it": "repoll_create repoll_ctl " +
			"repoll_wait",
	} {
		for _, name := range strings.Fields(names) {
			all[name] = reason
		}
	}
	return all
}()

// TestManager tests identifiers without a channel, contexts of a freed list, and host names.
func TestManager(t *testing.T) {
	dir, address := built(t), freeAddress(t)
	program := compile(t, "manager", filepath.Join(dir, "librdmacm.so.1"), filepath.Join(dir, "libibverbs.so.1"))
	name, err := os.Hostname()
	require.NoError(t, err)
	cmd := with(t, dir, program, address, name)
	cmd.Env = append(cmd.Env, "GOVERBS_DEVICE=soft@"+address)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestFiles checks that programs started by goverbs-run find a device node and a sysfs file of the device.
func TestFiles(t *testing.T) {
	dir := built(t)
	for _, c := range []struct {
		command, out string
		ends         int
	}{
		{"test -c /dev/infiniband/soft0", "", 0},
		{"cat /sys/class/infiniband/soft0/ports/1/gid_attrs/types/0", "RoCE v2\n", 0},
		{"cat /sys/class/infiniband/soft0/ports/1/gid_attrs/ndevs/0", "lo\n", 0},
		{"test -e /dev/infiniband/soft1 -o -e /dev/infinibands/soft0", "", 1},
		{"test -c /dev/null -a -d /dev", "", 0},
	} {
		cmd := with(t, dir, "../../dropin/goverbs-run", strings.Fields(c.command)...)
		cmd.Env = append(cmd.Env, "GOVERBS_LIBRARIES="+dir)
		out, _ := cmd.CombinedOutput()
		assert.Equal(t, c.out, string(out), c.command)
		assert.Equal(t, c.ends, cmd.ProcessState.ExitCode(), c.command)
	}
}

// TestPrograms runs Debian's programs as pairs of processes.
func TestPrograms(t *testing.T) {
	dir := built(t)
	for _, pair := range []struct{ server, client, want string }{
		{"ibv_rc_pingpong -g 0 -c -p PORT", "ibv_rc_pingpong -g 0 -c -p PORT 127.0.0.1", "1000 iters in"},
		{"ibv_ud_pingpong -g 0 -n 100 -p PORT", "ibv_ud_pingpong -g 0 -n 100 -p PORT 127.0.0.1", "100 iters in"},
		{"ibv_xsrq_pingpong -g 0 -n 100 -p PORT", "ibv_xsrq_pingpong -g 0 -n 100 -p PORT 127.0.0.1", "success"},
		{"rping -s -a SERVER -p PORT -C 20 -V", "rping -c -a SERVER -p PORT -C 20 -V", ""},
		{"udaddy -b SERVER", "udaddy -s SERVER", "return status 0"},
	} {
		server, client := strings.Fields(pair.server), strings.Fields(pair.client)
		t.Run(server[0], func(t *testing.T) {
			if _, err := exec.LookPath(server[0]); err != nil {
				t.Skipf("%s is not installed: make deps installs ibverbs-utils and rdmacm-utils", server[0])
			}
			printed, out := meet(t, dir, server, client)
			assert.Contains(t, out, pair.want)
			assert.Contains(t, printed, pair.want)
		})
	}
}

// meet starts a server and then its client, each with its own address, and returns their output. In arguments, SERVER
// is the server's address and PORT a free port.
func meet(t *testing.T, dir string, server, client []string, env ...string) (printed, out string) {
	port, serverAddr, clientAddr := freePort(t), freeAddress(t), freeAddress(t)
	fill := func(args []string) (filled []string) {
		for _, a := range args {
			filled = append(filled, strings.NewReplacer("PORT", port, "SERVER", serverAddr).Replace(a))
		}
		return filled
	}
	server, client = fill(server), fill(client)
	var b bytes.Buffer
	listens := with(t, dir, server[0], server[1:]...)
	listens.Env = append(append(listens.Env, "GOVERBS_DEVICE=soft@"+serverAddr), env...)
	listens.Stdout, listens.Stderr = &b, &b
	require.NoError(t, listens.Start())
	require.EventuallyWithT(t, func(c *assert.CollectT) { // until the server listens
		connects := with(t, dir, client[0], client[1:]...)
		connects.Env = append(append(connects.Env, "GOVERBS_DEVICE=soft@"+clientAddr), env...)
		text, err := connects.CombinedOutput()
		out = string(text)
		require.NoError(c, err, "%s", out)
	}, time.Minute, 50*time.Millisecond)
	require.NoError(t, listens.Wait(), "%s", &b)
	return b.String(), out
}

// TestCapture checks that a C program writes its packets to the file GOVERBS_SOFT_CAPTURE.
func TestCapture(t *testing.T) {
	dir := built(t)
	if _, err := exec.LookPath("ibv_rc_pingpong"); err != nil {
		t.Skip("ibv_rc_pingpong is not installed: make deps installs ibverbs-utils")
	}
	port, file := freePort(t), filepath.Join(t.TempDir(), "capture")
	listens := with(t, dir, "ibv_rc_pingpong", "-g", "0", "-p", port)
	listens.Env = append(listens.Env, "GOVERBS_DEVICE=soft@"+freeAddress(t), "GOVERBS_SOFT_CAPTURE="+file)
	require.NoError(t, listens.Start())
	clientAddr := freeAddress(t)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // until the server listens
		connects := with(t, dir, "ibv_rc_pingpong", "-g", "0", "-p", port, "127.0.0.1")
		connects.Env = append(connects.Env, "GOVERBS_DEVICE=soft@"+clientAddr)
		out, err := connects.CombinedOutput()
		require.NoError(c, err, "%s", out)
	}, time.Minute, 50*time.Millisecond)
	require.NoError(t, listens.Wait())
	captured, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, []byte{0x4d, 0x3c, 0xb2, 0xa1}, captured[:4], "libpcap's, with nanoseconds")
	assert.Greater(t, len(captured), 100*1024, "1000 messages of 4 KiB in packets of 1 KiB")

	refused := with(t, dir, "ibv_devinfo")
	refused.Env = append(refused.Env, "GOVERBS_SOFT_CAPTURE=/proc/nothing") // at the default address
	out, _ := refused.CombinedOutput()
	assert.Contains(t, string(out),
		"goverbs: no software device: soft: GOVERBS_SOFT_CAPTURE: create: \"/proc/nothing\"")
}

// TestKilledPeer checks that the peer of a killed program gets an error and exits. If it has just been acknowledged, it
// waits for a message without sending, and would wait forever, as with an adapter; then the test repeats.
func TestKilledPeer(t *testing.T) {
	dir := built(t)
	if _, err := exec.LookPath("ibv_rc_pingpong"); err != nil {
		t.Skip("ibv_rc_pingpong is not installed: make deps installs ibverbs-utils")
	}
	for range 20 {
		if printed, exited := killed(t, dir); exited {
			assert.Contains(t, printed, "(12) for wr_id")
			return
		}
	}
	t.Fatal("no peer exits")
}

// killed starts a ping-pong, kills the server, and returns the client's output, if it ended.
func killed(t *testing.T, dir string) (printed string, exited bool) {
	port, serverAddr, clientAddr := freePort(t), freeAddress(t), freeAddress(t)
	long := []string{"-oL", "ibv_rc_pingpong", "-g", "0", "-n", "100000000", "-p", port} // complete lines, for stdbuf
	victim := with(t, dir, "stdbuf", long...)
	victim.Env = append(victim.Env, "GOVERBS_DEVICE=soft@"+serverAddr)
	out, err := victim.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, victim.Start())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	peer := make(chan string, 1)
	go func() {
		for ctx.Err() == nil { // until the victim listens
			client := exec.CommandContext(ctx, "stdbuf", append(long, "127.0.0.1")...)
			client.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir, "GOVERBS_DEVICE=soft@"+clientAddr)
			text, _ := client.CombinedOutput()
			if !bytes.Contains(text, []byte("Couldn't connect")) {
				peer <- string(text)
				return
			}
		}
	}()
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "remote address") {
	}
	time.Sleep(50 * time.Millisecond) // some traffic
	require.NoError(t, victim.Process.Kill())
	victim.Wait()
	select {
	case printed := <-peer:
		return printed, true
	case <-time.After(10 * time.Second):
		return "", false
	}
}

// ports are below those that the kernel gives to other programs.
var ports = struct {
	sync.Mutex
	last int
}{last: 20_000 + rand.IntN(10_000)}

// freePort returns a TCP port that nothing listens on.
func freePort(t *testing.T) string {
	ports.Lock()
	defer ports.Unlock()
	for ports.last++; ports.last < 32_768; ports.last++ {
		port := strconv.Itoa(ports.last)
		if l, err := net.Listen("tcp", ":"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return ""
}

var addresses = struct {
	sync.Mutex
	last uint16
}{}

// freeAddress returns a loopback address with a free RoCE v2 port.
func freeAddress(t *testing.T) string {
	addresses.Lock()
	defer addresses.Unlock()
	for addresses.last++; addresses.last != 0; addresses.last++ {
		address := net.IPv4(127, 77, byte(addresses.last>>8), byte(addresses.last))
		if l, err := net.ListenUDP("udp4", &net.UDPAddr{IP: address, Port: 4791}); err == nil {
			l.Close()
			return address.String()
		}
	}
	t.Fatal("no loopback address is free")
	return ""
}

// TestRelativeLibraryPath checks that a library found by a relative path opens its own engine after the program has
// changed its working directory, not a file there.
func TestRelativeLibraryPath(t *testing.T) {
	dir, stranger := built(t), t.TempDir()
	program := compile(t, "elsewhere", "-libverbs")
	fake := filepath.Join(stranger, filepath.Base(dir))
	require.NoError(t, os.Mkdir(fake, 0o700))
	source := filepath.Join(stranger, "fake.c")
	require.NoError(t, os.WriteFile(source, []byte("#include <unistd.h>\n"+
		"__attribute__((constructor)) static void run(void) { _exit(66); }\n"), 0o600))
	out, err := exec.Command("cc", "-shared", "-fPIC", "-o", filepath.Join(fake, "libgoverbs.so"), source).
		CombinedOutput()
	require.NoError(t, err, "%s", out)
	cmd := with(t, filepath.Base(dir), program, stranger)
	cmd.Dir = filepath.Dir(dir)
	out, err = cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "1\n", string(out))
}
