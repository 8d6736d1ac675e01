// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// FuzzMessages: whatever messages another host sends, even if it knows all numbers, the listener's connection keeps
// working and memory is bounded.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		e := newTestListener(t)
		id, rep := e.connected()
		others := len(e.manager.ids)
		stranger := netip.MustParseAddr("192.0.2.66")
		gid := stranger.As16()
		h := &fuzzInput{Data: data[:min(len(data), 4096)], Well: []uint64{5, 7, 9, 99, uint64(rep.LocalID), rep.TID}}
		for len(h.Data) > 0 {
			e.forget()
			m := &message.MAD{
				Attribute: message.REQ + message.Attribute(h.Next()%9), From: message.Remote(gid), To: rep.From,
				TID: h.Or(rep.TID), LocalID: uint32(h.Or(7)), RemoteID: uint32(h.Or(uint64(rep.LocalID))),
				ServiceID: h.Or(serviceID(rdmacm.PS_TCP, 7471)), QPN: uint32(h.Or(9)) & message.Number,
				CAGUID: h.Or(3), Of: message.Of(h.Next() & 3), Reason: uint16(h.Or(message.RejectInvalidID)),
				ServiceTimeout: uint8(h.Next()) & message.MaxCode, Dest: netip.AddrFrom16(rep.From.GID).Unmap(),
				Source: netip.AddrPortFrom(stranger, 99), Path: message.Path{Local: gid, Remote: rep.From.GID},
			}
			if h.Next()%8 == 7 {
				m.Source, m.Dest = netip.AddrPort{}, netip.Addr{}
			}
			e.deliver(m)
			if h.Next()%16 == 1 {
				e.fabric.Advance(time.Minute)
			}
		}
		waiting := len(e.manager.ids) - others
		assert.LessOrEqual(t, waiting, 3, "of a backlog of 4")
		assert.Empty(t, e.manager.disconnectRetries)
		for range waiting {
			require.NoError(t, rdma.DestroyID(e.expectEvent(e.there, rdmacm.CM_EVENT_CONNECT_REQUEST)))
		}
		e.expectNoEvent(e.there)
		e.deliver(&message.MAD{Attribute: message.DREQ, From: rep.To, To: rep.From, TID: 6, LocalID: rep.RemoteID,
			RemoteID: rep.LocalID, QPN: rep.QPN})
		e.expectEvent(e.there, rdmacm.CM_EVENT_DISCONNECTED)
		require.NoError(t, rdma.DestroyID(id))
	})
}
