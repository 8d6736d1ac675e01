package main

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func options(checked bool) rdma.QueueOptions {
	return rdma.QueueOptions{Cap: ibv.QPCap{MaxSendWR: depth, MaxSendSGE: 1}, Unchecked: !checked, Way: "exclusive"}
}

// newBatch is a batch with the first list in it.
func newBatch(size int) (*rdma.SendBatch, error) {
	b, err := rdma.NewSendBatch(size, 1, 0)
	if err != nil {
		return nil, err
	}
	buildBatch(b, 0, size)
	return b, b.Err()
}

func buildBatch(b *rdma.SendBatch, i uint64, size int) {
	w, offset := &theWork, i*uint64(theWork.length)
	b.Reset()
	for k := range uint64(size) {
		r := b.Write(i+k, w.remoteAddr+offset, w.rkey).SGE(w.addr+offset, w.length, w.lkey)
		if int(k)+1 == size {
			r.Signaled()
		}
		offset += uint64(w.length)
	}
}

func patchBatch(b *rdma.SendBatch, i uint64) {
	w, offset := &theWork, i*uint64(theWork.length)
	for k := range b.Len() {
		wr := b.WR(k)
		wr.WRID = i + uint64(k)
		wr.WR.RDMA().RemoteAddr = w.remoteAddr + offset
		b.SGEs(k)[0].Addr = w.addr + offset
		offset += uint64(w.length)
	}
}

func sendQueues(c cell, s *stub, checked bool) (all []*rdma.SendQueue, err error) {
	for _, qp := range s.qps(c.qps) {
		q, err := rdma.NewSendQueue(qp, options(checked))
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, nil
}

func prepareExclusive(c cell, s *stub) (sampler, error) {
	if c.name == casePoll {
		q, err := rdma.NewCompletionQueue(s.cq(c.batch), options(false))
		if err != nil {
			return nil, err
		}
		x, err := q.Exclusive()
		if err != nil {
			return nil, err
		}
		return together([]runner{pollExclusive(x, c.batch)}), nil
	}
	queues, err := sendQueues(c, s, false)
	if err != nil {
		return nil, err
	}
	var handles []*rdma.ExclusiveSendQueue
	for _, q := range queues {
		x, err := q.Exclusive()
		if err != nil {
			return nil, err
		}
		handles = append(handles, x)
	}
	b, err := newBatch(c.batch)
	if err != nil {
		return nil, err
	}
	return together([]runner{postExclusive(c, handles, b)}), nil
}

func prepareDefault(c cell, s *stub) (sampler, error) { return prepareShared(c, s, false) }
func prepareChecked(c cell, s *stub) (sampler, error) { return prepareShared(c, s, true) }

// prepareShared has one queue for all goroutines, each with a batch of its own.
func prepareShared(c cell, s *stub, checked bool) (sampler, error) {
	queues, err := sendQueues(c, s, checked)
	if err != nil {
		return nil, err
	}
	return goroutines(func(c cell, s *stub) (runner, error) {
		if c.name == casePoll {
			q, err := rdma.NewCompletionQueue(s.cq(c.batch), options(checked))
			if err != nil {
				return nil, err
			}
			return pollShared(q, c.batch), nil
		}
		b, err := newBatch(c.batch)
		if err != nil {
			return nil, err
		}
		return postShared(c, queues, b), nil
	})(c, s)
}
