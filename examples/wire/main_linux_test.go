// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(peerAt); address != "" {
		exit(serve(address))
	}
	os.Exit(m.Run())
}

// Addresses that tests of other packages do not use, because a process cannot share the wire of another user's process.
const local, peer = "127.0.78.1", "127.0.78.2"

// TestWire runs the example.
func TestWire(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(local, peer, &out))
	for _, want := range []string{"soft@" + local + " in process", "ping-pong", "the same bytes",
		"200 OK, the same digest", "retransmitted", "the peer does not answer"} {
		assert.Contains(t, out.String(), want)
	}
}

// TestWireFails checks that addresses of other machines are rejected.
func TestWireFails(t *testing.T) {
	var out strings.Builder
	assert.ErrorContains(t, run("192.0.2.1", peer, &out), "none of this machine's addresses")
	assert.ErrorContains(t, run(local, "192.0.2.1", &out), "did not start")
}
