// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
)

// The reference model computes the results of verbs programs independently of the device. It uses slices instead of
// rings and registered memory. Reliable connections wait indefinitely for receives. Unanswered requests time out once
// no queue pair can make progress.

// refDevice is the expected memory of a device.
type refDevice struct {
	main    []byte // registered with all access flags
	fixed   []byte // registered for local reads only
	foreign []byte // registered in another protection domain
}

// refPiece is a range of bytes in a region. The region also determines whether the key is valid.
type refPiece struct {
	of             refRegion
	offset, length int
}

type refRegion int

const (
	ofMain    refRegion = iota
	ofFixed             // local reads only
	ofForeign           // registered in another protection domain
	ofNone              // main memory, accessed with a nonexistent key
	ofWindow            // main memory, accessed with the key of the peer's memory window, bound or not
)

type refSend struct {
	id            uint64
	position      int
	op            ibv.WROpcode
	signalled     bool
	local         []refPiece
	inline        []byte // nil if the request is not inline
	remote        refPiece
	imm           uint32
	operand, swap uint64
	to            *refQP // destination of a datagram
	wrongQKey     bool
	key           uint32    // key of the memory window to bind, invalidate or write through
	window        [2]int    // start and length of the memory window to bind
	queue         *refQueue // XRC only: the shared receive queue, or nil if none has the number
	number        uint32
	whole         bool // flush the entire region and ignore the range
}

type refRecv struct {
	id     uint64
	pieces []refPiece
}

// refQueue holds the receives of one queue pair or of a shared receive queue.
type refQueue struct {
	recvs           []refRecv
	posted, retired int
	shared          bool
}

// refDone is an expected completion.
type refDone struct {
	id       uint64
	status   ibv.WCStatus
	opcode   ibv.WCOpcode
	position int
	length   int
	imm      uint32
	ended    uint32 // key of the memory window that the message invalidated
	queue    *refQueue
}

type refQP struct {
	world           *refWorld
	kind            ibv.QPType
	device          int
	peer            *refQP
	state           ibv.QPState // RTS, SQE or ERR
	destroyed       bool
	unanswered      bool
	sends           []refSend
	recvs           *refQueue
	posted, retired int
	sent, received  []refDone

	key    uint32 // of its memory window, or 0 if that is not bound
	window [2]int
}

// reliable reports whether the peer acknowledges the queue pair's requests.
func (q *refQP) reliable() bool { return q.kind == ibv.QPT_RC || q.kind == ibv.QPT_XRC_SEND }

type refWorld struct {
	devices [2]refDevice
	qps     []*refQP
	headers func(q *refQP, pieces []refPiece) []byte // the GRH area that the device wrote before a datagram
}

// run executes ready requests until none is ready.
func (w *refWorld) run() {
	for moved := true; moved; {
		moved = false
		for _, q := range w.qps {
			for q.step() {
				moved = true
			}
		}
	}
}

// wait runs all requests, and times out unanswered ones until none is left.
func (w *refWorld) wait() {
	w.run()
	for _, q := range w.qps {
		if q.unanswered && q.state == ibv.QPS_RTS && !q.destroyed {
			q.end(ibv.WC_RETRY_EXC_ERR)
			w.wait()
			return
		}
	}
}

// step executes the first request of the send queue unless it must wait. It reports whether the request completed.
func (q *refQP) step() bool {
	if len(q.sends) == 0 || q.destroyed {
		return false
	}
	if q.state != ibv.QPS_RTS {
		q.end(ibv.WC_WR_FLUSH_ERR)
		return true
	}
	s := &q.sends[0]
	switch s.op {
	case ibv.WR_BIND_MW:
		if q.key != 0 {
			q.end(ibv.WC_MW_BIND_ERR)
			return true
		}
		q.key, q.window = s.key, s.window
		q.end(ibv.WC_SUCCESS)
		return true
	case ibv.WR_LOCAL_INV:
		if q.key == 0 || q.key != s.key {
			q.end(ibv.WC_LOC_QP_OP_ERR)
			return true
		}
		q.key = 0
		q.end(ibv.WC_SUCCESS)
		return true
	}
	writes := s.op == ibv.WR_RDMA_READ || s.op == ibv.WR_ATOMIC_CMP_AND_SWP || s.op == ibv.WR_ATOMIC_FETCH_AND_ADD
	if s.inline == nil && !allowed(s.local, writes) {
		q.end(ibv.WC_LOC_PROT_ERR)
		return true
	}
	data := s.inline
	if data == nil {
		data = q.world.gather(q.device, s.local)
	}
	peer := q.peer
	if q.kind == ibv.QPT_UD {
		if peer = s.to; s.wrongQKey || peer.kind != ibv.QPT_UD {
			peer = nil
		}
	}
	if peer == nil || peer.destroyed || peer.state == ibv.QPS_ERR {
		if q.reliable() {
			q.unanswered = true
			return false
		}
		q.end(ibv.WC_SUCCESS)
		return true
	}
	return q.reachPeer(peer, s, data)
}

