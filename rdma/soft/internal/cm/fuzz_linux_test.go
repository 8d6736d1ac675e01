// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package cm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// FuzzConnections calls the connection manager's functions in any order with valid and invalid arguments. No call
// crashes or hangs, and no object remains after everything is destroyed.
func FuzzConnections(f *testing.F) {
	f.Add([]byte{})
	seed := func(numbers ...byte) {
		for i := range numbers {
			numbers[i] += 128 // fuzzInput decodes these as small numbers
		}
		f.Add(numbers)
	}
	// The first binds and listens; the third resolves, gets a queue pair and connects; the request is accepted; both
	// disconnect.
	seed(1, 0, 0, 1, 0, 2, 0, 2, 3, 2, 0, 1, 0, 50, 5, 0, 1, 4, 2, 50, 5, 0, 1, 10, 2, 6, 2, 0, 5, 0, 1, 10, 6, 7, 6, 0,
		5, 0, 1, 5, 0, 1, 8, 2, 5, 0, 1, 8, 6, 5, 0, 1)
	// Destroy a queue pair that is attached to a group.
	seed(0, 0, 1, 1, 0, 0, 1, 0, 10, 0, 11, 0, 3, 1, 0, 5, 0, 1, 10, 0)
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newTestbed(t, device.Options{Virtual: true})
		before := r.fabric.Resources()
		p := &program{testbed: r, h: fuzzInput{Data: data}}
		for range 2 {
			ch, err := rdma.From{Backend: r.fabric}.CreateEventChannel()
			require.NoError(t, err)
			require.NoError(t, unix.SetNonblock(int(ch.FD), true))
			p.channels = append(p.channels, ch)
		}
		for i := range p.ids {
			p.create(i, rdmacm.PS_TCP)
		}
		for range 150 {
			if len(p.h.Data) == 0 {
				break
			}
			p.step()
		}
		p.end()
		assert.Equal(t, before, r.fabric.Resources())
	})
}

type program struct {
	*testbed
	h        fuzzInput
	channels []*rdmacm.EventChannel
	ids      [6]*rdmacm.CMID
	others   []*rdmacm.CMID // from requests
	held     []*rdmacm.CMEvent
}

func (p *program) create(i int, ps rdmacm.PortSpace) {
	p.fabric.SetFaults(device.Faults{})
	p.ids[i] = p.identifier(p.channels[i%2], ps)
}

func (p *program) id() *rdmacm.CMID {
	n := int(p.h.Next() % uint64(len(p.ids)+len(p.others)))
	if n < len(p.ids) {
		return p.ids[n]
	}
	return p.others[n-len(p.ids)]
}

func (p *program) param() *rdmacm.ConnParam {
	if p.h.Next()%2 == 0 {
		return nil
	}
	param := &offHeap[rdmacm.ConnParam](p.testbed, 1)[0]
	*param = rdmacm.ConnParam{
		PrivateDataLen: uint8(p.h.Next()), ResponderResources: uint8(p.h.Next()), InitiatorDepth: uint8(p.h.Next()),
		RetryCount: uint8(p.h.Next()), QPNum: uint32(p.h.Next()),
	}
	if param.PrivateDataLen > 0 {
		param.PrivateData = pointerTo(&offHeap[byte](p.testbed, 256)[0])
	}
	return param
}

func (p *program) address() *rdmacm.Sockaddr {
	s := p.sockaddr([][4]byte{{127, 0, 0, 1}, {127, 0, 0, 2}, {}, {239, 1, 1, 1}, {10, 0, 0, 1}}[p.h.Next()%5],
		uint16(p.h.Next()%3))
	s.SAFamily = uint16(p.h.Or(afInet))
	return s
}

