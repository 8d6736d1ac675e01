// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestPrivateData checks that each side gets the other side's data, padded with zeros.
func TestPrivateData(t *testing.T) {
	r := connected(t, options{private: "from a", answer: "from b"})
	padded := func(s string, size int) []byte { return append([]byte(s), make([]byte, size-len(s))...) }
	assert.Equal(t, padded("from b", 196), r.a.conn.PrivateData())
	assert.Equal(t, padded("from a", 56), r.b.conn.PrivateData())
}

func TestRequestPrivateData(t *testing.T) {
	r := newPair(t, options{})
	out, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	require.NoError(t, err)
	assert.Nil(t, out.PrivateData())
	a, err := out.Connect([]byte("please"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	assert.Nil(t, a.PrivateData())
	in, err := r.ep.NextConnRequest(timeout(t), nil)
	require.NoError(t, err)
	assert.True(t, bytes.HasPrefix(in.PrivateData(), []byte("please")))
	require.NoError(t, in.Close())
	assert.Equal(t, Rejected, r.event(a))

	out, err = r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	require.NoError(t, err)
	_, err = out.Connect([]byte(strings.Repeat("x", 57)))
	assert.ErrorContains(t, err, "57 bytes")
	_, err = out.Connect(nil)
	assert.ErrorIs(t, err, rdma.ErrClosed, "the request has ended")
	require.NoError(t, out.Close())
}

// TestRejected checks that closing a peer's request rejects it.
func TestRejected(t *testing.T) {
	r := newPair(t, options{})
	done := make(chan error)
	ctx := timeout(t)
	go func() {
		c, err := r.a.peer.Connect(ctx, r.ep.Addr().String(), nil, nil)
		if c != nil {
			c.Close()
		}
		done <- err
	}()
	in, err := r.ep.NextConnRequest(ctx, nil)
	require.NoError(t, err)
	require.NoError(t, in.Close())
	require.NoError(t, in.Close())
	err = <-done
	var event *EventError
	require.ErrorAs(t, err, &event)
	assert.Equal(t, Rejected, event.Event)
	assert.ErrorIs(t, err, ErrProvider)
}

// TestTooLarge checks that a request of a peer whose queues cannot be created is rejected.
func TestTooLarge(t *testing.T) {
	r := newPair(t, options{})
	large := &ConnConfig{SQSize: 1 << 30}
	_, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), large)
	assert.ErrorIs(t, err, ErrProvider)
	out, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	require.NoError(t, err)
	c, err := out.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err = r.ep.NextConnRequest(timeout(t), large)
	assert.ErrorIs(t, err, ErrProvider)
	assert.Equal(t, Rejected, r.event(c))
}

// TestNoListener checks that a request that no program receives is rejected.
func TestNoListener(t *testing.T) {
	r := newPair(t, options{})
	_, err := r.a.peer.Connect(timeout(t), addressB+":1", nil, nil)
	var event *EventError
	require.ErrorAs(t, err, &event)
	assert.Equal(t, Rejected, event.Event)
}

// TestListenerCloses checks that Close rejects pending requests and keeps connections.
func TestListenerCloses(t *testing.T) {
	r := connected(t, options{})
	out, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	require.NoError(t, err)
	c, err := out.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, r.ep.Close())
	assert.Equal(t, Rejected, r.event(c))
	_, err = r.ep.NextConnRequest(timeout(t), nil)
	assert.ErrorIs(t, err, rdma.ErrClosed)
	require.NoError(t, r.a.conn.Write(nil, 0, nil, 0, 0, Always, 1))
	r.a.done(1)
}

// TestRequestOutlivesListener checks that a request can be accepted after the endpoint was closed.
func TestRequestOutlivesListener(t *testing.T) {
	r := newPair(t, options{})
	out, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	require.NoError(t, err)
	a, err := out.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	in, err := r.ep.NextConnRequest(timeout(t), nil)
	require.NoError(t, err)
	require.NoError(t, r.ep.Close())
	b, err := in.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	assert.Equal(t, Established, r.event(a))
	assert.Equal(t, Established, r.event(b))
}

// TestUnreachable checks that a peer that does not respond is unreachable after the connection manager's timeout.
func TestUnreachable(t *testing.T) {
	r := newPair(t, options{})
	out, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	require.NoError(t, err)
	require.True(t, r.fabric.SetLink("soft1", false))
	start := r.fabric.Now()
	c, err := out.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	assert.Equal(t, Unreachable, r.event(c))
	assert.Less(t, r.fabric.Now()-start, 2*time.Minute)
}

// TestClosed checks that when one side disconnects, the other side gets Closed, and that this side gets it when both
// have disconnected. Operations in progress complete.
func TestClosed(t *testing.T) {
	r := connected(t, options{})
	remoteMR := r.b.memory(64, everyUsage)
	require.NoError(t, r.b.conn.Recv(remoteMR, 0, 64, 3))
	require.NoError(t, r.a.conn.Disconnect())
	assert.Equal(t, Closed, r.event(r.b.conn))
	require.NoError(t, r.b.conn.Disconnect())
	assert.Equal(t, Closed, r.event(r.a.conn))
	wc := completion(t, r.b.conn.CQ())
	assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
	assert.Equal(t, uint64(3), wc.WRID)
	require.NoError(t, r.a.conn.Write(nil, 0, nil, 0, 0, OnError, 4))
	wc = completion(t, r.a.conn.CQ())
	assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
	assert.Equal(t, uint64(4), wc.WRID)
}

