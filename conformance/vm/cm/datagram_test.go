// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

func TestDatagramEvents(t *testing.T) {
	s := newScene(t)
	at := address(t, 7485)
	id := withQP(t, s.resolved(rdmacm.PS_UDP, at))
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	assert.Equal(t, 1, expect(t, s.ch, rdmacm.CM_EVENT_UNREACHABLE).Status, "no listener: IB_SIDR_UNSUPPORTED")
	s.listen(rdmacm.PS_UDP, at)
	id = withQP(t, s.resolved(rdmacm.PS_UDP, at))
	require.NoError(t, id.Connect(withTimeout(t), nil, []byte("where are you")))
	e := expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Equal(t, append([]byte("where are you"), make([]byte, 167)...), e.PrivateData)
	other := withQP(t, keep(t, e.ID, nil))
	mr, err := other.RegMsgs(make([]byte, 128))
	require.NoError(t, err)
	require.NoError(t, other.PostRecv(1, mr.Bytes(), mr))
	require.NoError(t, other.Accept(withTimeout(t), &rdmacm.ConnParam{QPNum: other.QP().Num()}, []byte("here")))
	e = expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, other.QP().Num(), e.UD.QPNum)
	assert.EqualValues(t, rdmacm.UDP_QKEY, e.UD.QKey)
	pd, err := id.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(&e.UD.AHAttr)
	keep(t, ah, err)
	require.NoError(t, id.PostUDSend(2, []byte("datagram"), nil, ibv.SEND_INLINE, ah, e.UD.QPNum))
	wc, err := other.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	const grh = 40
	assert.Equal(t, "datagram", string(mr.Bytes()[grh:wc.ByteLen]))
	require.NoError(t, other.QP().Close())
	require.NoError(t, mr.Close())
}

func TestMulticastEvents(t *testing.T) {
	s := newScene(t)
	group := netip.MustParseAddrPort("239.7.7.7:0")
	join := func() (*cm.ID, cm.Event) {
		id, err := s.ch.CreateID(rdmacm.PS_UDP)
		keep(t, id, err)
		require.NoError(t, id.Bind(address(t, 0)))
		withQP(t, id)
		number, _, err := id.Join(withTimeout(t), group)
		require.NoError(t, err)
		e, err := s.ch.Event(withTimeout(t))
		require.NoError(t, err)
		assert.Same(t, id, e.ID)
		assert.Equal(t, number, e.Group)
		return id, e
	}
	a, e := join()
	require.Equal(t, rdmacm.CM_EVENT_MULTICAST_JOIN, e.Type)
	b, _ := join()
	mr, err := b.RegMsgs(make([]byte, 128))
	require.NoError(t, err)
	require.NoError(t, b.PostRecv(1, mr.Bytes(), mr))
	pd, err := a.PD()
	require.NoError(t, err)
	ah, err := pd.CreateAH(&e.UD.AHAttr)
	keep(t, ah, err)
	require.NoError(t, a.PostUDSend(2, []byte("to all"), nil, ibv.SEND_INLINE, ah, e.UD.QPNum))
	wc, err := b.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.Equal(t, "to all", string(mr.Bytes()[40:wc.ByteLen]))
	require.NoError(t, b.Leave(group))
	assert.ErrorIs(t, b.Leave(group), syscall.EADDRNOTAVAIL)
	_, _, err = b.JoinEx(withTimeout(t), group, rdmacm.MC_JOIN_FLAG_FULLMEMBER)
	require.NoError(t, err)
	expect(t, s.ch, rdmacm.CM_EVENT_MULTICAST_JOIN)
	d, err := a.Device()
	require.NoError(t, err)
	attr, err := d.Query()
	require.NoError(t, err)
	for range attr.MaxMcastQPAttach {
		if _, e = join(); e.Type != rdmacm.CM_EVENT_MULTICAST_JOIN {
			break
		}
	}
	assert.Equal(t, rdmacm.CM_EVENT_MULTICAST_ERROR, e.Type, "more queue pairs than the device attaches to a group")
	assert.ErrorContains(t, b.QP().Close(), "attached to a multicast group")
	require.NoError(t, b.Leave(group))
	require.NoError(t, b.QP().Close())
	require.NoError(t, mr.Close())
}

// TestIPv6Multicast checks that the software device, like Linux, joins no IPv6 groups over RoCE v2.
func TestIPv6Multicast(t *testing.T) {
	s := newScene(t)
	id, err := s.ch.CreateID(rdmacm.PS_UDP)
	keep(t, id, err)
	require.NoError(t, id.Bind(address(t, 0)))
	withQP(t, id)
	_, _, err = id.Join(withTimeout(t), netip.MustParseAddrPort("[ff15::7:7]:0"))
	assert.ErrorIs(t, err, rdma.ErrNotSupported)
	assert.ErrorContains(t, err, "ENOTSUPP, errno 524")
	_, _, err = id.Join(withTimeout(t), netip.MustParseAddrPort("239.7.7.8:0"))
	require.NoError(t, err)
	expect(t, s.ch, rdmacm.CM_EVENT_MULTICAST_JOIN)
	require.NoError(t, id.Leave(netip.MustParseAddrPort("239.7.7.8:0")))
}