// step does one operation, which may fail.
func (p *program) step() {
	switch p.h.Next() % 23 {
	case 0:
		i := int(p.h.Next() % uint64(len(p.ids)))
		p.acknowledge()
		p.destroy(p.ids[i])
		p.create(i, []rdmacm.PortSpace{rdmacm.PS_TCP, rdmacm.PS_UDP}[p.h.Next()%2])
	case 1:
		rdma.BindAddr(p.id(), p.address())
	case 2:
		rdma.Listen(p.id(), int(p.h.Next()%3))
	case 3:
		rdma.ResolveAddr(p.id(), nil, p.address(), int(p.h.Next()%100))
	case 4:
		rdma.ResolveRoute(p.id(), int(p.h.Next()%100))
	case 5:
		p.event()
	case 6:
		rdma.Connect(p.id(), p.param())
	case 7:
		if id, param := p.id(), p.param(); id.QP != 0 || param != nil { // C would dereference it
			rdma.Accept(id, param)
		}
	case 8:
		rdma.Disconnect(p.id())
	case 9:
		rdma.Reject(p.id(), 0, 0)
	case 10:
		if id := p.id(); id.QP == 0 {
			rdma.CreateQP(id, nil, &ibv.QPInitAttr{QPType: id.QPType, Cap: testCaps})
		} else {
			p.acknowledge()
			// destroying a queue pair in a group fails, but rdma_destroy_qp drops it anyway
			p.leave(id)
			rdma.DestroyQP(id)
		}
	case 11:
		rdma.JoinMulticast(p.id(), p.address(), 5)
	case 12:
		p.acknowledge()
		rdma.LeaveMulticast(p.id(), p.address())
	case 13:
		p.acknowledge()
		rdma.MigrateID(p.id(), p.channels[p.h.Next()%2])
	case 14:
		rdma.Establish(p.id())
	case 15:
		rdma.Notify(p.id(), ibv.EventType(p.h.Or(uint64(ibv.EVENT_COMM_EST))))
	case 16:
		value := &offHeap[uint64](p.testbed, 1)[0]
		*value = p.h.Next()
		rdma.SetOption(p.id(), int(p.h.Next()%3), int(p.h.Next()%6), pointerTo(value), p.h.Next()%9)
	case 17:
		attr, mask := &ibv.QPAttr{QPState: ibv.QPState(p.h.Next() % 8)}, new(int32)
		rdma.InitQPAttr(p.id(), attr, mask)
	case 18:
		rdma.WriteCMEvent(p.id(), rdmacm.CM_EVENT_USER, 1, 2)
	case 19:
		p.fabric.SetLink("soft1", p.h.Next()%2 == 0)
	case 20:
		p.fabric.SetFaults(device.Faults{Seed: p.h.Next(), Drop: float64(p.h.Next()%3) / 3,
			Duplicate: float64(p.h.Next()%3) / 3, Delay: float64(p.h.Next()%3) / 3, Late: time.Second,
			FailAllocation: int(p.h.Next() % 40)})
	case 21:
		p.fabric.Advance(time.Duration(p.h.Next() % uint64(time.Minute)))
	case 22:
		p.message()
	}
}

// message delivers any message of the connection manager to a device, from the other device or from another sender.
func (p *program) message() {
	low := func() uint32 { return uint32(p.h.Next() % 16) }
	f := p.fabric
	f.Lock()
	defer f.Unlock()
	at := p.h.Next() % 2
	m := &message.MAD{
		Attribute: message.REQ + message.Attribute(low()), From: f.Present()[1-at].Address(),
		To: f.Present()[at].Address(), TID: uint64(low()),
		LocalID: low(), RemoteID: low(), ServiceID: serviceID(rdmacm.PS_TCP, uint16(p.h.Next()%3)), QPN: low(),
		Of: message.Of(low()), Reason: uint16(low()),
		ServiceTimeout: uint8(low()), Status: uint8(p.h.Next() % 3), Private: make([]byte, low()),
		Source: netip.MustParseAddrPort("127.0.0.1:77"), Dest: netip.MustParseAddr("127.0.0.2"),
		Path: message.Path{MTU: ibv.MTU_1024},
	}
	if p.h.Next()%4 == 0 {
		m.From.Link = p.h.Next()
	}
	f.Present()[at].MAD(m)
}

// event takes an event, and acknowledges it now or later.
func (p *program) event() {
	e := new(ibv.Ptr[rdmacm.CMEvent])
	if err := rdma.GetCMEvent(p.channels[p.h.Next()%2], e); err != nil {
		if !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ENOMEM) {
			p.t.Fatal(err)
		}
		return
	}
	if event := e.Deref(); event.Event == rdmacm.CM_EVENT_CONNECT_REQUEST {
		p.others = append(p.others, event.ID.Deref())
	}
	p.held = append(p.held, e.Deref())
	if p.h.Next()%4 != 0 {
		p.acknowledge()
	}
}

func (p *program) acknowledge() {
	for _, e := range p.held {
		require.NoError(p.t, rdma.AckCMEvent(e))
	}
	p.held = p.held[:0]
}

// leave leaves all groups.
func (p *program) leave(id *rdmacm.CMID) {
	for port := range uint16(3) {
		for rdma.LeaveMulticast(id, p.sockaddr([4]byte{239, 1, 1, 1}, port)) == nil {
		}
	}
}

func (p *program) destroy(id *rdmacm.CMID) {
	p.leave(id)
	require.NoError(p.t, rdma.DestroyEP(id))
}

func (p *program) end() {
	p.fabric.SetFaults(device.Faults{})
	p.acknowledge()
	for _, id := range append(p.others, p.ids[:]...) {
		p.destroy(id)
	}
	for _, ch := range p.channels {
		require.NoError(p.t, rdma.DestroyEventChannel(ch))
	}
}
