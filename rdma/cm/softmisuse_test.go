// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"math"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftMappedGroups: an IPv4 group and its IPv4-mapped form are one group, and the ID can be closed.
func TestSoftMappedGroups(t *testing.T) {
	f := newFabric(t, soft.Options{})
	plain, mapped := netip.MustParseAddrPort("239.1.1.1:5"), netip.MustParseAddrPort("[::ffff:239.1.1.1]:5")
	for _, names := range [][2]netip.AddrPort{{plain, mapped}, {mapped, plain}} {
		id, err := bound(t, f, rdmacm.PS_UDP, "127.0.0.1:0")
		require.NoError(t, err)
		_, _, err = id.Join(timeout(t), names[0])
		require.NoError(t, err)
		require.NoError(t, id.Leave(names[1]))
		assert.Empty(t, id.groups)
		err = id.Leave(names[0])
		assert.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		assert.ErrorContains(t, err, "the ID has not joined the group")
		require.NoError(t, id.Close())
	}
}

// TestSoftSharedReceiveQueueLater: receives posted to a shared receive queue may have more entries than those posted to
// the ID's queue pair before.
func TestSoftSharedReceiveQueueLater(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	s.attrs.Cap.MaxRecvSGE = 1
	id := s.withQP(s.resolved())
	mr, err := id.RegMsgs(make([]byte, 64))
	require.NoError(t, err)
	require.NoError(t, id.PostRecv(1, mr.Bytes(), mr))
	srq, err := id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 4, MaxSGE: 3}, rdma.QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, id.PostRecvv(2, []ibv.SGE{mr.SGE(0, 8), mr.SGE(8, 8), mr.SGE(16, 8)}))
	require.NoError(t, id.QP().Close())
	require.NoError(t, srq.Close())
	require.NoError(t, mr.Close())
}

// connectedWithMemory returns both ends of a connection with 8 bytes of registered memory each.
func connectedWithMemory(t *testing.T) (a, b *ID, ma, mb *rdma.MR) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	s.connect()
	a, b = s.client, s.peer
	ma, err := a.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	mb, err = b.RegMsgs(make([]byte, 8))
	require.NoError(t, err)
	return a, b, ma, mb
}

// TestSoftEmptyMessages: empty messages from nil slices, with and without a region.
func TestSoftEmptyMessages(t *testing.T) {
	a, b, ma, mb := connectedWithMemory(t)
	for i, send := range []func() error{
		func() error { return a.PostSend(1, nil, nil, 0) },
		func() error { return a.PostSend(1, nil, ma, 0) },
		func() error { return a.PostSend(1, []byte{}, ma, 0) },
		func() error { return a.PostSend(1, nil, nil, ibv.SEND_INLINE) },
		func() error { return a.PostSendv(1, nil, 0) },
	} {
		into := [][]byte{nil, {}, mb.Bytes(), mb.Bytes()[8:]}[i%4]
		require.NoError(t, b.PostRecv(uint64(i), into, mb), i)
		require.NoError(t, send(), i)
		_, err := a.GetSendComp(timeout(t))
		require.NoError(t, err)
		wc, err := b.GetRecvComp(timeout(t))
		require.NoError(t, err)
		assert.NoError(t, rdma.CompletionErr(&wc))
		assert.EqualValues(t, i, wc.WRID)
		assert.Zero(t, wc.ByteLen)
	}
	for _, close := range []func() error{a.QP().Close, b.QP().Close, ma.Close, mb.Close} {
		require.NoError(t, close())
	}
}

