// SPDX-License-Identifier: BSD-2-Clause

//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"log"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/runtime"
)

// pair is a queue pair and its completion queues on a device of testdata/device.c.
type pair struct {
	device  uintptr
	context ibv.Context
	qp      ibv.QPEx
	cq      ibv.CQ
	cqEx    ibv.CQEx
	options rdma.QueueOptions
	send    *rdma.SendQueue
	poll    *rdma.CompletionQueue
}

const (
	capacity = 64
	qpNum    = 0x12
)

func newPair(r *run, way string, unchecked bool) *pair {
	p := &pair{options: rdma.QueueOptions{Cap: ibv.QPCap{MaxSendWR: capacity, MaxSendSGE: 1}, Way: way,
		Unchecked: unchecked}}
	r.call("device_members", unsafe.Offsetof(p.qp.WRID), unsafe.Offsetof(p.qp.WRFlags), unsafe.Offsetof(p.cqEx.WRID),
		unsafe.Offsetof(p.cqEx.Status))
	p.device = r.call("device_new", capacity)
	slot := func(name string) ibv.FuncPtr { return ibv.FuncPtr(r.c("device_" + name)) }
	p.context.Ops.PostSend, p.context.Ops.PollCQ = slot("post_send"), slot("poll_cq")
	q, c := &p.qp, &p.cqEx
	q.QPBase = ibv.QP{Context: ibv.PtrTo(&p.context), QPContext: p.device, QPNum: qpNum, QPType: ibv.QPT_RC,
		State: ibv.QPS_RTS}
	q.WRStart, q.WRRDMAWrite, q.WRSetSGE, q.WRComplete = slot("wr_start"), slot("wr_rdma_write"), slot("wr_set_sge"),
		slot("wr_complete")
	p.cq.Context, p.cq.CQContext = ibv.PtrTo(&p.context), p.device
	c.Context, c.CQContext = ibv.PtrTo(&p.context), p.device
	c.StartPoll, c.NextPoll, c.EndPoll = slot("start_poll"), slot("next_poll"), slot("end_poll")
	c.ReadOpcode, c.ReadQPNum, c.ReadVendorErr, c.ReadWCFlags = slot("read_opcode"), slot("read_qp_num"),
		slot("read_nothing"), slot("read_nothing")
	var err error
	if p.send, err = rdma.NewSendQueue(&q.QPBase, p.options); err != nil {
		log.Fatal(err)
	}
	if p.poll, err = rdma.NewCompletionQueue(&p.cq, p.options); err != nil {
		log.Fatal(err)
	}
	if !unchecked {
		p.poll.Track(qpNum, p.send, nil)
	}
	r.keep(p)
	return p
}

// All fields of a request derive from its ID, so that the device can check them.
func local(id uint64) uint64  { return id * 0x9e3779b97f4a7c15 }
func remote(id uint64) uint64 { return ^local(id) }

// signalled reports whether a request of a list is signaled: it varies, but the last one always is.
func signalled(id, first uint64, n int) bool { return id%5 == 0 || id == first+uint64(n)-1 }

// fill fills the batch with n requests with IDs from first on.
func fill(b *rdma.SendBatch, first uint64, n int) {
	b.Reset()
	for id := first; id < first+uint64(n); id++ {
		if r := b.Write(id, remote(id), 7).SGE(local(id), 8, 0); signalled(id, first, n) {
			r.Signaled()
		}
	}
}

// fillProgram is fill for a program.
func fillProgram(p *rdma.WRProgram, first uint64, n int) {
	p.Reset()
	for id := first; id < first+uint64(n); id++ {
		flags := ibv.SendFlags(0)
		if signalled(id, first, n) {
			flags = ibv.SEND_SIGNALED
		}
		p.Write(id, remote(id), 7).Flags(flags).SGE(local(id), 8, 0)
	}
}

// tally counts completions and sums up their IDs.
type tally struct{ count, sum atomic.Uint64 }

func (t *tally) add(id uint64) { t.count.Add(1); t.sum.Add(id) }

func (t *tally) addAll(first uint64, n int) {
	for id := first; id < first+uint64(n); id++ {
		if signalled(id, first, n) {
			t.add(id)
		}
	}
}

// sequence has the last ID of each poster as seen by one poller; IDs only increase.
type sequence [posters]uint64

const (
	posters = 2
	ofWho   = 56 // bit of an ID
)

func (s *sequence) see(id uint64) {
	poster := id >> ofWho
	if poster >= posters || id < s[poster] {
		log.Fatalf("completion %#x is unexpected or out of order", id)
	}
	s[poster] = id + 1
}

