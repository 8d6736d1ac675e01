// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
)

// endpoint creates a synchronous identifier through the C functions.
func (r *testbed) endpoint(node, service string, flags rdmacm.AddrInfoFlags, kind ibv.QPType,
	attr *ibv.QPInitAttr) *rdmacm.CMID {
	hints := &rdmacm.AddrInfo{AiFlags: flags, AiPortSpace: rdmacm.PS_TCP, AiQPType: kind}
	info, id := new(ibv.Ptr[rdmacm.AddrInfo]), new(ibv.Ptr[rdmacm.CMID])
	_, err := rdma.From{Backend: r.fabric}.GetAddrInfo(node, service, hints, info)
	require.NoError(r.t, err)
	defer rdma.FreeAddrInfo(info.Deref())
	require.NoError(r.t, rdma.CreateEP(id, info.Deref(), nil, attr))
	return id.Deref()
}

// TestSynchronousIdentifiers runs a server and a client as in the man pages: calls block, requests arrive with a queue
// pair and completion queues, and destroying the identifier destroys them.
func TestSynchronousIdentifiers(t *testing.T) {
	r := newTestbed(t, device.Options{})
	before := r.fabric.Resources()
	attr := &ibv.QPInitAttr{Cap: testCaps, SQSigAll: 1}
	listener := r.endpoint("soft1", "7471", rdmacm.RAI_PASSIVE, 0, attr)
	require.NoError(t, rdma.Listen(listener, 1))
	memory := offHeap[byte](r, 128)
	var served sync.WaitGroup
	served.Go(func() {
		request := new(ibv.Ptr[rdmacm.CMID])
		if !assert.NoError(t, rdma.GetRequest(listener, request)) {
			return
		}
		id := request.Deref()
		assert.Equal(t, rdmacm.CM_EVENT_CONNECT_REQUEST, id.Event.Deref().Event)
		assert.NotZero(t, id.QP)
		assert.NotZero(t, id.RecvCQChannel)
		mr, err := rdma.RegMsgs(id, pointerTo(&memory[0]), 64)
		assert.NoError(t, err)
		assert.NoError(t, rdma.PostRecv(id, 1, pointerTo(&memory[0]), 64, mr))
		assert.NoError(t, rdma.Accept(id, nil))
		assert.Equal(t, rdmacm.CM_EVENT_ESTABLISHED, id.Event.Deref().Event)
		var wc ibv.WC
		n, err := rdma.GetRecvComp(id, &wc)
		assert.NoError(t, err)
		assert.Equal(t, 1, n)
		assert.Equal(t, "hello", string(memory[:wc.ByteLen]))
		assert.NoError(t, rdma.Disconnect(id))
		assert.NoError(t, rdma.DeregMR(mr))
		assert.NoError(t, rdma.DestroyEP(id))
	})
	id := r.endpoint("soft1", "7471", 0, 0, attr)
	assert.Equal(t, ibv.QPT_RC, attr.QPType)
	assert.Equal(t, id.SendCQ, attr.SendCQ, "like librdmacm")
	require.NoError(t, rdma.Connect(id, nil))
	assert.Equal(t, rdmacm.CM_EVENT_ESTABLISHED, id.Event.Deref().Event)
	copy(memory[64:], "hello")
	require.NoError(t, rdma.PostSend(id, 2, pointerTo(&memory[64]), 5, nil, ibv.SEND_INLINE))
	var wc ibv.WC
	n, err := rdma.GetSendComp(id, &wc)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, rdma.Disconnect(id))
	served.Wait()
	assert.ErrorIs(t, rdma.MigrateID(id, nil), syscall.EINVAL, "already synchronous")
	require.NoError(t, rdma.DestroyEP(id))

	refused := r.endpoint("soft0", "7472", 0, 0, &ibv.QPInitAttr{Cap: testCaps})
	assert.ErrorIs(t, rdma.Connect(refused, nil), syscall.ECONNREFUSED)
	require.NoError(t, rdma.DestroyEP(refused))
	require.NoError(t, rdma.DestroyEP(listener))
	assert.Equal(t, before, r.fabric.Resources())
}

// eventChannel creates an event channel.
func (r *testbed) eventChannel() *rdmacm.EventChannel {
	ch, err := rdma.From{Backend: r.fabric}.CreateEventChannel()
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, rdma.DestroyEventChannel(ch)) })
	return ch
}

func (r *testbed) identifier(ch *rdmacm.EventChannel, ps rdmacm.PortSpace) *rdmacm.CMID {
	id := new(ibv.Ptr[rdmacm.CMID])
	require.NoError(r.t, rdma.CreateID(ch, id, 77, ps))
	return id.Deref()
}

// sockaddr returns a C address.
func (r *testbed) sockaddr(four [4]byte, port uint16) *rdmacm.Sockaddr {
	in := &offHeap[rdmacm.SockaddrIn](r, 1)[0]
	in.SinFamily, in.SinPort = afInet, uint16(ibv.ToBE16(port))
	*(*[4]byte)(unsafe.Pointer(&in.SinAddr)) = four
	return (*rdmacm.Sockaddr)(unsafe.Pointer(in))
}

