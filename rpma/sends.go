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
)

// sends posts to the send queue of a connection. It has one request of each shape, and writes it anew each time.
type sends struct {
	mu     lock.Lock
	qp     *rdma.QP
	batch  *rdma.SendBatch
	flush  native   // of a device with native flush
	atomic native   // of a device with native atomic writes
	raw    *rdma.MR // where other flushes read to
	at     ibv.SGE  // all of raw
	// fence is a flag of atomic writes: they wait for flushes before them, unless both keep their order by themselves.
	fence ibv.SendFlags

	flushes uint64
	recent  []uint64 // ids of the last flushes, as many as can be outstanding; the size is a power of two
}

// native is a request that only the builders of an extended queue pair can post.
type native struct {
	program *rdma.WRProgram
	request rdma.WRRequest
}

func (s *sends) init(l *link, size int) (err error) {
	s.qp, s.recent = l.qp, make([]uint64, 1<<bits.Len(uint(size-1)))
	if s.batch, err = rdma.NewSendBatch(1, 1, atomicWriteSize); err != nil {
		return err
	}
	if !l.peer.nativeFlush || !l.peer.nativeAtomicWrite {
		s.fence = ibv.SEND_FENCE
	}
	if l.peer.nativeAtomicWrite {
		if s.atomic.program, err = s.qp.NewWRProgram(); err != nil {
			return err
		}
		s.atomic.request = s.atomic.program.AtomicWrite(0, 0, 0, [atomicWriteSize]byte{})
	}
	if !l.peer.nativeFlush {
		s.raw, err = l.peer.register(ReadDst, func(access ibv.AccessFlags) (*rdma.MR, error) {
			return l.peer.pd.RegMR(make([]byte, readFlushSize), access)
		})
		if err == nil {
			s.at = s.raw.SGE(0, readFlushSize)
		}
		return err
	}
	if s.flush.program, err = s.qp.NewWRProgram(); err != nil {
		return err
	}
	s.flush.request = s.flush.program.Flush(0, 0, 0, 0, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE))
	return errors.Join(s.flush.program.Err(), s.atomic.err())
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

// begin takes the lock, until post, and returns an empty list for one request.
func (s *sends) begin() *rdma.SendBatch {
	s.mu.Lock()
	s.batch.Reset()
	return s.batch
}

// post gives the list's request its memory and flags, and posts it.
func (s *sends) post(op string, w rdma.SendRequest, local *MR, offset, length uint64, flags Flags) error {
	if length != 0 {
		w = w.SGE(local.region.Address+offset, uint32(length), local.region.LKey)
	}
	w.Flags(sendFlags(flags))
	_, err := s.qp.PostSend(s.batch)
	s.mu.Unlock()
	if err != nil {
		return failed(op, err)
	}
	return nil
}

// postNative posts a native request, and releases the lock, which the caller has taken.
func (s *sends) postNative(op string, n *native) error {
	err := s.qp.PostProgram(n.program)
	s.mu.Unlock()
	if err != nil {
		return failed(op, err)
	}
	return nil
}

// flushingRead is the read that flushes a part of a region: where from, and where to. All of it lies in the region.
func (s *sends) flushingRead(dst *RemoteMR, offset uint64) (remote uint64, local ibv.SGE) {
	n := min(readFlushSize, dst.length)
	return dst.address + min(offset, dst.length-n), ibv.SGE{Addr: s.at.Addr, Length: uint32(n), LKey: s.at.LKey}
}

// flushed keeps the id of a flush, for wasFlush. The caller holds mu.
func (s *sends) flushed(id uint64) {
	s.recent[s.flushes&uint64(len(s.recent)-1)] = id
	s.flushes++
}

// wasFlush reports whether one of the last flushes had an id.
func (s *sends) wasFlush(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.recent[:min(s.flushes, uint64(len(s.recent)))], id)
}