// reachPeer executes a request at the peer and reports whether it completed.
func (q *refQP) reachPeer(peer *refQP, s *refSend, data []byte) bool {
	w := q.world
	access, named := refAccess[s.op]
	messages := !named
	takes, queue := messages || s.op == ibv.WR_RDMA_WRITE_WITH_IMM, peer.recvs
	if !messages {
		if refWords[s.op] && s.remote.offset%8 != 0 {
			return q.reject(peer, ibv.WC_REM_INV_REQ_ERR)
		}
		if (s.remote.length > 0 || s.op == ibv.WR_FLUSH) && !peer.permits(s, access) {
			return q.reject(peer, ibv.WC_REM_ACCESS_ERR)
		}
	}
	if q.kind == ibv.QPT_XRC_SEND {
		if queue = s.queue; takes && queue == nil {
			return q.reject(peer, ibv.WC_REM_INV_REQ_ERR)
		}
	}
	if takes && len(queue.recvs) == 0 {
		if q.reliable() {
			return false
		}
		q.end(ibv.WC_SUCCESS) // dropped without an error on either side
		return true
	}
	remote := w.devices[peer.device].main[min(s.remote.offset, len(w.devices[0].main)):]
	switch s.op {
	case ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_ATOMIC_WRITE:
		copy(remote, data)
	case ibv.WR_RDMA_READ:
		w.scatter(q.device, s.local, slices.Clone(remote[:s.remote.length]))
	case ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_CMP_AND_SWP:
		was := slices.Clone(remote[:8])
		v := binary.NativeEndian.Uint64(was)
		if s.op == ibv.WR_ATOMIC_FETCH_AND_ADD {
			binary.NativeEndian.PutUint64(remote, v+s.operand)
		} else if v == s.operand {
			binary.NativeEndian.PutUint64(remote, s.swap)
		}
		w.scatter(q.device, s.local, was)
	}
	if takes {
		recv := queue.recvs[0]
		queue.recvs = queue.recvs[1:]
		done := refDone{id: recv.id, opcode: ibv.WC_RECV, length: len(data), imm: s.imm, queue: queue}
		if !messages {
			done.opcode = ibv.WC_RECV_RDMA_WITH_IMM
		} else if s.op == ibv.WR_SEND_WITH_INV && (peer.key == 0 || peer.key != s.key) {
			done.status = ibv.WC_REM_INV_REQ_ERR
			peer.received = append(peer.received, done)
			return q.reject(peer, ibv.WC_REM_INV_REQ_ERR)
		} else if status := peer.deliver(q, &recv, data, &done); status != ibv.WC_SUCCESS {
			peer.received = append(peer.received, done)
			return q.reject(peer, status)
		} else if s.op == ibv.WR_SEND_WITH_INV {
			done.ended, peer.key = s.key, 0
		}
		peer.received = append(peer.received, done)
	}
	q.end(ibv.WC_SUCCESS)
	return true
}

// deliver delivers a message to a receive, and returns the sender's status.
func (q *refQP) deliver(from *refQP, recv *refRecv, data []byte, done *refDone) ibv.WCStatus {
	room := 0
	for _, p := range recv.pieces {
		room += p.length
	}
	n := len(data)
	if q.kind == ibv.QPT_UD {
		n += engine.GRHSize
	}
	done.length = n
	used, rest := []refPiece{}, n
	for _, p := range recv.pieces {
		if rest <= 0 {
			break
		}
		used, rest = append(used, p), rest-p.length
	}
	switch {
	case !allowed(used, true):
		done.status = ibv.WC_LOC_PROT_ERR
		return ibv.WC_REM_OP_ERR
	case room < n:
		done.status = ibv.WC_LOC_LEN_ERR
		return ibv.WC_REM_INV_REQ_ERR
	}
	if q.kind == ibv.QPT_UD {
		data = append(q.world.headers(q, recv.pieces), data...)
	}
	q.world.scatter(q.device, recv.pieces, data)
	return ibv.WC_SUCCESS
}

// permits reports whether the request may access its remote range with the given access flag.
func (q *refQP) permits(s *refSend, access ibv.AccessFlags) bool {
	p := &s.remote
	inside := p.offset >= 0 && p.offset+p.length <= len(q.world.devices[0].main)
	switch p.of {
	case ofMain:
		return inside || s.whole
	case ofWindow:
		return q.key != 0 && q.key == s.key && access&(ibv.ACCESS_REMOTE_ATOMIC|ibv.ACCESS_FLUSH_GLOBAL) == 0 &&
			p.offset >= q.window[0] && p.offset+p.length <= q.window[0]+q.window[1]
	}
	return false
}

