// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"math/bits"
	"slices"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma"
)

const (
	atomicWriteSize = 8
	readFlushSize   = 8
	rawSize         = readFlushSize + atomicWriteSize
)

// sends posts to a connection's send queue. It has one preallocated request of each type.
type sends struct {
	mu     lock.Lock
	qp     *rdma.QP
	batch  *rdma.SendBatch // contains one request
	wr     *ibv.SendWR     // that request
	sge    *ibv.SGE        // its entry
	flush  native          // with native flush
	atomic native          // with native atomic writes
	raw    *MR             // without one of them: flushes read into its first 8 bytes
	value  []byte          // the other 8 bytes: the value of an atomic write until it is posted
	// fence is a flag of atomic writes: they wait for earlier flushes, unless the device executes both in order.
	fence ibv.SendFlags

	flushes uint64
	recent  []uint64 // ids of the last flushes, as many as can be outstanding; the length is a power of two
}

// native is a request that can be posted only through an extended queue pair.
type native struct {
	program *rdma.WRProgram
	request rdma.WRRequest
}

func (s *sends) init(l *link, size int) (err error) {
	s.qp, s.recent = l.qp, make([]uint64, 1<<bits.Len(uint(size-1)))
	if s.batch, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return err
	}
	wrs, sges := s.batch.Fill(1)
	s.wr, s.sge = &wrs[0], &sges[0]
	if l.peer.nativeAtomicWrite {
		if s.atomic.program, err = s.qp.NewWRProgram(); err != nil {
			return err
		}
		s.atomic.request = s.atomic.program.AtomicWrite(0, 0, 0, [atomicWriteSize]byte{})
	}
	if l.peer.nativeFlush {
		if s.flush.program, err = s.qp.NewWRProgram(); err != nil {
			return err
		}
		s.flush.request = s.flush.program.Flush(0, 0, 0, 0, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE))
	}
	if l.peer.nativeFlush && l.peer.nativeAtomicWrite {
		return errors.Join(s.flush.program.Err(), s.atomic.program.Err())
	}
	s.fence = ibv.SEND_FENCE
	s.raw, err = l.peer.RegMR(make([]byte, rawSize), ReadDst)
	if err == nil {
		s.value = s.raw.bytes[readFlushSize:]
	}
	return errors.Join(err, s.flush.err(), s.atomic.err())
}

func (n *native) err() error {
	if n.program == nil {
		return nil
	}
	return n.program.Err()
}

func (s *sends) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.raw != nil {
		if err := s.raw.Close(); err != nil {
			return err
		}
	}
	if s.batch != nil {
		return s.batch.Close()
	}
	return nil
}

// begin locks s and returns the request with its id, opcode and flags set; post unlocks s.
func (s *sends) begin(id uint64, opcode ibv.WROpcode, flags Flags) *ibv.SendWR {
	s.mu.Lock()
	w := s.wr
	w.WRID, w.Opcode, w.SendFlags = id, opcode, sendFlags(flags)
	return w
}

// to sets the remote memory of a request.
func to(w *ibv.SendWR, r *RemoteMR, offset uint64) {
	remote := w.WR.RDMA()
	remote.RemoteAddr, remote.RKey = r.address+offset, r.rkey
}

// post sets the request's local memory, posts it, and unlocks s.
func (s *sends) post(op string, local *MR, offset, length uint64) error {
	w := s.wr
	if w.NumSGE = 0; length != 0 {
		w.NumSGE = 1
		s.sge.Addr, s.sge.Length, s.sge.LKey = local.region.Address+offset, uint32(length), local.region.LKey
	}
	_, err := s.qp.PostSend(s.batch)
	s.mu.Unlock()
	if err != nil {
		return failed(op, err)
	}
	return nil
}

// ended unlocks s after a native request was posted, and returns the operation's result.
func (s *sends) ended(op string, err error) error {
	s.mu.Unlock()
	if err != nil {
		return failed(op, err)
	}
	return nil
}

// flushingRead returns the range that a read must have to flush at an offset. The region contains all of it.
func (s *sends) flushingRead(dst *RemoteMR, offset uint64) (remote uint64, length uint64) {
	length = min(readFlushSize, dst.length)
	return dst.address + min(offset, dst.length-length), length
}

// flushed records the id of a flush. The caller holds mu.
func (s *sends) flushed(id uint64) {
	s.recent[s.flushes&uint64(len(s.recent)-1)] = id
	s.flushes++
}

// wasFlush reports whether one of the last flushes had the id.
func (s *sends) wasFlush(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.recent[:min(s.flushes, uint64(len(s.recent)))], id)
}