// TestSoftHelpersDoNotAllocate: helpers post one request at a time without allocating.
func TestSoftHelpersDoNotAllocate(t *testing.T) {
	a, b, ma, mb := connectedWithMemory(t)
	sges, into, ctx := []ibv.SGE{ma.SGE(0, 8)}, []ibv.SGE{mb.SGE(0, 8)}, timeout(t)
	var failed error
	round := func() {
		for _, err := range [...]error{
			b.PostRecv(1, mb.Bytes(), mb), a.PostSend(1, ma.Bytes(), ma, 0), b.PostRecvv(2, into),
			a.PostSendv(2, sges, 0),
			b.PostRecv(3, mb.Bytes(), mb), a.PostSend(3, ma.Bytes(), nil, ibv.SEND_INLINE),
		} {
			failed = errors.Join(failed, err)
		}
		for range 3 {
			_, err := a.GetSendComp(ctx)
			_, err2 := b.GetRecvComp(ctx)
			failed = errors.Join(failed, err, err2)
		}
	}
	round() // allocates memory that is reused later
	allocations := testing.AllocsPerRun(100, round)
	require.NoError(t, failed)
	assert.Zero(t, allocations)
	for _, close := range []func() error{a.QP().Close, b.QP().Close, ma.Close, mb.Close} {
		require.NoError(t, close())
	}
}

func TestTimeoutConversion(t *testing.T) {
	for d, want := range map[time.Duration]int{
		0: 0, -1: 0, math.MinInt64: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, 2 * time.Second: 2000,
		math.MaxInt64:                          math.MaxInt32,
		(math.MaxInt32 - 1) * time.Millisecond: math.MaxInt32 - 1,
	} {
		assert.Equal(t, want, milliseconds(d), "%d", d)
	}
}

// TestSoftDestinationOfHints: the destination in hints replaces a node and a service.
func TestSoftDestinationOfHints(t *testing.T) {
	f := newFabric(t, soft.Options{})
	to, from := netip.MustParseAddrPort("[::1]:7471"), netip.MustParseAddrPort("127.0.0.2:0")
	info, err := GetAddrInfoOn(timeout(t), f, "", "", Hints{Destination: to})
	require.NoError(t, err)
	assert.Equal(t, to, info.Destination())
	assert.False(t, info.Source().IsValid())
	info.Close()
	info, err = GetAddrInfoOn(timeout(t), f, "127.0.0.1", "1", Hints{Destination: to, Source: from})
	require.NoError(t, err)
	defer info.Close()
	assert.Equal(t, "127.0.0.1:1", info.Destination().String())
	assert.Equal(t, from, info.Source())
}

// TestSoftWrongKindOfID: options and groups are rejected for IDs that do not support them.
func TestSoftWrongKindOfID(t *testing.T) {
	f := newFabric(t, soft.Options{})
	datagrams, err := bound(t, f, rdmacm.PS_UDP, "127.0.0.1:0")
	require.NoError(t, err)
	streams, err := bound(t, f, rdmacm.PS_TCP, "127.0.0.1:0")
	require.NoError(t, err)
	_, _, ofStreams := streams.Join(timeout(t), netip.MustParseAddrPort("239.1.1.1:0"))
	_, _, ofNobody := datagrams.Join(timeout(t), netip.MustParseAddrPort("127.0.0.2:0"))
	for reason, errs := range map[string][]error{
		"not for datagrams":                            {datagrams.SetAckTimeout(9)},
		"needs a multicast address, and a datagram ID": {ofStreams, ofNobody},
		"of the family that it is bound to": {streams.ResolveAddr(timeout(t),
			netip.AddrPort{}, netip.MustParseAddrPort("[::1]:1"), time.Second)},
		"already bound": {streams.Bind(netip.MustParseAddrPort("127.0.0.1:0"))},
		"address not resolved": {newSoftID(t, f,
			rdmacm.PS_TCP).ResolveRoute(timeout(t), time.Second)},
	} {
		for _, err := range errs {
			assert.ErrorIs(t, err, syscall.EINVAL, reason)
			assert.ErrorContains(t, err, reason)
		}
	}
	require.NoError(t, streams.Listen(1))
	assert.ErrorContains(t, streams.Listen(1), "the ID is already listening or connecting")
}

// TestSoftLateAckTimeout: setting an ACK timeout that would no longer take effect fails.
func TestSoftLateAckTimeout(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	s.connect()
	for _, id := range []*ID{s.client, s.peer} {
		err := id.SetAckTimeout(9)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.ErrorContains(t, err, "call SetAckTimeout before Connect or Accept")
	}
	early, err := bound(t, s.f, rdmacm.PS_TCP, "127.0.0.1:0")
	require.NoError(t, err)
	assert.NoError(t, early.SetAckTimeout(9))
}
