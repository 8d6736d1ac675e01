// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// TestOptions checks that each option is accepted and, where observable, takes effect.
func TestOptions(t *testing.T) {
	at := address(t, 7487)
	for _, reuse := range []bool{false, true} {
		a, err := createID(rdmacm.PS_TCP)
		keep(t, a, err)
		b, err := createID(rdmacm.PS_TCP)
		keep(t, b, err)
		require.NoError(t, a.SetReuseAddr(reuse))
		require.NoError(t, b.SetReuseAddr(reuse))
		require.NoError(t, a.Bind(at))
		if err := b.Bind(at); reuse {
			assert.NoError(t, err)
		} else {
			assert.ErrorIs(t, err, syscall.EADDRINUSE)
		}
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
	id, err := createID(rdmacm.PS_TCP)
	keep(t, id, err)
	assert.NoError(t, id.SetToS(0x20))
	assert.NoError(t, id.SetAFOnly(true))
	assert.NoError(t, id.SetAckTimeout(16))
	assert.Error(t, id.SetAckTimeout(32))
	assert.ErrorContains(t, id.Bind(netip.MustParseAddrPort("10.99.0.1:1")), "not an address of this machine")
	require.NoError(t, id.Bind(netip.AddrPortFrom(netip.IPv6Unspecified(), 7488)))
	assert.ErrorIs(t, id.SetReuseAddr(false), syscall.EINVAL, "the ID is bound")
	assert.NoError(t, id.SetReuseAddr(true))
	assert.NoError(t, id.Listen(1))
	assert.ErrorIs(t, id.SetReuseAddr(true), syscall.EINVAL, "the ID is listening")
	assert.ErrorIs(t, id.SetAFOnly(false), syscall.EINVAL, "the ID is listening")
	_, err = id.Device()
	assert.ErrorContains(t, err, "no device yet", "an ID of all devices")
	v4, err := createID(rdmacm.PS_TCP)
	keep(t, v4, err)
	assert.NoError(t, v4.Bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 7488)), "IPv6 alone leaves IPv4 free")
	assert.ErrorContains(t, v4.Connect(withTimeout(t), nil, make([]byte, 8)), "not resolved")
	assert.ErrorContains(t, resolve(t, at).Connect(withTimeout(t), nil, make([]byte, 57)),
		"exceed the maximum of this service (connected), 56")
}

// TestLateAckTimeout checks that C accepts an ACK timeout for a connected ID without applying it. That is why
// SetAckTimeout rejects it.
func TestLateAckTimeout(t *testing.T) {
	s := newScene(t)
	at := address(t, 7496)
	s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.SetAckTimeout(15))
	connected := make(chan error, 1)
	require.NoError(t, id.Migrate(nil))
	go func() { connected <- id.Connect(withTimeout(t), nil, nil) }()
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	require.NoError(t, <-connected)

	maxRetry := uint8(20)
	assert.ErrorContains(t, id.SetAckTimeout(maxRetry), "already connected")
	assert.NoError(t, librdmacm.SetOption(id.C(), rdmacm.OPTION_ID, rdmacm.OPTION_ID_ACK_TIMEOUT,
		uintptr(unsafe.Pointer(&maxRetry)), 1), "C accepts it")
	attr, _, err := id.QP().Query(ibv.QP_TIMEOUT)
	require.NoError(t, err)
	assert.EqualValues(t, 15, attr.Timeout)
}

// TestMigrate checks that events of a connection arrive at the channel to which its ID was moved.
func TestMigrate(t *testing.T) {
	s := newScene(t)
	at := address(t, 7489)
	s.listen(rdmacm.PS_TCP, at)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	require.NoError(t, id.Migrate(nil))
	assert.True(t, id.Synchronous())
	connected := make(chan error, 1)
	go func() { connected <- id.Connect(withTimeout(t), nil, nil) }()
	other := withQP(t, keep(t, expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST).ID, nil))
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	require.NoError(t, <-connected)
	expect(t, s.server, rdmacm.CM_EVENT_ESTABLISHED)
	third, err := createEventChannel()
	keep(t, third, err)
	require.NoError(t, id.Migrate(third))
	require.NoError(t, other.Disconnect(withTimeout(t)))
	expect(t, third, rdmacm.CM_EVENT_DISCONNECTED)
	require.NoError(t, id.Migrate(s.ch))
}