// allowed reports whether the owner may read the pieces or, if write is set, write them. It ignores empty pieces.
func allowed(pieces []refPiece, write bool) bool {
	for _, p := range pieces {
		if p.length > 0 && (p.of >= ofForeign || p.of == ofFixed && write || p.of == ofMain &&
			p.offset+p.length > refSize) {
			return false
		}
	}
	return true
}

// reject completes a request that the peer rejects. On an unreliable transport, the data is dropped and the request
// succeeds.
func (q *refQP) reject(peer *refQP, status ibv.WCStatus) bool {
	if q.reliable() {
		peer.breakDown()
		q.end(status)
		return true
	}
	q.end(ibv.WC_SUCCESS)
	return true
}

// end completes the first request of the send queue.
func (q *refQP) end(status ibv.WCStatus) {
	s := q.sends[0]
	q.sends = q.sends[1:]
	if s.signalled || status != ibv.WC_SUCCESS {
		q.sent = append(q.sent, refDone{id: s.id, status: status, opcode: refOpcodes[s.op], position: s.position})
	}
	switch {
	case status == ibv.WC_SUCCESS, status == ibv.WC_WR_FLUSH_ERR:
	case q.reliable():
		q.breakDown()
	default:
		q.state = ibv.QPS_SQE
	}
}

var refOpcodes = map[ibv.WROpcode]ibv.WCOpcode{
	ibv.WR_SEND: ibv.WC_SEND, ibv.WR_SEND_WITH_IMM: ibv.WC_SEND, ibv.WR_SEND_WITH_INV: ibv.WC_SEND,
	ibv.WR_RDMA_WRITE:          ibv.WC_RDMA_WRITE,
	ibv.WR_RDMA_WRITE_WITH_IMM: ibv.WC_RDMA_WRITE, ibv.WR_RDMA_READ: ibv.WC_RDMA_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP:   ibv.WC_COMP_SWAP,
	ibv.WR_ATOMIC_FETCH_AND_ADD: ibv.WC_FETCH_ADD, ibv.WR_BIND_MW: ibv.WC_BIND_MW, ibv.WR_LOCAL_INV: ibv.WC_LOCAL_INV,
	ibv.WR_ATOMIC_WRITE: ibv.WC_ATOMIC_WRITE, ibv.WR_FLUSH: ibv.WC_FLUSH,
}

// refAccess maps each operation on remote memory to the access flag that it requires.
var refAccess = map[ibv.WROpcode]ibv.AccessFlags{
	ibv.WR_RDMA_WRITE: ibv.ACCESS_REMOTE_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM: ibv.ACCESS_REMOTE_WRITE,
	ibv.WR_RDMA_READ:          ibv.ACCESS_REMOTE_READ,
	ibv.WR_ATOMIC_CMP_AND_SWP: ibv.ACCESS_REMOTE_ATOMIC, ibv.WR_ATOMIC_FETCH_AND_ADD: ibv.ACCESS_REMOTE_ATOMIC,
	ibv.WR_ATOMIC_WRITE: ibv.ACCESS_REMOTE_WRITE, ibv.WR_FLUSH: ibv.ACCESS_FLUSH_GLOBAL,
}

// refWords lists the operations on 8 bytes at an address that is a multiple of 8.
var refWords = map[ibv.WROpcode]bool{ibv.WR_ATOMIC_CMP_AND_SWP: true, ibv.WR_ATOMIC_FETCH_AND_ADD: true,
	ibv.WR_ATOMIC_WRITE: true}

// breakDown moves the queue pair to ERR, which flushes its receives.
func (q *refQP) breakDown() {
	q.state, q.unanswered = ibv.QPS_ERR, false
	q.flush()
}

func (q *refQP) flush() {
	if q.recvs.shared {
		return
	}
	for _, recv := range q.recvs.recvs {
		q.received = append(q.received, refDone{id: recv.id, status: ibv.WC_WR_FLUSH_ERR, queue: q.recvs})
	}
	q.recvs.recvs = nil
}

// bytes returns the memory of a piece. Pieces without a valid key are in main memory.
func (w *refWorld) bytes(device int, p refPiece) []byte {
	d := &w.devices[device]
	switch p.of {
	case ofFixed:
		return d.fixed[p.offset:][:p.length]
	case ofForeign:
		return d.foreign[p.offset:][:p.length]
	}
	return d.main[p.offset:][:p.length]
}

func (w *refWorld) gather(device int, pieces []refPiece) []byte {
	data := []byte{}
	for _, p := range pieces {
		if p.length > 0 {
			data = append(data, w.bytes(device, p)...)
		}
	}
	return data
}

func (w *refWorld) scatter(device int, pieces []refPiece, data []byte) {
	for _, p := range pieces {
		if len(data) > 0 && p.length > 0 {
			data = data[copy(w.bytes(device, p), data):]
		}
	}
}
