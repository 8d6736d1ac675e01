// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// Several processes may have the address of a device. Requests to connect then come to any one of them, and it passes
// each on to the process that has the port. So a port that is bound by name, or that is listened at, is claimed: at
// each of the addresses that the identifier has. Identifiers of one process have a claim together.

// claimKey is a port of an address; of the zero Addr, of all addresses.
type claimKey struct {
	port portKey
	ip   netip.Addr
}

type claim struct {
	key    claimKey
	uses   int
	giveUp func()
}

// claimPort makes sure that no other process has the identifier's port.
func (id *identifier) claimPort() runtime.Errno {
	if id.claim != nil {
		return 0
	}
	c, key := id.cm, claimKey{id.port, id.local.Addr()}
	if key.ip.IsUnspecified() {
		key.ip = netip.Addr{}
	}
	have := c.claims[key]
	if have == nil {
		giveUp, errno := c.claimAt(key)
		if errno != 0 {
			return errno
		}
		have = &claim{key: key, giveUp: giveUp}
		c.claims[key] = have
	}
	have.uses++
	id.claim = have
	return 0
}

// dropClaim gives the claim up, unless others of the process have it, too.
func (id *identifier) dropClaim() {
	have := id.claim
	if id.claim = nil; have == nil {
		return
	}
	if have.uses--; have.uses == 0 {
		have.giveUp()
		delete(id.cm.claims, have.key)
	}
}

// claimAt claims a port of all devices, or of the one that has the address.
func (c *Manager) claimAt(key claimKey) (giveUp func(), errno runtime.Errno) {
	var ends []func()
	giveUp = func() {
		for _, end := range ends {
			end()
		}
	}
	for _, d := range c.Present() {
		claims, err := d.Claim(key.ip, serviceID(key.port.space, key.port.number))
		if err != nil {
			giveUp()
			if errno := runtime.Errno(0); errors.As(err, &errno) {
				return nil, errno
			}
			return nil, syscall.EADDRINUSE
		}
		for _, one := range claims {
			ends = append(ends, one.Close)
		}
	}
	return giveUp, 0
}

// passOn gives a request that nobody here listens for to the process that does, and says whether there is one. What
// takes the request back goes there, too: it does not say which request it means but by its sender's number.
func (c *Manager) passOn(at *device.Device, m *message.MAD) bool {
	sender := peerKey{m.From.Link, m.LocalID}
	switch m.Attribute {
	case message.REQ, message.SIDRReq:
		if !at.Pass(m.ServiceID, m) {
			return false
		}
		c.passed.add(sender, m.ServiceID)
		return true
	case message.REJ:
		service, ok := c.passed.of[sender]
		return ok && at.Pass(service, m)
	}
	return false
}
