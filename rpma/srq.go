// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma"
)

// SRQConfig configures a shared receive queue. The zero value means the defaults.
//
// C: rpma_srq_cfg_new, rpma_srq_cfg_delete
type SRQConfig struct {
	// RQSize is the maximum number of outstanding receives. 0 means 20.
	//
	// C: rpma_srq_cfg_set_rq_size, rpma_srq_cfg_get_rq_size
	RQSize int
	// RecvCQSize is the size of the queue's own completion queue, raised to RQSize. 0 means 20. A negative number means
	// no such queue: receives complete in the connection's queue.
	//
	// C: rpma_srq_cfg_set_rcq_size, rpma_srq_cfg_get_rcq_size
	RecvCQSize int
}

// SRQ is a receive queue that any number of a peer's connections share.
type SRQ struct {
	srq   *rdma.SRQ
	cq    *CQ // or nil
	recvs recvs
}

func (s *SRQ) created() bool { return s != nil && s.srq != nil }

// NewSRQ creates a shared receive queue. Set [ConnConfig].SRQ to use it in connections.
//
// C: rpma_srq_new
func (p *Peer) NewSRQ(config SRQConfig) (*SRQ, error) {
	const op = "Peer.NewSRQ"
	if !p.created() {
		return nil, notCreated(op)
	}
	if config.RQSize < 0 {
		return nil, invalid(op, "negative RQSize %d", config.RQSize)
	}
	size := config.RQSize
	if size == 0 {
		size = defaultSRQSize
	}
	s := new(SRQ)
	var err error
	if s.srq, err = p.pd.CreateSRQ(ibv.SRQAttr{MaxWR: uint32(size), MaxSGE: 1}, rdma.QueueOptions{}); err != nil {
		return nil, failed(op, err)
	}
	if config.RecvCQSize >= 0 {
		s.cq, err = newCQ(p.device.Device, max(size, config.RecvCQSize), nil)
	}
	if err == nil {
		err = s.recvs.init()
	}
	if err != nil {
		closeAll(append([]rdma.Object{s.srq}, s.cq.objects()...)...)
		return nil, failed(op, err)
	}
	return s, nil
}

// Recv posts a receive of up to length bytes at an offset of dst. dst may be nil for messages without data; offset and
// length must then be 0. The completion has the id.
//
// C: rpma_srq_recv
func (s *SRQ) Recv(dst *MR, offset, length uint64, id uint64) error {
	const op = "SRQ.Recv"
	if !s.created() {
		return notCreated(op)
	}
	return s.recvs.post(op, s.srq, dst, offset, length, id)
}

// RecvCQ returns the queue's own completion queue, or nil.
//
// C: rpma_srq_get_rcq
func (s *SRQ) RecvCQ() *CQ {
	if s == nil {
		return nil
	}
	return s.cq
}

// RDMA returns the queue as an object of package rdma. It belongs to the SRQ.
func (s *SRQ) RDMA() *rdma.SRQ {
	if s == nil {
		return nil
	}
	return s.srq
}

// Close deletes the queue. Close its connections first. Unused receives have no completion.
//
// C: rpma_srq_delete
func (s *SRQ) Close() error {
	if !s.created() {
		return notCreated("SRQ.Close")
	}
	if err := rdma.CloseAll(nil, append([]rdma.Object{s.srq}, s.cq.objects()...)...); err != nil {
		return failed("SRQ.Close", err)
	}
	s.recvs.close()
	return nil
}

// recvs posts receives, one at a time.
type recvs struct {
	mu    lock.Lock
	batch *rdma.RecvBatch
}

func (r *recvs) init() (err error) {
	r.batch, err = rdma.NewRecvBatch(1, 1)
	return err
}

func (r *recvs) post(op string, to receiver, dst *MR, offset, length, id uint64) error {
	if dst == nil {
		if offset != 0 || length != 0 {
			return noRegion(op)
		}
	} else if !dst.has(offset, length) {
		return dst.outOfRange(op, offset, length)
	}
	r.mu.Lock()
	r.batch.Reset()
	w := r.batch.Recv(id)
	if dst != nil {
		w.SGE(dst.region.Address+offset, uint32(length), dst.region.LKey)
	}
	_, err := to.PostRecv(r.batch)
	r.mu.Unlock()
	if err != nil {
		return failed(op, err)
	}
	return nil
}

// receiver is an rdma.QP or an rdma.SRQ.
type receiver interface {
	PostRecv(b *rdma.RecvBatch) (posted int, err error)
}

func (r *recvs) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.batch != nil {
		r.batch.Close()
	}
}

func noRegion(op string) error {
	return invalid(op, "no region; it may be nil only if offsets and length are 0")
}
