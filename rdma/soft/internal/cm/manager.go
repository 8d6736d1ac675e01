// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

// Manager is the connection manager of a fabric. The fabric's lock guards all of it.
type Manager struct {
	*device.Fabric
	response time.Duration // retransmission timeout
	ids      []*identifier // in the order of creation
	bound    map[portKey][]*identifier
	claims   map[claimKey]*claim            // ports of addresses shared with other processes
	lastPort uint16                         // last ephemeral port
	opened   map[*device.Device]*openDevice // devices opened for identifiers
	channels int
	psn      uint32

	// Indexes to find the identifier of a message.
	numbered          map[uint32]*identifier      // by communication ID
	requests          map[peerKey]*identifier     // identifiers of requests, by sender
	connected         map[remoteQP]*identifier    // connected identifiers, by the peer's queue pair
	ended             recent[ending]              // requests whose identifiers were destroyed
	passed            recent[uint64]              // services of requests passed to other processes
	disconnectRetries map[uint64]*disconnectRetry // for destroyed identifiers, by transaction ID
	lastNumber        uint32                      // last communication ID
	lastTID           uint64
}

// As on Linux, a message is retransmitted 15 times, after 4.096 µs · 2²⁰ each. A program that processes a message may
// take as long as all of that together.
const (
	defaultResponse = 4096 << 20 * time.Nanosecond
	retries         = 15
	defaultTimeout  = 17 // default queue pair timeout: 0.54 s
)

func New(f *device.Fabric, response time.Duration) *Manager {
	c := &Manager{
		Fabric: f, response: response, bound: map[portKey][]*identifier{}, claims: map[claimKey]*claim{},
		opened: map[*device.Device]*openDevice{}, lastPort: firstPort - 1,
		numbered: map[uint32]*identifier{}, requests: map[peerKey]*identifier{}, connected: map[remoteQP]*identifier{},
		disconnectRetries: map[uint64]*disconnectRetry{},
	}
	if c.response <= 0 {
		c.response = defaultResponse
	}
	return c
}

func (c *Manager) OpenChannels() int { return c.channels }

func (id *identifier) Resource() (string, *device.Engine) { return "cm_id", &id.cm.Engine }
func (ch *channel) Resource() (string, *device.Engine)    { return "event channel", &ch.cm.Engine }
func (i *addrInfo) Resource() (string, *device.Engine)    { return "address info", &i.cm.Engine }

// peerKey is a peer's identifier: the link address of its port, and its communication ID.
type peerKey struct {
	link   uint64
	number uint32
}

// remoteQP is a peer's queue pair. A restarted process has a device with another GUID.
type remoteQP struct {
	link, guid uint64
	number     uint32
}

// nextTID returns a new transaction ID.
func (c *Manager) nextTID() uint64 {
	c.lastTID++
	return c.lastTID
}

// nextPSN returns an unpredictable starting PSN for a connection.
func (c *Manager) nextPSN(of *device.Device) uint32 {
	if of.IsWired() {
		return random() & message.Number
	}
	c.psn = (c.psn + 0x10001) & message.Number
	return c.psn
}

// random returns an unpredictable number.
func random() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.NativeEndian.Uint32(b[:])
}

// takeNumber assigns a communication ID to the identifier.
func (id *identifier) takeNumber() {
	c := id.cm
	next := func() {
		if c.lastNumber++; id.device.IsWired() {
			c.lastNumber = random()
		}
	}
	for next(); id.device.IDOf(c.lastNumber) == 0 || c.numbered[id.device.IDOf(c.lastNumber)] != nil; next() {
	}
	id.number = id.device.IDOf(c.lastNumber)
	c.numbered[id.number] = id
}

// forgetNumber removes the identifier from the indexes of messages.
func (id *identifier) forgetNumber() {
	c := id.cm
	delete(c.numbered, id.number)
	peer := peerKey{id.peer.Link, id.peerNumber}
	asked := c.requests[peer] == id
	if asked {
		delete(c.requests, peer)
	}
	if asked || id.refusal != nil {
		c.ended.add(peer, ending{id.tid, id.refusal})
	}
}

// forgetRemote allows the peer's queue pair to be connected again.
func (id *identifier) forgetRemote() {
	c := id.cm
	if remote := (remoteQP{id.peer.Link, id.peerGUID, id.peerQPN}); c.connected[remote] == id {
		delete(c.connected, remote)
	}
}

// serviceID returns the service ID of a port.
func serviceID(space rdmacm.PortSpace, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// portOf is the inverse of serviceID.
func portOf(service uint64) (rdmacm.PortSpace, uint16) {
	return rdmacm.PortSpace(service >> 16), uint16(service)
}