// TestPeerProcessKilled checks that a peer whose process is killed disconnects: the kernel closes the process's
// objects.
func TestPeerProcessKilled(t *testing.T) {
	r := connected(t, options{})
	remoteMR := r.b.memory(64, everyUsage)
	here, to := r.a.memory(64, everyUsage), remote(t, remoteMR)
	require.NoError(t, r.b.conn.Close())
	assert.Equal(t, Closed, r.event(r.a.conn))
	err := r.a.conn.Write(to, 0, here, 0, 8, Always, 1)
	if err == nil {
		wc := completion(t, r.a.conn.CQ())
		err = r.a.conn.CompletionErr(&wc)
	}
	assert.Error(t, err)
}

// TestDeviceRemoved checks that the side whose device is removed gets Lost.
func TestDeviceRemoved(t *testing.T) {
	r := connected(t, options{})
	require.True(t, r.fabric.RemoveDevice("soft0"))
	assert.Equal(t, Lost, r.event(r.a.conn))
}

// TestLinkIsCut checks that when the link is cut, an operation in progress fails after its retries, as do later ones,
// and that disconnecting causes an event.
func TestLinkIsCut(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to := remote(t, remoteMR)
		require.True(t, r.fabric.SetLink("soft1", false))
		start := r.fabric.Now()
		require.NoError(t, r.a.conn.Write(to, 0, localMR, 0, 8, OnError, 1))
		require.NoError(t, r.a.conn.Flush(to, 0, 8, Visibility, OnError, 2))
		require.NoError(t, r.a.conn.AtomicWrite(to, 0, [8]byte{}, Always, 3))
		for id, status := range []ibv.WCStatus{ibv.WC_RETRY_EXC_ERR, ibv.WC_WR_FLUSH_ERR, ibv.WC_WR_FLUSH_ERR} {
			wc := completion(t, r.a.conn.CQ())
			assert.Equal(t, status, wc.Status)
			assert.Equal(t, uint64(id+1), wc.WRID)
		}
		assert.Less(t, r.fabric.Now()-start, time.Minute)
		require.NoError(t, r.a.conn.Disconnect())
		assert.Equal(t, Closed, r.event(r.a.conn))
	})
}

// TestLostMessages checks that lost messages delay operations without failing them.
func TestLostMessages(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to := remote(t, remoteMR)
		require.NoError(t, r.fabric.SetFaults(soft.Faults{Seed: 1, Drop: 0.2, Duplicate: 0.2, Delay: 0.2,
			Late: time.Millisecond}))
		for i := range uint64(200) {
			localMR.Bytes()[0] = byte(i)
			require.NoError(t, r.a.conn.Write(to, 0, localMR, 0, 1, OnError, 0))
			require.NoError(t, r.a.conn.Flush(to, 0, 1, Visibility, OnError, 0))
			require.NoError(t, r.a.conn.AtomicWrite(to, 8, [8]byte{byte(i)}, Always, i))
			r.a.done(i)
			require.Equal(t, byte(i), remoteMR.Bytes()[0])
			require.Equal(t, byte(i), remoteMR.Bytes()[8])
		}
		require.NoError(t, r.fabric.SetFaults(soft.Faults{}))
		assert.NotZero(t, r.fabric.Counters().Lost)
	})
}

// TestWaitsEnd checks that waits ended by a context return librpma's codes.
func TestWaitsEnd(t *testing.T) {
	r := connected(t, options{connA: &ConnConfig{SharedChannel: true}})
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(err error, code Code) {
		t.Helper()
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, code, CodeOf(err))
	}
	_, err := r.a.conn.NextEvent(canceled)
	check(err, ErrNoEvent)
	_, err = r.ep.NextConnRequest(canceled, nil)
	check(err, ErrNoEvent)
	wcs := make([]ibv.WC, 1)
	_, err = r.b.conn.CQ().Wait(canceled, wcs)
	check(err, ErrNoCompletion)
	_, _, err = r.a.conn.Wait(canceled)
	check(err, ErrNoCompletion)
	_, err = r.a.conn.CQ().Wait(canceled, wcs)
	assert.Equal(t, ErrSharedChannel, CodeOf(err))
	_, _, err = r.b.conn.Wait(canceled)
	assert.Equal(t, ErrNotSharedChannel, CodeOf(err))
}

// TestSharedChannel checks that Conn.Wait waits for both queues.
func TestSharedChannel(t *testing.T) {
	r := connected(t, options{connA: &ConnConfig{SharedChannel: true, RecvCQSize: 10}})
	localMR, remote := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	wcs := make([]ibv.WC, 4)
	for i := range uint64(20) {
		require.NoError(t, r.a.conn.Recv(localMR, 0, 8, i))
		require.NoError(t, r.b.conn.Send(remote, 0, 8, Always, i))
		r.b.done(i)
		q, recvs, err := r.a.conn.Wait(timeout(t))
		require.NoError(t, err)
		require.True(t, recvs)
		require.Same(t, r.a.conn.RecvCQ(), q)
		n, err := q.Poll(wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, ibv.WC_RECV, wcs[0].Opcode)

		require.NoError(t, r.a.conn.Write(nil, 0, nil, 0, 0, Always, i))
		q, recvs, err = r.a.conn.Wait(timeout(t))
		require.NoError(t, err)
		require.False(t, recvs)
		n, err = q.Poll(wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, i, wcs[0].WRID)
	}
}
