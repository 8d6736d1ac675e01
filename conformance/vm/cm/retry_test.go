// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// TestDisconnectAfterRejection checks that neither side gets a DISCONNECTED event for a connection that was never
// established.
func TestDisconnectAfterRejection(t *testing.T) {
	l := listen(t, 7561)
	server := make(chan error, 1)
	go func() {
		id, _, err := l.GetRequest(withTimeout(t))
		if err == nil {
			err = id.Reject(nil)
		}
		if err == nil {
			id.Disconnect(withTimeout(t)) // C may return an error
			err = id.Close()
		}
		server <- err
	}()
	id := resolve(t, address(t, 7561))
	assert.ErrorContains(t, id.Connect(withTimeout(t), nil, nil), "the peer's program rejected it")
	start := time.Now()
	id.Disconnect(withTimeout(t))
	assert.Less(t, time.Since(start), 5*time.Second)
	require.NoError(t, <-server)
}

// TestRetry checks that an ID can connect again with the same objects after it was rejected by a peer that did not
// listen yet.
func TestRetry(t *testing.T) {
	at := address(t, 7562)
	id := resolve(t, at)
	t.Cleanup(func() { assert.NoError(t, id.Close()) }) // closes the current ID
	id.SetValue("client")
	mr, err := id.RegMsgs(make([]byte, 64))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, mr.Close()) })
	require.NoError(t, id.PostRecv(1, mr.Bytes(), mr))
	qp := id.QP()
	for range 2 {
		assert.ErrorContains(t, id.Connect(withTimeout(t), nil, nil), "no listener")
		next, err := id.Retry()
		require.NoError(t, err)
		_, err = id.Device()
		assert.ErrorIs(t, err, rdma.ErrClosed)
		assert.Nil(t, id.QP())
		id = next
		assert.Equal(t, "client", id.Value())
		assert.Same(t, qp, id.QP())
		require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, at, time.Second))
		require.NoError(t, id.ResolveRoute(withTimeout(t), time.Second))
		require.NoError(t, id.PostRecv(2, mr.Bytes(), mr))
	}

	l := listen(t, 7562)
	l.SetValue("server")
	server, sent := make(chan error, 1), make(chan struct{})
	go func() {
		server <- func() error {
			id, _, err := l.GetRequest(withTimeout(t))
			if err != nil {
				return err
			}
			defer id.Close()
			assert.Equal(t, "server", id.Value())
			if _, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{}); err != nil {
				return err
			}
			if err = id.Accept(withTimeout(t), nil, nil); err != nil {
				return err
			}
			if err = id.PostSend(3, []byte("hello"), nil, ibv.SEND_INLINE); err != nil {
				return err
			}
			_, err = id.GetSendComp(withTimeout(t))
			close(sent) // see TestMessageBothWays
			if err != nil {
				return err
			}
			return id.Disconnect(withTimeout(t))
		}()
	}()
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	wc, err := id.GetRecvComp(withTimeout(t))
	for err == nil && wc.Status == ibv.WC_WR_FLUSH_ERR { // from rejected attempts
		wc, err = id.GetRecvComp(withTimeout(t))
	}
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.EqualValues(t, 2, wc.WRID)
	assert.Equal(t, "hello", string(mr.Bytes()[:wc.ByteLen]))
	select {
	case <-sent:
	case err := <-server:
		t.Fatal("the server: ", err)
	}
	require.NoError(t, id.Disconnect(withTimeout(t)))
	require.NoError(t, <-server)
}

// TestRetryByEvents checks that the new ID uses the channel of the old one.
func TestRetryByEvents(t *testing.T) {
	s := newScene(t)
	at := address(t, 7563)
	id := withQP(t, s.resolved(rdmacm.PS_TCP, at))
	id.SetValue(7)
	require.NoError(t, id.Connect(withTimeout(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_REJECTED)
	next, err := id.Retry()
	keep(t, next, err)
	require.NoError(t, next.ResolveAddr(withTimeout(t), netip.AddrPort{}, at, time.Second))
	assert.Equal(t, 7, expect(t, s.ch, rdmacm.CM_EVENT_ADDR_RESOLVED).ID.Value())
	assert.Equal(t, ibv.QPS_RESET, next.QP().State())
	require.NoError(t, next.ResolveRoute(withTimeout(t), time.Second))
	expect(t, s.ch, rdmacm.CM_EVENT_ROUTE_RESOLVED)
	assert.Equal(t, ibv.QPS_INIT, next.QP().State())
	s.listen(rdmacm.PS_TCP, at)
	require.NoError(t, next.Connect(withTimeout(t), nil, nil))
	request := expect(t, s.server, rdmacm.CM_EVENT_CONNECT_REQUEST)
	assert.Nil(t, request.ID.Value())
	other := withQP(t, request.ID)
	keep(t, other, nil)
	require.NoError(t, other.Accept(withTimeout(t), nil, nil))
	expect(t, s.ch, rdmacm.CM_EVENT_ESTABLISHED)
	assert.Equal(t, ibv.QPS_RTS, next.QP().State())
}

func TestDatagramsAreNotRetried(t *testing.T) {
	id, err := createID(rdmacm.PS_UDP)
	keep(t, id, err)
	_, err = id.Retry()
	assert.ErrorContains(t, err, "the ID is for datagrams: only connections can be retried")
}

// TestAddressesForC converts addresses to and from C.
func TestAddressesForC(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:7471")
	assert.Equal(t, at, cm.AddrPort(cm.Sockaddr(at)))
	id := resolve(t, address(t, 7564))
	assert.Equal(t, id.PeerAddr(), cm.AddrPort(id.C().Route.Addr.DstAddr()))
	assert.False(t, cm.AddrPort(nil).IsValid())
}
