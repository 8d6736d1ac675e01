// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package cm

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// TestFlood: any number of requests, from one or many hosts, with or without a listener, takes bounded memory. A flood
// from one host does not lock out others, and existing connections keep working.
func TestFlood(t *testing.T) {
	const many, backlog = 100_000, 16
	for name, flood := range map[string]struct {
		hosts int
		kind  message.Attribute
		waits int // waiting requests afterwards
	}{
		"one host":            {1, message.REQ, backlog - backlog/4},
		"many hosts":          {many, message.REQ, backlog},
		"lookups of one host": {1, message.SIDRReq, backlog - backlog/4},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTestListener(t)
			l := e.identifier(e.there, rdmacm.PS_UDP)
			t.Cleanup(func() { require.NoError(t, rdma.DestroyID(l)) })
			require.NoError(t, rdma.BindAddr(l, e.sockaddr([4]byte{127, 0, 0, 2}, 7471)))
			require.NoError(t, rdma.Listen(l, backlog))
			id, rep := e.connected()
			before, others := heap(), len(e.manager.ids)
			random := rand.New(rand.NewPCG(1, 0))
			request := func(host int) {
				e.forget()
				from := netip.AddrFrom4([4]byte{10, byte(host >> 16), byte(host >> 8), byte(host)})
				e.requestFromPeer(func(m *message.MAD) {
					gid := from.As16()
					m.Attribute, m.From = flood.kind, message.Remote(gid)
					m.Source, m.Path.Local = netip.AddrPortFrom(from, 99), gid
					if flood.kind == message.SIDRReq {
						m.ServiceID = serviceID(rdmacm.PS_UDP, 7471)
					}
					if random.IntN(8) == 0 { // no listener
						m.ServiceID++
					}
					m.LocalID, m.TID, m.QPN = random.Uint32(), random.Uint64(), random.Uint32()&message.Number
				})
			}
			for i := range many {
				request(i % flood.hosts)
			}
			e.forget()
			assert.Less(t, heap()-before, int64(1<<20), "bytes remain allocated after the flood")
			require.Len(t, e.manager.ids, others+flood.waits)
			if flood.waits < backlog {
				for flood.waits < backlog { // some requests are for a port without a listener
					request(many + flood.waits)
					flood.waits = len(e.manager.ids) - others
				}
			}
			for range flood.waits {
				require.NoError(t, rdma.DestroyID(e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)))
			}
			e.deliver(&message.MAD{Attribute: message.DREQ, From: rep.To, To: rep.From, TID: 6, LocalID: rep.RemoteID,
				RemoteID: rep.LocalID, QPN: rep.QPN})
			e.expectEvent(e.there, rdmacm.CM_EVENT_DISCONNECTED)
			require.NoError(t, rdma.DestroyID(id))
			for _, listener := range e.manager.ids {
				assert.Empty(t, listener.waitingOf)
				assert.Zero(t, listener.waiting)
			}
		})
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
