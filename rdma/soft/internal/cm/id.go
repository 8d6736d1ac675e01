// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"

	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// identifier is rdma_cm_id. The record is written only in calls of the program's, as by librdmacm.
type identifier struct {
	cm      *Manager
	record  *rdmacm.CMID // nil of a request that the program has not taken
	channel *channel
	events  device.Reports
	space   rdmacm.PortSpace
	kind    ibv.QPType
	sync    bool // the channel is its own
	gone    bool // it is destroyed, but for events that are not acknowledged
	failed  bool // its queue pair could not be connected

	state    state
	local    netip.AddrPort
	to       netip.AddrPort
	scope    uint32         // the interface of its link-local addresses, or 0
	device   *device.Device // that it is on, or nil
	shares   *openDevice    // of device, once the program can see it
	port     portKey        // that it has in bound; 0 for none
	claim    *claim         // of the port, if it is claimed
	asked    *exchange
	timer    uint64      // of resolving or of TIME_WAIT
	listener *identifier // where a request came in

	reuse, afOnly bool
	tos           uint8
	timeout       uint8
	ece, peerECE  eceOptions

	backlog   int // of a listener: how many requests may wait to be taken
	waiting   int
	waitingOf map[uint64]int // by the link address of their senders
	rank      int            // of a request: how many of its host waited before it

	// Of a connection.
	number                   uint32          // its communication ID; 0 before it has sent or got a request
	peer                     message.Address // the port of the other end
	peerGUID                 uint64          // of the other end's device, once it is known
	peerNumber               uint32          // the other end's communication ID, once it is known
	tid                      uint64          // transaction ID of the request
	refusal                  *message.MAD    // that answered the request; nil for none
	inHand                   uint64          // transaction ID of the other side's message that the program has, or had
	param                    rdmacm.ConnParam
	private                  []byte
	qpn, peerQPN             uint32
	psn, peerPSN             uint32
	pathMTU                  ibv.MTU // that the other side proposed; 0 where this side did
	initiator, responder     uint8   // initiator_depth and responder_resources of its queue pair
	retries, notReadyRetries uint8

	groups    []*group        // of multicast, that it has joined
	passive   *ibv.QPInitAttr // of rdma_create_ep: what requests get
	looking   bool            // rdma_resolve_addrinfo was called, and its answer was not taken
	addresses *addrInfoRecord // the answer
}

type eceOptions struct{ vendor, options uint32 }

func (id *identifier) datagrams() bool { return id.kind == ibv.QPT_UD }

// state is how far an identifier has come.
type state uint8

const (
	idle state = iota
	bound
	addrQuery
	addrResolved
	routeQuery
	routeResolved
	listening
	requesting  // a request was sent
	requested   // one came in
	accepting   // it was answered
	answered    // the answer came in
	established // or a lookup has its answer
	leaving     // the end was said
	left        // the other side said so
	over        // both have, or it came to nothing
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

// locked calls f under the fabric's lock, if the identifier is still there.
func (id *identifier) locked(f func() runtime.Errno) runtime.Errno {
	id.cm.Lock()
	defer id.cm.Unlock()
	if id.gone {
		return syscall.EINVAL
	}
	return f()
}

// sent is locked of what says something to the other side. It is on the wire when sent returns: a program may exit
// next, and a kernel would go on.
func (id *identifier) sent(f func() runtime.Errno) runtime.Errno {
	c := id.cm
	errno := id.locked(f)
	c.Sent()
	return errno
}
