// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// farewell is the end of a connection whose identifier is gone. It is said until the other side has heard it: nothing
// else would tell a side that only waits.
type farewell struct {
	exchange // of a DREQ
	cm       *Manager
	device   *device.Device
}

// bidFarewell says the end of the identifier's connection, again and again without the identifier, or goes on with it.
func (id *identifier) bidFarewell(x *exchange) {
	c, m := id.cm, x.message
	m.From, m.LocalID, m.To, m.RemoteID = id.device.AddressOf(id.local.Addr()), id.number, id.peer, id.peerNumber
	f := &farewell{exchange: *x, cm: c, device: id.device}
	c.farewells[m.TID] = f
	f.say()
}

// say says it. The caller holds Fabric.mu.
func (f *farewell) say() {
	wait, ok := f.next(f.cm.response)
	if !ok {
		f.end()
		return
	}
	f.timer = f.cm.After(wait, f.say) // before: the answer may come at once
	f.device.SendMAD(f.message)
}

// The caller holds Fabric.mu.
func (f *farewell) end() {
	f.cm.Cancel(f.timer)
	delete(f.cm.farewells, f.message.TID)
}

// heard says whether a message tells that the other side has heard a farewell, which then ends.
func (c *Manager) heard(at *device.Device, m *message.MAD) bool {
	f := c.farewells[m.TID]
	if f == nil || m.Attribute != message.DREP && m.Attribute != message.MRA || f.device != at ||
		m.From.Link != f.message.To.Link || m.LocalID != f.message.RemoteID {
		return false
	}
	f.end()
	return true
}