// settle checks the totals after everything was polled.
func (p *pair) settle(r *run, name string, posted, polled *tally) {
	if wrong := r.call("device_wrong", p.device); wrong != 0 {
		log.Fatalf("%s: %d requests differ from what was posted, or overlapped in a region", name, wrong)
	}
	if posted.count.Load() != polled.count.Load() || posted.sum.Load() != polled.sum.Load() {
		log.Fatalf("%s: %d were signaled, %d completed", name, posted.count.Load(), polled.count.Load())
	}
	if p.options.Unchecked {
		return
	}
	if refused := r.call("device_refused", p.device); refused != 0 || p.send.Free() != capacity {
		log.Fatalf("%s: the device overflowed %d times; of %d slots, %d are free", name, refused, capacity,
			p.send.Free())
	}
}

// shareSends posts to one queue from two goroutines and polls it from two others. A checked queue never overflows the
// device and has all slots free at the end; with an unchecked one, the rest of a failed list is posted again.
func shareSends(unchecked bool) func(*run) {
	return func(r *run) {
		p := newPair(r, "system", unchecked)
		share(r, p, map[bool]string{false: "checked", true: "unchecked"}[unchecked],
			func(poster uint64, posted *tally) func() bool {
				b, err := rdma.NewSendBatch(16, 1, 0)
				if err != nil {
					log.Fatal(err)
				}
				next, from, n := poster<<ofWho, 0, 0
				return func() bool {
					if from == n {
						from, n = 0, 1+int(next%16)
						fill(b, next, n)
					}
					consumed, err := 0, error(nil)
					if from == 0 {
						consumed, err = p.send.Post(b)
					} else {
						consumed, err = p.send.PostRange(b, from, n)
					}
					if err != nil && !errors.Is(err, syscall.ENOMEM) {
						log.Fatal(err)
					}
					if from += consumed; from < n {
						return false
					}
					posted.addAll(next, n)
					next += uint64(n)
					return true
				}
			}, func(polled *tally) func() int {
				wcs, last := make([]ibv.WC, 16), &sequence{}
				return func() int {
					n, err := p.poll.Poll(wcs)
					if err != nil {
						log.Fatal(err)
					}
					for i := range wcs[:n] {
						last.see(wcs[i].WRID)
						polled.add(wcs[i].WRID)
					}
					return n
				}
			}, 2)
	}
}

// sharePrograms is the same with programs, whose regions hold the device's lock.
func sharePrograms(r *run) {
	p := newPair(r, "system", false)
	share(r, p, "programs", func(poster uint64, posted *tally) func() bool {
		w := rdma.NewWRProgram(&p.qp)
		next, n := poster<<ofWho, 0
		return func() bool {
			if n == 0 {
				n = 1 + int(next%16)
				fillProgram(w, next, n)
			}
			if err := p.send.PostProgram(w); errors.Is(err, syscall.ENOMEM) {
				return false
			} else if err != nil {
				log.Fatal(err)
			}
			posted.addAll(next, n)
			next, n = next+uint64(n), 0
			return true
		}
	}, func(polled *tally) func() int {
		g, err := rdma.NewPollProgram(&p.cqEx, 16, ibv.WC_EX_WITH_QP_NUM, p.options)
		if err != nil {
			log.Fatal(err)
		}
		last := &sequence{}
		return func() int {
			found, err := g.Poll()
			if err != nil {
				log.Fatal(err)
			}
			g.Retire(p.send, nil)
			for i := range found {
				last.see(found[i].WRID)
				polled.add(found[i].WRID)
			}
			return len(found)
		}
	}, 1) // completions are in order
}

// share runs posters and pollers until the run stops and everything is polled. A poster reports whether the queue
// accepted its list.
func share(r *run, p *pair, name string, poster func(sender uint64, posted *tally) func() bool,
	poller func(polled *tally) func() int, pollers int) {
	churn := r.c("churn")
	var posting, polling sync.WaitGroup
	var posted, polled tally
	var ended atomic.Bool
	for id := range uint64(posters) {
		posting.Go(func() {
			post := poster(id, &posted)
			for n := 0; !r.stop.Load() || n == 0; { // a starved goroutine continues until it made progress
				if !post() {
					goruntime.Gosched()
				} else if n++; n%50 == 0 {
					goruntime.Gosched() // with one P the other poster would find the queue full every time
				}
			}
			for !post() { // the rest of a list
				goruntime.Gosched()
			}
		})
	}
	for range pollers {
		polling.Go(func() {
			poll := poller(&polled)
			for {
				over := ended.Load()
				n := poll()
				runtime.System.Call3(churn, 4000, 0, 0)
				if n == 0 {
					if over {
						return
					}
					goruntime.Gosched()
				}
			}
		})
	}
	posting.Wait()
	ended.Store(true)
	polling.Wait()
	p.settle(r, name, &posted, &polled)
	r.reportf("%s=%d", name, posted.count.Load())
}
