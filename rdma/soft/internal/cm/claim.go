// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// Several processes may share the address of a device. A connection request then arrives at any one of them, which
// passes it on to the process that owns the port. Therefore explicitly bound ports and listening ports are claimed, at
// each address of the identifier. The identifiers of one process share a claim.

// claimKey is a port of an address, or of all addresses with the zero Addr.
type claimKey struct {
	port portKey
	ip   netip.Addr
}

type claim struct {
	key     claimKey
	uses    int
	release func()
}

// claimPort claims the identifier's port against other processes.
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
		release, errno := c.claimAt(key)
		if errno != 0 {
			return errno
		}
		have = &claim{key: key, release: release}
		c.claims[key] = have
	}
	have.uses++
	id.claim = have
	return 0
}

// dropClaim releases the claim unless other identifiers of the process use it.
func (id *identifier) dropClaim() {
	have := id.claim
	if id.claim = nil; have == nil {
		return
	}
	if have.uses--; have.uses == 0 {
		have.release()
		delete(id.cm.claims, have.key)
	}
}

// claimAt claims a port of all devices, or of the one with the address.
func (c *Manager) claimAt(key claimKey) (release func(), errno runtime.Errno) {
	var ends []func()
	release = func() {
		for _, end := range ends {
			end()
		}
	}
	for _, d := range c.Present() {
		claims, err := d.Claim(key.ip, serviceID(key.port.space, key.port.number))
		if err != nil {
			release()
			if errno := runtime.Errno(0); errors.As(err, &errno) {
				return nil, errno
			}
			return nil, syscall.EADDRINUSE
		}
		for _, one := range claims {
			ends = append(ends, one.Close)
		}
	}
	return release, 0
}

// passOn passes a request for a port without a local listener to the process that claimed it, and reports whether there
// is one. A REJ that withdraws the request follows it, because it identifies the request only by its sender's ID.
func (c *Manager) passOn(at *verbs.Device, m *message.MAD) bool {
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
