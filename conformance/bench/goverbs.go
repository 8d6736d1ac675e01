// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// slots is the number of requests that a goroutine posts to a queue before it counts all of them as completed.
const slots = 1024

func options(c cell, checked bool) rdma.QueueOptions {
	return rdma.QueueOptions{Cap: ibv.QPCap{MaxSendWR: uint32(slots * c.goroutines), MaxSendSGE: 1},
		Unchecked: !checked, Way: "system"}
}

// newBatch returns a batch that contains the first list.
func newBatch(size int) (*rdma.SendBatch, error) {
	b, err := rdma.NewSendBatch(size, 1, 0)
	if err != nil {
		return nil, err
	}
	buildBatch(b, 0, uint64(size))
	return b, b.Err()
}

// buildBatch and patchBatch are separate leaf functions, since their values would not fit into registers in the posting
// loop.
//
//go:noinline
func buildBatch(b *rdma.SendBatch, i, size uint64) {
	length, lkey, rkey, step := theWork.length, theWork.lkey, theWork.rkey, uint64(theWork.length)
	addr, remote := theWork.addr+i*step, theWork.remoteAddr+i*step
	wrs, sges := b.Fill(int(size))
	sges = sges[:len(wrs)]
	for k := range wrs {
		wr, sge := &wrs[k], &sges[k]
		wr.WRID, wr.Opcode, wr.SendFlags = i, ibv.WR_RDMA_WRITE, 0
		to := wr.WR.RDMA()
		to.RemoteAddr, to.RKey = remote, rkey
		sge.Addr, sge.Length, sge.LKey = addr, length, lkey
		i, addr, remote = i+1, addr+step, remote+step
	}
	wrs[len(wrs)-1].SendFlags = ibv.SEND_SIGNALED
}

//go:noinline
func patchBatch(b *rdma.SendBatch, i, size uint64) {
	step := uint64(theWork.length)
	addr, remote := theWork.addr+i*step, theWork.remoteAddr+i*step
	for k := range int(size) {
		wr := b.WR(k)
		wr.WRID = i
		wr.WR.RDMA().RemoteAddr = remote
		wr.SGList.Deref().Addr = addr
		i, addr, remote = i+1, addr+step, remote+step
	}
}

func sendQueues(c cell, s *stub, checked bool) (all []*rdma.SendQueue, err error) {
	for _, qp := range s.qps(c.qps) {
		q, err := rdma.NewSendQueue(qp, options(c, checked))
		if err != nil {
			return nil, err
		}
		all = append(all, q)
	}
	return all, nil
}

func prepareDefault(c cell, s *stub) (sampler, error) { return prepareShared(c, s, false) }
func prepareChecked(c cell, s *stub) (sampler, error) { return prepareShared(c, s, true) }

// prepareShared creates one queue for all goroutines, each of which has a batch.
func prepareShared(c cell, s *stub, checked bool) (sampler, error) {
	queues, err := sendQueues(c, s, checked)
	if err != nil {
		return nil, err
	}
	cq, err := rdma.NewCompletionQueue(s.cq(c.batch), options(c, checked))
	if err != nil {
		return nil, err
	}
	if checked { // polls release slots
		cq.Track(s.qps(1)[0].QPNum, queues[0], nil)
	}
	return goroutines(func(c cell, s *stub) (runner, error) {
		if c.name == casePoll {
			return pollBy(cq, c.batch), nil
		}
		b, err := newBatch(c.batch)
		if err != nil {
			return nil, err
		}
		if checked {
			return completing(c, queues, postTo(c, queues, b)), nil
		}
		return postTo(c, queues, b), nil
	})(c, s)
}

// completing counts all posted requests as completed before a checked queue is full. Polling is not part of these
// cases; the case poll includes the accounting of polls.
func completing(c cell, queues []*rdma.SendQueue, post runner) runner {
	chunk := slots / max(c.batch, 1) * len(queues)
	capacity := chunk
	return func(n int) error {
		for n > 0 {
			now := min(n, capacity)
			if err := post(now); err != nil {
				return err
			}
			n -= now
			capacity -= (now + len(queues) - 1) / len(queues) * len(queues)
			if capacity > 0 {
				continue
			}
			capacity = chunk
			for _, q := range queues {
				q.Reset()
			}
		}
		return nil
	}
}
