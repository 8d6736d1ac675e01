package soft

import (
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// address is where the device's port is.
func (d *device) address() message.Address {
	return message.Address{Link: d.link, GID: d.gids[0]}
}

// sendMAD gives a message to the wire, unless the link is down.
func (d *device) sendMAD(m *message.MAD) {
	if !d.down || m.IsHint() {
		d.fabric.wire.SendMAD(m)
	}
}

// MAD handles a message of the connection manager that comes in, unless the link is down.
func (d *device) MAD(m *message.MAD) {
	if !d.down || m.IsHint() {
		d.fabric.receive(d, m)
	}
}
