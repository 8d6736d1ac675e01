// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// installed skips a test if a program is not installed.
func installed(t *testing.T, program string) {
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed: make deps installs it", program)
	}
}

// TestRSocketPrograms runs pairs of Debian's rsockets programs: blocking, nonblocking, with rpoll, and with remote
// memory.
func TestRSocketPrograms(t *testing.T) {
	dir := built(t)
	for _, c := range []struct{ program, how string }{
		{"rstream", "-T b -S 1000 -C 200 -I 1 -T v"},
		{"rstream", "-T a -S 100000 -C 20 -I 1 -T v"},
		{"rstream", "-T n -S 300000 -C 10 -I 1 -T v -B 100000"},
		{"riostream", "-T b -S 1000 -C 100 -I 1 -T v"},
		{"riostream", "-T a -S 100000 -C 20 -I 1"},
	} {
		t.Run(c.program+" "+c.how, func(t *testing.T) {
			installed(t, c.program)
			server := strings.Fields(c.program + " -b SERVER -p PORT " + c.how)
			client := strings.Fields(c.program + " -s SERVER -p PORT " + c.how)
			output, out := meet(t, dir, server, client)
			assert.Contains(t, output, "custom")
			assert.Contains(t, out, "custom")
		})
	}
}

// TestRSocketCopy copies a file to another process with rcopy.
func TestRSocketCopy(t *testing.T) {
	dir := built(t)
	installed(t, "rcopy")
	serverAddr, port := freeAddress(t), freePort(t)
	server := with(t, dir, "rcopy", "-p", port)
	server.Env = append(server.Env, "GOVERBS_DEVICE=soft@"+serverAddr)
	require.NoError(t, server.Start())
	defer func() { server.Process.Kill(); server.Wait() }()
	want := randomBytes(1_000_000)
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	require.NoError(t, os.WriteFile(from, want, 0o600))
	clientAddr := freeAddress(t)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // until the server listens
		client := with(t, dir, "rcopy", from, serverAddr+":"+to, "-p", port)
		client.Env = append(client.Env, "GOVERBS_DEVICE=soft@"+clientAddr)
		out, err := client.CombinedOutput()
		require.NoError(c, err, "%s", out)
	}, time.Minute, 50*time.Millisecond)
	got, err := os.ReadFile(to)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(want, got))
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// preload returns the path of Debian's library that replaces a program's sockets by rsockets.
func preload(t *testing.T) string {
	all, err := filepath.Glob("/usr/lib/*/rsocket/librspreload.so")
	require.NoError(t, err)
	if len(all) == 0 {
		t.Skip("librspreload.so is not installed: make deps installs librdmacm1")
	}
	return "LD_PRELOAD=" + all[0]
}

// TestPreloadedCurl runs unmodified curl against a Go server with rsockets, over the wire.
func TestPreloadedCurl(t *testing.T) {
	dir := built(t)
	installed(t, "curl")
	serverAddr := freeAddress(t)
	at := soft.DeviceOptions{Name: "soft0", Address: netip.MustParseAddr(serverAddr), Wire: true}
	fabric, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{at}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, fabric.Close()) }()
	lc := stream.ListenConfig{Config: stream.Config{Backend: fabric, Protocol: stream.RSocket}}
	l, err := lc.Listen(context.Background(), serverAddr+":0")
	require.NoError(t, err)
	want := randomBytes(700_000)
	server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Write(want)
			return
		}
		got, err := io.ReadAll(r.Body)
		fmt.Fprint(w, "uploaded ", err == nil && bytes.Equal(got, want))
	})}
	go server.Serve(l)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "want")
	require.NoError(t, os.WriteFile(file, want, 0o600))
	url := "http://" + l.Addr().String() + "/"
	for _, c := range []struct{ args, want string }{
		{url + " " + url, string(want) + string(want)}, // one connection
		{"-T " + file + " " + url, "uploaded true"},
	} {
		curl := with(t, dir, "curl", strings.Fields("-sS -m 30 "+c.args)...)
		curl.Env = append(curl.Env, "GOVERBS_DEVICE=soft@"+freeAddress(t), preload(t))
		var output bytes.Buffer
		curl.Stderr = &output
		got, err := curl.Output()
		require.NoError(t, err, "%s", &output)
		assert.True(t, c.want == string(got), "%d bytes of %d", len(got), len(c.want))
	}
}

// TestPreloadedPrograms runs TCP programs as both ends.
func TestPreloadedPrograms(t *testing.T) {
	dir, before := built(t), preload(t)
	t.Run("iperf3", func(t *testing.T) {
		installed(t, "iperf3")
		for _, how := range []string{"", " -R -P 2"} {
			output, out := meet(t, dir, strings.Fields("iperf3 -s -1 -B SERVER -p PORT"),
				strings.Fields("iperf3 -c SERVER -p PORT -n 5M"+how), before)
			assert.Contains(t, out, "iperf Done")
			assert.Contains(t, output, "Accepted connection")
		}
	})
	t.Run("nc", func(t *testing.T) {
		installed(t, "nc.traditional")
		want := filepath.Join(t.TempDir(), "want")
		require.NoError(t, os.WriteFile(want, []byte(strings.Repeat("netcat\n", 50_000)), 0o600))
		output, _ := meet(t, dir, strings.Fields("nc.traditional -l -s SERVER -p PORT"),
			[]string{"sh", "-c", "exec nc.traditional -n -q 1 SERVER PORT <" + want}, before)
		assert.Equal(t, 50_000, strings.Count(output, "netcat\n"))
	})
}
