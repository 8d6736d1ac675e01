// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftUnusedAddress: over a wire, an address without a process does not respond. Every error about it contains a
// hint.
func TestSoftUnusedAddress(t *testing.T) {
	f := newFabric(t, soft.Options{Devices: []soft.DeviceOptions{{Wire: true,
		Address: netip.MustParseAddr("127.0.32.1")}}})
	const hint = "perhaps no process has a device at 127.0.32.2: start the listener there, on an adapter or with " +
		"GOVERBS_DEVICE=soft@127.0.32.2, and allow UDP port 4791 in firewalls"
	id := newSoftID(t, f, rdmacm.PS_TCP)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, netip.MustParseAddrPort("127.0.32.2:1"), time.Second))
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	_, err := id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err = id.Connect(ctx, nil, nil)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, hint)
}

// TestSoftUnreachableHint: RDMA_CM_EVENT_UNREACHABLE contains the hint, too. The virtual clock avoids waiting a minute.
func TestSoftUnreachableHint(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{Virtual: true})
	id := newSoftID(t, s.f, rdmacm.PS_TCP)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.2:1"), time.Second))
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	_, err := id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	s.f.SetLink("soft1", false)
	err = id.Connect(timeout(t), nil, nil)
	var event *EventError
	require.ErrorAs(t, err, &event)
	assert.Equal(t, rdmacm.CM_EVENT_UNREACHABLE, event.Event.Type)
	assert.ErrorContains(t, err,
		"the peer does not answer: check that its program calls Accept, and that its link is up (status")
}
