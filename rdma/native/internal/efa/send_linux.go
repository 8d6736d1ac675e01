// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

import (
	"encoding/binary"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
)

// sendQueue is a send queue. Requests are prepared in local memory, and copied to the device before the doorbell.
type sendQueue struct {
	mu sync.Mutex
	requests
	local, device []byte
	bell          *uint32 // nil: the queue is closed
	size          uint32  // of a request
	batch         uint32  // requests that the device takes before a doorbell; 0: any number
	sges          uint32  // of a request
	inline        uint32  // bytes
	inlineWrites  bool    // writes can have inline data
	next          uint16  // request; the doorbell's value
	pending       uint32  // requests that the device does not have yet
	phase         uint8   // inverted by each lap
	long          bool    // requests have numbers of 64 bits: the wr_ids
	everyOne      bool    // completes, without a flag
}

// done releases the number of a request that has completed, and returns its wr_id.
func (s *sendQueue) done(c *sendCompletion) (id uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.long {
		return s.put(c.id)
	}
	if s.used == 0 {
		return 0, false
	}
	s.used--
	var word [8]byte
	binary.LittleEndian.PutUint16(word[:], c.id)
	copy(word[2:], c.moreID[:])
	return binary.LittleEndian.Uint64(word[:]), true
}

// request begins the next request. The caller knows that there is room.
func (s *sendQueue) request(id uint64) *sendHead {
	at := s.local[(uint32(s.next)&(s.count-1))*s.size:][:s.size]
	clear(at)
	h := (*sendHead)(unsafe.Pointer(unsafe.SliceData(at)))
	if s.long {
		s.used++
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], id)
		h.id = uint16(id)
		copy(h.moreID[:], word[2:])
	} else {
		h.id = s.take(id)
	}
	h.flags = sendFirst | sendLast | sendSignaled | s.phase
	h.operation = isMetaData
	s.pending++
	if s.next++; uint32(s.next)&(s.count-1) == 0 {
		s.phase ^= sendPhase
	}
	return h
}

// takeBack undoes requests that are pending.
func (s *sendQueue) takeBack() {
	if s.long {
		s.used -= s.pending
	} else {
		s.requests.takeBack(s.pending)
	}
	for ; s.pending > 0; s.pending-- {
		if uint32(s.next)&(s.count-1) == 0 {
			s.phase ^= sendPhase
		}
		s.next--
	}
}

// buffers returns the buffers of a request.
func (h *sendHead) buffers(n int) []buffer {
	return unsafe.Slice((*buffer)(unsafe.Add(unsafe.Pointer(h), headSize)), n)
}

// publish copies pending requests to the device, and rings the doorbell.
func (s *sendQueue) publish() {
	for s.pending > 0 {
		n := s.pending
		if s.batch > 0 {
			n = min(n, s.batch)
		}
		first := uint32(s.next) - s.pending
		for i := range n {
			at := (first + i) & (s.count - 1) * s.size
			from, to := s.local[at:][:s.size], s.device[at:][:s.size]
			for ; len(from) > 0; from, to = from[narrow:], to[narrow:] {
				*(*[narrow]byte)(to) = *(*[narrow]byte)(from)
			}
		}
		s.pending -= n
		ring(s.bell, uint32(uint16(first+n)))
	}
}

// PostSend implements [driver.QPPath].
func (q *queuePair) PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) (errno int32) {
	s := &q.send
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bell == nil || qp.State != ibv.QPS_RTS && qp.State != ibv.QPS_SQD {
		errno = int32(syscall.EINVAL)
	}
	s.takeBack() // a request whose data could not be read: the post has panicked
	for ; errno == 0 && list != nil; list = list.Next.Deref() {
		if errno = q.post(list); errno != 0 {
			break
		}
	}
	s.publish()
	if errno != 0 {
		*bad = ibv.PtrTo(list)
	}
	return errno
}

// post prepares a request: a message.
func (q *queuePair) post(wr *ibv.SendWR) int32 {
	s := &q.send
	if !s.everyOne && wr.SendFlags&ibv.SEND_SIGNALED == 0 {
		return int32(syscall.EINVAL)
	}
	if s.full() {
		return int32(syscall.ENOMEM)
	}
	if wr.Opcode != ibv.WR_SEND && wr.Opcode != ibv.WR_SEND_WITH_IMM || wr.NumSGE < 0 {
		return int32(syscall.EINVAL)
	}
	to := wr.WR.UD()
	ah := q.device.file.Core.AH(to.AH)
	if ah == nil || to.RemoteQPN > mostQPN {
		return int32(syscall.EINVAL)
	}
	sges := unsafe.Slice(wr.SGList.Deref(), wr.NumSGE)
	inline := wr.SendFlags&ibv.SEND_INLINE != 0
	if inline {
		total := uint64(0)
		for i := range sges {
			total += uint64(sges[i].Length)
		}
		if total > uint64(s.inline) {
			return int32(syscall.EINVAL)
		}
	} else if uint32(wr.NumSGE) > s.sges {
		return int32(syscall.EINVAL)
	}
	h := s.request(wr.WRID)
	if inline {
		h.operation |= hasInline
		data := s.data(h)
		for i := range sges {
			n := copy(data[h.length:], memory(sges[i].Addr, sges[i].Length))
			h.length += uint16(n)
		}
	} else {
		h.setBuffers(h.buffers(len(sges)), sges)
	}
	if wr.Opcode == ibv.WR_SEND_WITH_IMM {
		h.setImm(*wr.InvalidateRKey()) // the same storage
	}
	h.ah, h.qpn, h.qkey = addressOf(ah), uint16(to.RemoteQPN), to.RemoteQKey
	return 0
}

// data returns the memory behind the head of a request.
func (s *sendQueue) data(h *sendHead) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(h), headSize)), uintptr(s.size)-headSize)
}

func (h *sendHead) setBuffers(to []buffer, sges []ibv.SGE) {
	for i := range sges {
		to[i] = buffer{length: sges[i].Length, key: sges[i].LKey & keyMask, low: uint32(sges[i].Addr),
			high: uint32(sges[i].Addr >> 32)}
	}
	h.length = uint16(len(sges))
}

// memory returns memory of the program.
func memory(address uint64, n uint32) []byte {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&address))), n)
}
