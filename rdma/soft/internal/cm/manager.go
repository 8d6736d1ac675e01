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

// Manager is the connection manager of a fabric. Everything of it is under the fabric's lock.
type Manager struct {
	*device.Fabric
	response time.Duration // a message is sent again after it
	ids      []*identifier // all of them, in the order in which they were made
	bound    map[portKey][]*identifier
	claims   map[claimKey]*claim            // ports of addresses that other processes have, too
	lastPort uint16                         // the last one given to an identifier that asked for any
	opened   map[*device.Device]*openDevice // by the program's identifiers
	channels int
	psn      uint32

	// Where the messages that come in find their identifiers.
	numbered   map[uint32]*identifier   // by communication ID
	requests   map[peerKey]*identifier  // those that were made of a request, by its sender
	connected  map[remoteQP]*identifier // those that are connected to a queue pair elsewhere, by that one
	ended      recent[ending]           // requests whose identifiers are gone
	passed     recent[uint64]           // services of requests that were passed to other processes
	farewells  map[uint64]*farewell     // of identifiers that are gone, by transaction ID
	lastNumber uint32                   // the last communication ID
	lastTID    uint64
}

// What Linux does: a message is sent again after 4.096 µs · 2²⁰, 15 times; an answer of a program that has the message
// may take as long as all of that together.
const (
	defaultResponse = 4096 << 20 * time.Nanosecond
	retries         = 15
	defaultTimeout  = 17 // of queue pairs, where nobody sets another one: 0.54 s
)

func New(f *device.Fabric, response time.Duration) *Manager {
	c := &Manager{
		Fabric: f, response: response, bound: map[portKey][]*identifier{}, claims: map[claimKey]*claim{},
		opened: map[*device.Device]*openDevice{}, lastPort: firstPort - 1,
		numbered: map[uint32]*identifier{}, requests: map[peerKey]*identifier{}, connected: map[remoteQP]*identifier{},
		farewells: map[uint64]*farewell{},
	}
	if c.response <= 0 {
		c.response = defaultResponse
	}
	return c
}

func (c *Manager) OpenChannels() int { return c.channels }

func (id *identifier) Resource() (string, *device.Fabric) { return "cm_id", id.cm.Fabric }
func (ch *channel) Resource() (string, *device.Fabric)    { return "event channel", ch.cm.Fabric }
func (i *addrInfo) Resource() (string, *device.Fabric)    { return "address info", i.cm.Fabric }

// peerKey is an identifier elsewhere: the link address of its port, and its communication ID.
type peerKey struct {
	link   uint64
	number uint32
}

// remoteQP is a queue pair elsewhere. A process that starts again has a device with another GUID.
type remoteQP struct {
	link, guid uint64
	number     uint32
}

// nextTID is the ID of another transaction.
func (c *Manager) nextTID() uint64 {
	c.lastTID++
	return c.lastTID
}

// nextPSN is where the numbers of a connection's packets start: strangers cannot guess it.
func (c *Manager) nextPSN(of *device.Device) uint32 {
	if of.IsWired() {
		return random() & message.Number
	}
	c.psn = (c.psn + 0x10001) & message.Number
	return c.psn
}

// random is a number that nobody can guess.
func random() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.NativeEndian.Uint32(b[:])
}

// takeNumber gives the identifier its communication ID.
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

// forgetNumber lets no message find the identifier any more.
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

// forgetRemote lets the other side's queue pair be connected again.
func (id *identifier) forgetRemote() {
	c := id.cm
	if remote := (remoteQP{id.peer.Link, id.peerGUID, id.peerQPN}); c.connected[remote] == id {
		delete(c.connected, remote)
	}
}

// serviceID names a port of a port space.
func serviceID(space rdmacm.PortSpace, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// portOf is what a service ID names.
func portOf(service uint64) (rdmacm.PortSpace, uint16) {
	return rdmacm.PortSpace(service >> 16), uint16(service)
}
