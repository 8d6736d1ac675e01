// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"net/netip"
	goruntime "runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// keep closes an object when the test ends.
func keep[T interface{ Close() error }](t testing.TB, o T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return o
}

// stepTimeout is the time after which a step is considered to hang. It is long enough for a busy machine.
const stepTimeout = time.Minute

// timeout returns a context with the timeout stepTimeout.
func timeout(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	t.Cleanup(cancel)
	return ctx
}

var softAttr = ibv.QPInitAttr{QPType: ibv.QPT_RC, SQSigAll: 1,
	Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 64}}

// TestSoftwareDevice: two IDs on a software device connect, exchange messages and disconnect.
func TestSoftwareDevice(t *testing.T) {
	f, err := soft.New(soft.Options{})
	keep(t, f, err)
	l, err := CreateIDOn(f, rdmacm.PS_TCP)
	keep(t, l, err)
	require.NoError(t, l.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	require.NoError(t, l.Listen(1))
	served := make(chan struct{})
	go func() {
		defer close(served)
		id, e, err := l.GetRequest(timeout(t))
		if !assert.NoError(t, err) {
			return
		}
		assert.Equal(t, "hello", string(e.PrivateData[:5]))
		_, err = id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
		assert.NoError(t, err)
		mr, err := id.RegMsgs(make([]byte, 16))
		assert.NoError(t, err)
		assert.NoError(t, id.PostRecv(1, mr.Bytes(), mr))
		assert.NoError(t, id.Accept(timeout(t), nil, []byte("welcome")))
		wc, err := id.GetRecvComp(timeout(t))
		assert.NoError(t, err)
		assert.Equal(t, "ping", string(mr.Bytes()[:wc.ByteLen]))
		assert.NoError(t, id.PostSend(2, []byte("pong"), nil, ibv.SEND_INLINE))
		_, err = id.GetSendComp(timeout(t))
		assert.NoError(t, err)
		assert.NoError(t, id.Disconnect(timeout(t)))
		assert.NoError(t, id.QP().Close())
		assert.NoError(t, mr.Close())
		assert.NoError(t, id.Close())
	}()
	id, err := CreateIDOn(f, rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, l.LocalAddr(), time.Second))
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	_, err = id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	mr, err := id.RegMsgs(make([]byte, 16))
	require.NoError(t, err)
	require.NoError(t, id.PostRecv(3, mr.Bytes(), mr))
	e, err := id.ConnectEvent(timeout(t), nil, []byte("hello"))
	require.NoError(t, err)
	assert.Equal(t, "welcome", string(e.PrivateData[:7]))
	require.NoError(t, id.PostSend(4, []byte("ping"), nil, ibv.SEND_INLINE))
	wc, err := id.GetRecvComp(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, "pong", string(mr.Bytes()[:wc.ByteLen]))
	require.NoError(t, id.Disconnect(timeout(t)))
	<-served
	require.NoError(t, id.QP().Close())
	require.NoError(t, mr.Close())
}

// TestPrivateDataOfParameters: private data in ConnParam is sent like the private argument.
func TestPrivateDataOfParameters(t *testing.T) {
	f, err := soft.New(soft.Options{})
	keep(t, f, err)
	l, err := CreateIDOn(f, rdmacm.PS_TCP)
	keep(t, l, err)
	require.NoError(t, l.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	require.NoError(t, l.Listen(1))
	with := func(text string) *rdmacm.ConnParam {
		var pin goruntime.Pinner
		data := []byte(text)
		pin.Pin(&data[0])
		t.Cleanup(pin.Unpin)
		p := DefaultConnParam()
		p.PrivateData, p.PrivateDataLen = uintptr(unsafe.Pointer(&data[0])), uint8(len(data))
		return &p
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		id, e, err := l.GetRequest(timeout(t))
		if !assert.NoError(t, err) {
			return
		}
		assert.Equal(t, "asked", string(e.PrivateData[:5]))
		_, err = id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
		assert.NoError(t, err)
		assert.NoError(t, id.Accept(timeout(t), with("answered"), nil))
		assert.NoError(t, id.Disconnect(timeout(t)))
		assert.NoError(t, id.Close())
	}()
	id, err := CreateIDOn(f, rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, l.LocalAddr(), time.Second))
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	_, err = id.CreateQP(nil, &softAttr, rdma.QueueOptions{})
	require.NoError(t, err)
	e, err := id.ConnectEvent(timeout(t), with("asked"), nil)
	require.NoError(t, err)
	assert.Equal(t, "answered", string(e.PrivateData[:8]))
	require.NoError(t, id.Disconnect(timeout(t)))
	<-served
}
