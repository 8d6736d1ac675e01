// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/rdma/soft/internal/verbs"
	"github.com/goverbs/goverbs/runtime"
)

// identifier is rdma_cm_id. Its record is written only during the program's calls, as in librdmacm.
type identifier struct {
	cm      *Manager
	record  *rdmacm.CMID // nil for an undelivered request
	channel *channel
	events  resource.Reports
	space   rdmacm.PortSpace
	kind    ibv.QPType
	sync    bool // synchronous: has a private channel
	gone    bool // destroyed, except for unacknowledged events
	failed  bool // connecting its queue pair failed

	state    state
	local    netip.AddrPort
	to       netip.AddrPort
	scope    uint32        // interface of its link-local addresses, or 0
	device   *verbs.Device // nil: not bound to a device
	shares   *openDevice   // open device, once set in the record
	port     portKey       // bound port; 0: none
	claim    *claim        // claim of the port, or nil
	asked    *exchange
	timer    uint64      // resolve timeout or TIME_WAIT
	listener *identifier // for a request

	reuse, afOnly bool
	tos           uint8
	timeout       uint8
	ece, peerECE  eceOptions

	backlog   int // listener: maximum number of waiting requests
	waiting   int
	waitingOf map[uint64]int // waiting requests by link address of the sender
	rank      int            // request: number of earlier waiting requests of its host

	// Connection
	number     uint32          // communication ID; 0 before a request
	peer       message.Address // port of the peer
	peerGUID   uint64          // GUID of the peer's device, once known
	peerNumber uint32          // peer's communication ID, once known
	tid        uint64          // transaction ID of the request
	refusal    *message.MAD    // rejection sent for the request, or nil
	// transaction ID of the peer's message that the program processes or processed last
	processingTID            uint64
	param                    rdmacm.ConnParam
	private                  []byte
	qpn, peerQPN             uint32
	psn, peerPSN             uint32
	pathMTU                  ibv.MTU // proposed by the peer; 0 on the active side
	initiator, responder     uint8   // initiator_depth and responder_resources of the queue pair
	retries, notReadyRetries uint8

	groups    []*group        // joined multicast groups
	passive   *ibv.QPInitAttr // from rdma_create_ep: attributes of the queue pairs of requests
	looking   bool            // rdma_resolve_addrinfo was called and its result not yet queried
	addresses *addrInfoRecord // result of rdma_resolve_addrinfo
}

type eceOptions struct{ vendor, options uint32 }

func (id *identifier) datagrams() bool { return id.kind == ibv.QPT_UD }

// state is the state of an identifier.
type state uint8

const (
	idle state = iota
	bound
	addrQuery
	addrResolved
	routeQuery
	routeResolved
	listening
	requesting  // REQ sent
	requested   // REQ received
	accepting   // REP sent
	answered    // REP received
	established // or a lookup was answered
	leaving     // DREQ sent
	left        // DREQ received
	over        // disconnected or failed
)

// portSpaceKind reports whether a port space is valid and whether it is for datagrams.
func portSpaceKind(ps rdmacm.PortSpace) (datagrams, ok bool) {
	switch ps {
	case rdmacm.PS_TCP, rdmacm.PS_IB:
		return false, true
	case rdmacm.PS_UDP, rdmacm.PS_IPOIB:
		return true, true
	}
	return false, false
}

// locked calls f under the fabric's lock unless the identifier was destroyed.
func (id *identifier) locked(f func() runtime.Errno) runtime.Errno {
	id.cm.Lock()
	defer id.cm.Unlock()
	if id.gone {
		return syscall.EINVAL
	}
	return f()
}

// sent is locked for functions that send messages to the peer. It returns after the messages are on the wire, because
// the program may exit next, which a kernel would survive.
func (id *identifier) sent(f func() runtime.Errno) runtime.Errno {
	c := id.cm
	errno := id.locked(f)
	c.Sent()
	return errno
}