// TestDestroyWaitsForAcknowledgements: destroying an identifier waits until its events are acknowledged.
func TestDestroyWaitsForAcknowledgements(t *testing.T) {
	r := newTestbed(t, device.Options{})
	ch := r.eventChannel()
	id := r.identifier(ch, rdmacm.PS_TCP)
	require.NoError(t, rdma.ResolveAddr(id, nil, r.sockaddr([4]byte{127, 0, 0, 2}, 1), 10))
	e := r.event(ch, rdmacm.CM_EVENT_ADDR_RESOLVED)
	assert.EqualValues(t, 77, id.Context)
	destroyed := make(chan error)
	go func() { destroyed <- rdma.DestroyID(id) }()
	select {
	case <-destroyed:
		t.Fatal("rdma_destroy_id did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	require.NoError(t, rdma.AckCMEvent(e))
	require.NoError(t, <-destroyed)
	assert.ErrorIs(t, rdma.AckCMEvent(e), syscall.EINVAL, "once")
	assert.ErrorIs(t, rdma.Listen(id, 1), syscall.EINVAL, "event of a destroyed identifier")
}

// TestXRCIdentifiers: the shared receive queue of an XRC target uses the identifier's domain and completion queue, and
// its queue pair the same domain.
func TestXRCIdentifiers(t *testing.T) {
	r := newTestbed(t, device.Options{})
	before := r.fabric.Resources()
	id := r.endpoint("soft0", "1", 0, ibv.QPT_XRC_RECV, nil)
	require.NoError(t, rdma.CreateSRQ(id, nil, &ibv.SRQInitAttr{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}}))
	assert.NotZero(t, id.RecvCQ)
	number := new(uint32)
	require.NoError(t, verbs.GetSRQNum(id.SRQ.Deref(), number))
	require.NoError(t, rdma.CreateQP(id, nil, &ibv.QPInitAttr{QPType: ibv.QPT_XRC_RECV, SendCQ: id.RecvCQ}))
	assert.Equal(t, 1, r.fabric.Resources()["xrcd"])
	require.NoError(t, rdma.DestroyEP(id))
	assert.Equal(t, before, r.fabric.Resources())
}

// TestFabricCloseWithEventChannels: a fabric with event channels cannot be closed. Destroying a channel frees its
// identifiers.
func TestFabricCloseWithEventChannels(t *testing.T) {
	r := newTestbed(t, device.Options{})
	f, _, err := newFabric(device.Options{})
	require.NoError(t, err)
	ch, err := rdma.From{Backend: f}.CreateEventChannel()
	require.NoError(t, err)
	id := r.identifier(ch, rdmacm.PS_TCP)
	require.NoError(t, rdma.BindAddr(id, r.sockaddr([4]byte{127, 0, 0, 1}, 7471)))
	require.NoError(t, rdma.BindAddr(r.identifier(ch, rdmacm.PS_UDP), r.sockaddr([4]byte{}, 7471)))
	assert.ErrorIs(t, f.Close(), syscall.EBUSY)
	require.NoError(t, rdma.DestroyEventChannel(ch))
	assert.ErrorIs(t, rdma.DestroyID(id), syscall.EINVAL, "the identifier was freed with its channel")
	assert.Empty(t, f.Resources())
	require.NoError(t, f.Close())
}

// TestEventNames: event names are C's.
func TestEventNames(t *testing.T) {
	from := rdma.From{Backend: newTestbed(t, device.Options{}).fabric}
	for event, want := range map[rdmacm.CMEventType]string{rdmacm.CM_EVENT_ADDR_RESOLVED: "RDMA_CM_EVENT_ADDR_RESOLVED",
		rdmacm.CM_EVENT_USER: "UNKNOWN EVENT", 99: "UNKNOWN EVENT"} {
		got, err := from.EventStr(event)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}

// TestPorts checks rdma_get_src_port and rdma_get_dst_port.
func TestPorts(t *testing.T) {
	r := newTestbed(t, device.Options{})
	id := r.identifier(r.eventChannel(), rdmacm.PS_TCP)
	require.NoError(t, rdma.ResolveAddr(id, r.sockaddr([4]byte{127, 0, 0, 1}, 5),
		r.sockaddr([4]byte{127, 0, 0, 2}, 7471), 1))
	require.NoError(t, rdma.AckCMEvent(r.event(id.Channel.Deref(), rdmacm.CM_EVENT_ADDR_RESOLVED)))
	source, err := rdma.GetSrcPort(id)
	require.NoError(t, err)
	to, err := rdma.GetDstPort(id)
	require.NoError(t, err)
	assert.EqualValues(t, 5, source.Host())
	assert.EqualValues(t, 7471, to.Host())
	require.NoError(t, rdma.DestroyID(id))
}

// TestUserEvents: a 64-bit argument is not truncated.
func TestUserEvents(t *testing.T) {
	r := newTestbed(t, device.Options{})
	ch := r.eventChannel()
	id := r.identifier(ch, rdmacm.PS_TCP)
	const arg uint64 = 0x1234567890abcdef
	require.NoError(t, rdma.WriteCMEvent(id, rdmacm.CM_EVENT_USER, 1, arg))
	event := r.event(ch, rdmacm.CM_EVENT_USER)
	assert.Equal(t, arg, *event.Param.Arg())
	require.NoError(t, rdma.AckCMEvent(event))
	require.NoError(t, rdma.DestroyID(id))
}
