// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

var qpAttr = ibv.QPInitAttr{QPType: ibv.QPT_RC, Cap: testbed.Caps, SQSigAll: 1}

// listen creates a synchronous listener.
func listen(t testing.TB, port uint16) *cm.ID {
	t.Helper()
	at := address(t, port)
	id, err := createID(rdmacm.PS_TCP)
	l := keep(t, id, err)
	require.NoError(t, l.Bind(at))
	require.NoError(t, l.Listen(8))
	return l
}

// resolve creates a synchronous ID with a queue pair that is ready to connect.
func resolve(t testing.TB, to netip.AddrPort) *cm.ID {
	t.Helper()
	own, err := createID(rdmacm.PS_TCP)
	id := keep(t, own, err)
	require.NoError(t, id.ResolveAddr(withTimeout(t), netip.AddrPort{}, to, time.Second))
	require.NoError(t, id.ResolveRoute(withTimeout(t), time.Second))
	_, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	return id
}

// TestMessageBothWays disconnects only after both ends have all completions. Soft-RoCE completes a receive before it
// acknowledges the message. If an end disconnected in between, it would never acknowledge, and the peer's send would
// fail only after all retries, which take longer than the test's timeout.
func TestMessageBothWays(t *testing.T) {
	l := listen(t, 7471)
	server, done := make(chan error, 1), make(chan struct{})
	go func() {
		server <- func() error {
			id, e, err := l.GetRequest(withTimeout(t))
			if err != nil {
				return err
			}
			defer id.Close()
			assert.Equal(t, "from the client", string(e.PrivateData[:15]))
			assert.Len(t, e.PrivateData, 56, "padded")
			if _, err = id.CreateQP(nil, &qpAttr, rdma.QueueOptions{}); err != nil {
				return err
			}
			mr, err := id.RegMsgs(make([]byte, 64))
			if err != nil {
				return err
			}
			defer mr.Close()
			if err = id.PostRecv(1, mr.Bytes(), mr); err != nil {
				return err
			}
			if err = id.Accept(withTimeout(t), nil, []byte("from the server")); err != nil {
				return err
			}
			wc, err := id.GetRecvComp(withTimeout(t))
			if err != nil {
				return err
			}
			assert.EqualValues(t, 1, wc.WRID)
			if err = id.PostSend(2, mr.Bytes()[:wc.ByteLen], mr, 0); err != nil {
				return err
			}
			if wc, err = id.GetSendComp(withTimeout(t)); err != nil {
				return err
			}
			assert.EqualValues(t, 2, wc.WRID)
			select {
			case done <- struct{}{}: // the client also has its completions
			case <-withTimeout(t).Done():
				return errors.New("the client has not received its completions")
			}
			return id.Disconnect(withTimeout(t))
		}()
	}()
	id := resolve(t, address(t, 7471))
	mr, err := id.RegMsgs(make([]byte, 64))
	require.NoError(t, err)
	defer mr.Close()
	require.NoError(t, id.PostRecv(3, mr.Bytes(), mr))
	answer, err := id.ConnectEvent(withTimeout(t), nil, []byte("from the client"))
	require.NoError(t, err)
	assert.Equal(t, "from the server", string(answer.PrivateData[:15]))
	assert.Len(t, answer.PrivateData, 196, "padded")
	require.NoError(t, id.PostSend(4, []byte("hello"), nil, ibv.SEND_INLINE))
	wc, err := id.GetSendComp(withTimeout(t))
	require.NoError(t, err)
	require.NoError(t, rdma.CompletionErr(&wc))
	assert.EqualValues(t, 4, wc.WRID)
	wc, err = id.GetRecvComp(withTimeout(t))
	require.NoError(t, err)
	assert.EqualValues(t, 3, wc.WRID)
	assert.Equal(t, "hello", string(mr.Bytes()[:wc.ByteLen]))
	select {
	case <-done:
	case err := <-server:
		t.Fatal("the server: ", err)
	}
	require.NoError(t, id.Disconnect(withTimeout(t)))
	require.NoError(t, <-server)
}
