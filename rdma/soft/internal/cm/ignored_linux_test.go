// SPDX-License-Identifier: BSD-2-Clause

//go:build !goverbs_nofd

package cm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// TestIgnored checks that each ignored message increments exactly one counter, the one for its reason.
func TestIgnored(t *testing.T) {
	e := newTestListener(t)
	id, rep := e.connected()
	total := func() map[string]uint64 {
		all := e.fabric.HWCounters("soft0")
		for name, n := range e.fabric.HWCounters("soft1") {
			all[name] += n
		}
		return all
	}
	expect := func(name string, desc string, send func()) {
		t.Helper()
		before := total()
		send()
		changed := map[string]uint64{}
		for name, n := range total() {
			if n != before[name] {
				changed[name] = n - before[name]
			}
		}
		assert.Equal(t, map[string]uint64{name: 1}, changed, desc)
	}
	// fromPeer returns a function that delivers a message of the peer, altered by change, to the passive side.
	fromPeer := func(a message.Attribute, change func(m *message.MAD)) func() {
		return func() {
			m := &message.MAD{Attribute: a, From: rep.To, To: rep.From, TID: rep.TID, LocalID: rep.RemoteID,
				RemoteID: rep.LocalID, QPN: 99}
			if change != nil {
				change(m)
			}
			e.deliver(m)
		}
	}
	otherLink := func(m *message.MAD) { m.From.Link = 0x0123 }
	otherID := func(m *message.MAD) { m.LocalID++ }
	unknownID := func(m *message.MAD) { m.RemoteID += 1000 }
	const unknown, wrong, late, duplicate = "rx_cm_unknown_id", "rx_cm_wrong_peer", "rx_cm_late", "cm_rx_duplicates"
	for _, a := range []message.Attribute{message.MRA, message.REJ, message.REP, message.RTU, message.DREQ,
		message.DREP, message.SIDRRep} {
		expect(unknown, a.String()+" with an unknown remote ID", fromPeer(a, unknownID))
		expect(wrong, a.String()+" from another link address", fromPeer(a, otherLink))
		expect(wrong, a.String()+" with the wrong local ID", fromPeer(a, otherID))
	}
	for _, a := range []message.Attribute{message.MRA, message.RTU, message.DREP, message.SIDRRep} {
		expect(late, a.String()+" in an unexpected state", fromPeer(a, nil))
	}
	expect(late, "a REJ with the wrong transaction ID", fromPeer(message.REJ, func(m *message.MAD) { m.TID++ }))
	expect(wrong, "a DREQ with the wrong queue pair number", fromPeer(message.DREQ, func(m *message.MAD) { m.QPN++ }))

	expect("rx_cm_no_listener", "a REQ for a service without a listener", func() {
		e.requestFromPeer(func(m *message.MAD) { m.ServiceID++; m.LocalID, m.QPN = 71, 1 })
	})
	expect("rx_cm_no_listener", "a SIDR REQ for a service without a listener", func() {
		e.requestFromPeer(func(m *message.MAD) { m.Attribute = message.SIDRReq; m.ServiceID++; m.LocalID = 72 })
	})
	expect("rx_cm_bad_path", "a REQ whose path does not match its sender", func() {
		e.requestFromPeer(func(m *message.MAD) { m.Path.Local[15]++; m.LocalID, m.QPN = 70, 2 })
	})
	expect(duplicate, "a duplicate REQ", func() { e.requestFromPeer(func(m *message.MAD) {}) })
	fromPeer(message.DREQ, nil)()
	expect(duplicate, "a duplicate DREQ", fromPeer(message.DREQ, nil))
	require.NoError(t, rdma.DestroyID(id))
}
