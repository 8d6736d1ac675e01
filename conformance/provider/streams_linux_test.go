// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// streamTests are tests of conformance/vm/cm that need one process, one device with one address, and no network below
// it: streams, and what connections of reliable queue pairs do.
var streamTests = []string{
	"TestStream.*", "TestHTTP", "TestAMessageEachWay", "TestConnectionsWithoutReads",
	"TestEventsOfA.*", "TestEventsWithoutAQueuePair", "TestEventOfAQueuePairThatIsBroken",
	"TestHandshakeOfAHostilePeer", "TestDialOfAHostileListener", "TestContextsEndEachStep",
	"TestListenerClosesWhileOthersConnect", "TestClose.*", "TestDisconnect.*", "TestAClosedID", "TestManyConnections",
	"TestSharedReceiveQueue", "TestTheLastIDKeepsItsDevice", "TestDevices", "TestMigrate", "TestOptions",
	"TestLateAckTimeout", "TestRetry.*", "TestAddressesForC", "TestECE", "TestNotify",
}

// briefTests are those of make test.
var briefTests = []string{"TestStream(IsANetConn|Says.*|Delivers|HalfClose|CloseDelivers)", "TestEventsOfA.*"}

// TestStreamSuite: tests of streams and of connections, which were written for Soft-RoCE in guests, over librdmacm and
// libmlx5, and over the data path in Go.
func TestStreamSuite(t *testing.T) {
	for _, path := range []string{pathC, pathGo} {
		t.Run(path, func(t *testing.T) { streamSuite(t, emulated(t), path) })
	}
}

func streamSuite(t *testing.T, e *Emulated, path string) {
	t.Helper()
	tests, least := briefTests, 6
	if os.Getenv(envAll) != "" {
		tests, least = streamTests, 35
	}
	args := []string{"-test.run=^(" + strings.Join(tests, "|") + ")$"}
	if path == pathGo {
		args = append(args, "-test.skip=^TestTheLastIDKeepsItsDevice$") // the path keeps it
	}
	runSuite(t, e, path, least, testProgram(t, e, "../vm/cm"), args...)
}

// TestRSocketsOfC: librdmacm's own streams, both ends of them, run on the emulated kernel: a stranger's word on its
// connection manager.
func TestRSocketsOfC(t *testing.T) { rsockets(t, emulated(t)) }

func rsockets(t *testing.T, e *Emulated) {
	t.Helper()
	program := compile(t, e, "rsockets")
	for _, on := range []*Emulated{e, e.As(ERDMA)} {
		assert.Contains(t, output(t, on, program, Address), "there and back: fine", on.adapter.Name)
	}
}
