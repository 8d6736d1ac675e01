package soft

import (
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
)

// cmManager is the connection manager of a fabric. Everything of it is under the fabric's lock.
type cmManager struct {
	*Fabric
	response time.Duration // a message is sent again after it
	ids      []*cmID       // all of them, in the order in which they were made
	bound    map[cmPort][]*cmID
	lastPort uint16                // the last one given to an identifier that asked for any
	opened   map[*device]*cmDevice // by the program's identifiers
	channels int
	psn      uint32

	// Where the messages that come in find their identifiers.
	numbered   map[uint32]*cmID     // by communication ID
	requests   map[cmPeer]*cmID     // those that were made of a request, by its sender
	connected  map[cmRemoteQP]*cmID // those that are connected to a queue pair elsewhere, by that one
	lastNumber uint32               // the last communication ID
	lastTID    uint64
}

// cmPeer is an identifier elsewhere: the link address of its port, and its communication ID.
type cmPeer struct {
	link   uint64
	number uint32
}

// cmRemoteQP is a queue pair elsewhere.
type cmRemoteQP struct {
	link   uint64
	number uint32
}

// What Linux does: a message is sent again after 4.096 µs · 2²⁰, 15 times; an answer of a program that has the message may take as long as all
// of that together.
const (
	cmResponse = 4096 << 20 * time.Nanosecond
	cmRetries  = 15
	cmTimeout  = 17 // of queue pairs, where nobody sets another one: 0.54 s
)

func newCM(f *Fabric, response time.Duration) *cmManager {
	c := &cmManager{
		Fabric: f, response: response, bound: map[cmPort][]*cmID{}, opened: map[*device]*cmDevice{}, lastPort: firstPort - 1,
		numbered: map[uint32]*cmID{}, requests: map[cmPeer]*cmID{}, connected: map[cmRemoteQP]*cmID{},
	}
	if c.response <= 0 {
		c.response = cmResponse
	}
	return c
}

func (c *cmManager) openChannels() int { return c.channels }

func (id *cmID) resource() (string, *Fabric)      { return "cm_id", id.cm.Fabric }
func (ch *cmChannel) resource() (string, *Fabric) { return "event channel", ch.cm.Fabric }
func (i *addrInfo) resource() (string, *Fabric)   { return "address info", i.cm.Fabric }

// cmState is how far an identifier has come.
type cmState uint8

const (
	cmIdle cmState = iota
	cmBound
	cmAddrQuery
	cmAddrResolved
	cmRouteQuery
	cmRouteResolved
	cmListening
	cmRequesting  // a request was sent
	cmRequested   // one came in
	cmAccepting   // it was answered
	cmAnswered    // the answer came in
	cmEstablished // or a lookup has its answer
	cmLeaving     // the end was said
	cmLeft        // the other side said so
	cmOver        // both have, or it came to nothing
)

// portSpaceKind says whether a port space is one, and whether it is of datagrams.
func portSpaceKind(ps rdmacm.PortSpace) (datagrams, ok bool) {
	switch ps {
	case rdmacm.PS_TCP, rdmacm.PS_IB:
		return false, true
	case rdmacm.PS_UDP, rdmacm.PS_IPOIB:
		return true, true
	}
	return false, false
}
