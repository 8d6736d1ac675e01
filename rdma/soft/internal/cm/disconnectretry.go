// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// disconnectRetry retransmits the DREQ of a destroyed identifier until it is acknowledged, because a peer that only
// waits would not notice the end of the connection otherwise.
type disconnectRetry struct {
	exchange // the DREQ
	cm       *Manager
	device   *verbs.Device
}

// startDisconnectRetry sends a DREQ and retransmits it without the identifier, or continues the identifier's exchange.
func (id *identifier) startDisconnectRetry(x *exchange) {
	c, m := id.cm, x.message
	m.From, m.LocalID, m.To, m.RemoteID = id.device.AddressOf(id.local.Addr()), id.number, id.peer, id.peerNumber
	f := &disconnectRetry{exchange: *x, cm: c, device: id.device}
	c.disconnectRetries[m.TID] = f
	f.resend()
}

// The caller holds Core.Mu.
func (f *disconnectRetry) resend() {
	wait, ok := f.next(f.cm.response)
	if !ok {
		f.end()
		return
	}
	f.timer = f.cm.After(wait, f.resend) // first: the DREP may arrive during the send
	f.device.SendMAD(f.message)
}

// The caller holds Core.Mu.
func (f *disconnectRetry) end() {
	f.cm.Clock.Cancel(f.timer)
	delete(f.cm.disconnectRetries, f.message.TID)
}

// acknowledged ends a disconnect retry if a message acknowledges it, and reports whether it does.
func (c *Manager) acknowledged(at *verbs.Device, m *message.MAD) bool {
	f := c.disconnectRetries[m.TID]
	if f == nil || m.Attribute != message.DREP && m.Attribute != message.MRA || f.device != at ||
		m.From.Link != f.message.To.Link || m.LocalID != f.message.RemoteID {
		return false
	}
	f.end()
	return true
}
