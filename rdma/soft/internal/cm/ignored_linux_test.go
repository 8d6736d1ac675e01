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

// TestIgnored: each dropped message is counted once, by reason.
func TestIgnored(t *testing.T) {
	e := newExchanged(t)
	id, rep := e.connected()
	total := func() map[string]uint64 {
		all := e.fabric.HWCounters("soft0")
		for name, n := range e.fabric.HWCounters("soft1") {
			all[name] += n
		}
		return all
	}
	expect := func(name string, what string, send func()) {
		t.Helper()
		before := total()
		send()
		changed := map[string]uint64{}
		for name, n := range total() {
			if n != before[name] {
				changed[name] = n - before[name]
			}
		}
		assert.Equal(t, map[string]uint64{name: 1}, changed, what)
	}
	mine := func(a message.Attribute, change func(m *message.MAD)) func() { // to the passive side
		return func() {
			m := &message.MAD{Attribute: a, From: rep.To, To: rep.From, TID: rep.TID, LocalID: rep.RemoteID,
				RemoteID: rep.LocalID, QPN: 99}
			if change != nil {
				change(m)
			}
			e.arrives(m)
		}
	}
	elsewhere := func(m *message.MAD) { m.From.Link = 0x0123 }
	otherID := func(m *message.MAD) { m.LocalID++ }
	unknownID := func(m *message.MAD) { m.RemoteID += 1000 }
	const unknown, wrong, late, again = "rx_cm_unknown_id", "rx_cm_wrong_peer", "rx_cm_late", "cm_rx_duplicates"
	for _, a := range []message.Attribute{message.MRA, message.REJ, message.REP, message.RTU, message.DREQ,
		message.DREP, message.SIDRRep} {
		expect(unknown, a.String()+" to an unknown ID", mine(a, unknownID))
		expect(wrong, a.String()+" from elsewhere", mine(a, elsewhere))
		expect(wrong, a.String()+" of another ID", mine(a, otherID))
	}
	for _, a := range []message.Attribute{message.MRA, message.RTU, message.DREP, message.SIDRRep} {
		expect(late, a.String()+" that no ID waits for", mine(a, nil))
	}
	expect(late, "a REJ of another transaction", mine(message.REJ, func(m *message.MAD) { m.TID++ }))
	expect(wrong, "a DREQ of another queue pair", mine(message.DREQ, func(m *message.MAD) { m.QPN++ }))

	expect("rx_cm_no_listener", "a request without a listener", func() {
		e.asked(func(m *message.MAD) { m.ServiceID++; m.LocalID, m.QPN = 71, 1 })
	})
	expect("rx_cm_no_listener", "a lookup without a listener", func() {
		e.asked(func(m *message.MAD) { m.Attribute = message.SIDRReq; m.ServiceID++; m.LocalID = 72 })
	})
	expect("rx_cm_bad_path", "a request by another path", func() {
		e.asked(func(m *message.MAD) { m.Path.Local[15]++; m.LocalID, m.QPN = 70, 2 })
	})
	expect(again, "a request once more", func() { e.asked(func(m *message.MAD) {}) })
	mine(message.DREQ, nil)()
	expect(again, "a DREQ once more", mine(message.DREQ, nil))
	require.NoError(t, rdma.DestroyID(id))
}
