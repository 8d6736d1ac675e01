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

// Addresses that no other package's tests have: those of another user's process could not be shared.
const here, there = "127.0.78.1", "127.0.78.2"

// TestWire: all of it works between two processes.
func TestWire(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(here, there, &out))
	for _, want := range []string{"soft@" + here + " in process", "ping-pong", "the same bytes",
		"200 OK, the same digest", "sent again", "the peer does not answer"} {
		assert.Contains(t, out.String(), want)
	}
}

// TestWireFails: errors are reported.
func TestWireFails(t *testing.T) {
	var out strings.Builder
	assert.ErrorContains(t, run("192.0.2.1", there, &out), "none of this machine's addresses")
	assert.ErrorContains(t, run(here, "192.0.2.1", &out), "did not start")
}
