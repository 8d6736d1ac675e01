// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package dropin

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPerfOther checks that goverbs perf exits, and prints the command that its peer needs, if the peer is a program of
// perftest that runs a different test. If the servers of both tests are passive, the client's test runs.
func TestPerfOther(t *testing.T) {
	dir, goverbs := built(t), goverbs(t)
	if _, err := exec.LookPath("ib_send_bw"); err != nil {
		t.Skip("ib_send_bw is not installed: make deps installs perftest")
	}
	tests := []string{"send bw", "write bw", "read bw", "atomic bw", "send lat", "write lat", "read lat", "atomic lat"}
	type pair struct{ ours, theirs string }
	pairs := []pair{{"write bw", "write lat"}, {"write lat", "write bw"}, {"read lat", "send bw"},
		{"send bw -q 2", "send bw"}, {"send bw", "send bw -q 2"}, {"write bw -R", "write bw"}}
	if os.Getenv("GOVERBS_EVERYTHING") != "" {
		pairs = append(pairs, pair{"write bw", "write bw -q 2"}, pair{"write bw -q 2", "write bw"},
			pair{"write lat", "write lat -n 200"}, pair{"send bw", "send bw -n 200"}, pair{"send bw -n 200", "send bw"},
			pair{"send bw", "send bw -b"}, pair{"send bw -b", "send bw"}, pair{"write bw -b", "write lat"},
			pair{"send lat -s 64", "send lat -s 128"}, pair{"send lat", "send lat -c UC"},
			pair{"read bw -s 64", "read bw -s 128"}, pair{"send bw -D 1", "send bw"}, pair{"send bw", "send bw -D 2"})
		for _, ours := range tests {
			for _, theirs := range tests {
				if ours != theirs {
					pairs = append(pairs, pair{ours, theirs})
				}
			}
		}
	}
	for _, p := range pairs {
		ourArgs, theirArgs := strings.Fields(p.ours), strings.Fields(p.theirs)
		goverbsArgs := append([]string{goverbs, "perf", ourArgs[0], "--" + ourArgs[1], "--silence", "3"}, ourArgs[2:]...)
		theirs := append([]string{"ib_" + theirArgs[0] + "_" + theirArgs[1], "-F"}, theirArgs[2:]...)
		for _, words := range []*[]string{&goverbsArgs, &theirs} {
			if !slices.Contains(*words, "-n") && !slices.Contains(*words, "-D") {
				*words = append(*words, "-n", "100")
			}
		}
		for _, role := range []string{"client", "server"} {
			name := p.ours + " with a " + role + " of " + p.theirs
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				server, client := goverbsArgs, theirs
				if role == "server" {
					server, client = theirs, goverbsArgs
				}
				detects(t, dir, server, client, role == "client", !slices.Contains(undetected, name))
			})
		}
	}
}

// undetected are pairs that run although their tests differ, because they exchange the same data.
var undetected = []string{
	"write lat with a client of write lat -n 200", "write lat with a server of write lat -n 200",
	"read bw -s 64 with a server of read bw -s 128",
	"send bw -D 1 with a client of send bw", "send bw -D 1 with a server of send bw",
	"send bw with a server of send bw -D 2",
	"write bw with a client of read bw", "read bw with a client of write bw", "atomic lat with a client of read lat",
}

// detects runs a server and a client, one of which is goverbs perf, until goverbs perf exits.
func detects(t *testing.T, dir string, server, client []string, serves, detected bool) {
	port, serverAddr, clientAddr := freePort(t), freeAddress(t), freeAddress(t)
	at := func(address string, args []string, more ...string) *exec.Cmd {
		cmd := with(t, dir, args[0], append(append(args[1:len(args):len(args)], "-p", port), more...)...)
		cmd.Env = append(cmd.Env, "GOVERBS_DEVICE=soft@"+address)
		return cmd
	}
	listens, connects := at(serverAddr, server), at(clientAddr, client, serverAddr)
	ours, theirs := connects, listens
	if serves {
		ours, theirs = listens, connects
	}
	var output bytes.Buffer
	ours.Stderr = &output
	require.NoError(t, listens.Start())
	require.Eventually(t, func() bool { return listening(t, serverAddr, port, false) }, time.Minute, 10*time.Millisecond)
	require.NoError(t, connects.Start())
	done := make(chan error, 1)
	go func() { done <- ours.Wait() }()
	select {
	case err := <-done:
		t.Logf("%v: %s", err, &output)
		if detected {
			require.Error(t, err)
			assert.Regexp(t, `; run "goverbs perf |: -R only on this end \(peer: perftest `, output.String())
		}
	case <-time.After(60 * time.Second):
		assert.Fail(t, "goverbs perf does not exit", "%s", &output)
		_ = ours.Process.Kill()
		<-done
	}
	_ = theirs.Process.Kill() // perftest may poll its memory forever
	_ = theirs.Wait()
}
