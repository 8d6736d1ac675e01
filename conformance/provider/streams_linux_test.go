// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// streamTests lists the tests of conformance/vm/cm that need only one process, one device with one address, and no
// network device: streams and reliable connections.
var streamTests = []string{
	"TestStream.*", "TestHTTP", "TestMessageBothWays", "TestConnectionsWithoutReads",
	"Test(Connection|Rejection)Events", "TestEventsWithoutQueuePair", "TestEventOfBrokenQueuePair",
	"TestHostileHandshake", "TestDialHostileListener", "TestContextsEndEachStep",
	"TestListenerClosesWhileOthersConnect", "TestClose.*", "TestDisconnect.*", "TestClosedID", "TestManyConnections",
	"TestSharedReceiveQueue", "TestLastIDKeepsDevice", "TestDevices", "TestMigrate", "TestOptions",
	"TestLateAckTimeout", "TestRetry.*", "TestAddressesForC", "TestECE", "TestNotify",
}

// briefTests lists those that make test runs.
var briefTests = []string{"TestStream(NetConn|Handshake.*|Delivers|HalfClose|CloseDelivers)",
	"Test(Connection|Rejection)Events"}

// TestStreamSuite runs tests of streams and connections, which were written for Soft-RoCE in guests, over librdmacm and
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
		args = append(args, "-test.skip=^TestLastIDKeepsDevice$") // the path keeps the device open
	}
	runSuite(t, e, path, least, testProgram(t, e, "../vm/cm"), args...)
}

// TestRSocketsOfC runs both ends of librdmacm's rsockets on the emulated kernel, as an independent test of its
// connection manager.
func TestRSocketsOfC(t *testing.T) { rsockets(t, emulated(t)) }

func rsockets(t *testing.T, e *Emulated) {
	t.Helper()
	program := compile(t, e, "rsockets")
	for _, on := range []*Emulated{e, e.As(ERDMA)} {
		assert.Contains(t, output(t, on, program, Address), "there and back: fine", on.adapter.Name)
	}
}
