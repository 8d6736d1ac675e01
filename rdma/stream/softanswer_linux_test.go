// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftUnusedAddress: over a wire, an address without a process does not answer. Every error about it contains a
// hint.
func TestSoftUnusedAddress(t *testing.T) {
	f := newFabric(t, soft.Options{Devices: []soft.DeviceOptions{{Wire: true,
		Address: netip.MustParseAddr("127.0.32.1")}}})
	const hint = "perhaps no process has a device at 127.0.32.2: start the listener there, on an adapter or with " +
		"GOVERBS_DEVICE=soft@127.0.32.2, and allow UDP port 4791 in firewalls"
	config := Config{Backend: f, HandshakeTimeout: 50 * time.Millisecond}
	_, err := dialer(config).Dial(soon(t), "127.0.32.2:1")
	assert.ErrorIs(t, err, syscall.ETIMEDOUT)
	assert.ErrorContains(t, err, "no answer from the listener: "+hint)
}
