// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/packets"
)

// trial is a test that ends before the test that it is part of.
type trial struct {
	testing.TB
	undo []func()
}

func (t *trial) Cleanup(f func()) { t.undo = append(t.undo, f) }

func (t *trial) end() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
}

// The model: the semantics of verbs, in as little code as possible. Queue pairs are RC, wait for receives without
// limit, and have another queue pair or themselves as peer.

type modelQP struct {
	peer         *modelQP
	memory       []byte // of its device
	broken       bool
	sends        []modelSend // posted and not carried out
	recvs        []modelRecv
	sent, recvd  []modelDone // completions that are to come
	posted       int
	retired      int // sends before it have their slots free
	recvsPosted  int
	recvsRetired int
}

type modelSend struct {
	id            uint64
	position      int
	op            ibv.WROpcode
	signalled     bool
	badKey        bool
	local, length int
	remote        int
	operand, swap uint64
}

type modelRecv struct {
	id            uint64
	local, length int
}

type modelDone struct {
	id       uint64
	status   ibv.WCStatus
	position int
}

func (q *modelQP) doneSend(s modelSend, status ibv.WCStatus) {
	if s.signalled || status != ibv.WC_SUCCESS {
		q.sent = append(q.sent, modelDone{s.id, status, s.position})
	}
}

func (q *modelQP) doneRecv(status ibv.WCStatus) {
	q.recvd = append(q.recvd, modelDone{q.recvs[0].id, status, 0})
	q.recvs = q.recvs[1:]
}

func (q *modelQP) breakDown() {
	q.broken = true
	for _, s := range q.sends {
		q.doneSend(s, ibv.WC_WR_FLUSH_ERR)
	}
	q.sends = nil
	for len(q.recvs) > 0 {
		q.doneRecv(ibv.WC_WR_FLUSH_ERR)
	}
}

// run executes all requests that are ready.
func (q *modelQP) run() {
	for len(q.sends) > 0 && !q.broken {
		s := q.sends[0]
		if s.op == ibv.WR_SEND && len(q.peer.recvs) == 0 && !q.peer.broken {
			return
		}
		if q.peer.broken { // no answer will come
			return
		}
		q.sends = q.sends[1:]
		here, there := q.memory[s.local:s.local+s.length], q.peer.memory[s.remote:]
		switch {
		case s.op == ibv.WR_SEND && q.peer.recvs[0].length < s.length:
			q.peer.doneRecv(ibv.WC_LOC_LEN_ERR)
			q.fail(s, ibv.WC_REM_INV_REQ_ERR)
			continue
		case s.op == ibv.WR_SEND:
			copy(q.peer.memory[q.peer.recvs[0].local:], here)
			q.peer.doneRecv(ibv.WC_SUCCESS)
		case s.badKey:
			q.fail(s, ibv.WC_REM_ACCESS_ERR)
			continue
		case s.op == ibv.WR_RDMA_WRITE:
			copy(there, here)
		case s.op == ibv.WR_RDMA_READ:
			copy(here, there)
		default:
			was := binary.NativeEndian.Uint64(there)
			if s.op == ibv.WR_ATOMIC_FETCH_AND_ADD {
				binary.NativeEndian.PutUint64(there, was+s.operand)
			} else if was == s.operand {
				binary.NativeEndian.PutUint64(there, s.swap)
			}
			binary.NativeEndian.PutUint64(here, was)
		}
		q.doneSend(s, ibv.WC_SUCCESS)
	}
}

func (q *modelQP) fail(s modelSend, status ibv.WCStatus) {
	q.doneSend(s, status)
	q.breakDown()
	if !q.peer.broken {
		q.peer.breakDown()
	}
}

// TestModel runs random programs on several queue pairs and on the model: completions, their order and the final memory
// must be equal. On a fabric that loses, delays and duplicates messages, correct programs get the same results.
func TestModel(t *testing.T) {
	t.Run("a perfect fabric", func(t *testing.T) { models(t, Options{}) })
	t.Run("a bad one", func(t *testing.T) {
		models(t, Options{Faults: Faults{Drop: 0.2, Duplicate: 0.3, Delay: 0.2, Late: time.Microsecond}})
	})
	t.Run("packets", func(t *testing.T) { models(t, Options{losses: &packets.Losses{}}) })
	for _, percent := range []int{1, 10} {
		t.Run(fmt.Sprintf("packets of which %d %% are lost", percent), func(t *testing.T) {
			losses := packets.Evenly(1, float64(percent)/100)
			models(t, Options{losses: &losses})
		})
	}
}

func models(t *testing.T, o Options) {
	lossy := o.losses != nil
	mistakes := o.Faults == Faults{}
	o.Virtual = true
	rapid.Check(t, func(rt *rapid.T) {
		own := &trial{TB: t}
		defer own.end()
		if !mistakes {
			o.Faults.Seed = rapid.Uint64().Draw(rt, "seed")
		}
		if lossy {
			o.losses.Seed = rapid.Uint64().Draw(rt, "seed")
		}
		r := newRig(own, o)
		// for receives, and as often as the fabric loses something
		wait := func() { r.fabric.Advance(2 * time.Millisecond) }
		if lossy {
			wait = func() { r.fabric.Advance(20 * time.Millisecond) }
		}
		const size, depth = 512, 8
		buffers := []*buffer{r.buffer(0, size, everything), r.buffer(1, size, everything)}
		memory := [][]byte{make([]byte, size), make([]byte, size)}
		for d, b := range buffers {
			for i := range b.bytes {
				b.bytes[i] = byte(i*7 + d)
			}
			copy(memory[d], b.bytes)
		}
		caps := ibv.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}
		var qps []*ibv.QP
		var models []*modelQP
		var sendCQs, recvCQs []*ibv.CQ
		for i := range 5 { // two pairs between the devices, and one that is its own peer
			d := i % 2
			send, recv := r.cq(d, 64), r.cq(d, 64)
			qps, models = append(qps, r.qp(d, ibv.QPT_RC, caps, send, recv)),
				append(models, &modelQP{memory: memory[d]})
			sendCQs, recvCQs = append(sendCQs, send), append(recvCQs, recv)
		}
		for i, peer := range []int{1, 0, 3, 2, 4} {
			models[i].peer = models[peer]
			r.toRTR(qps[i], peer%2, qps[peer].QPNum)
			attr := &ibv.QPAttr{QPState: ibv.QPS_RTS, SQPSN: 77, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 4}
			switch {
			case lossy:
				attr.Timeout = 6 // 262 µs: longer than a packet is late
			case !mistakes:
				attr.Timeout = 1
			}
			require.NoError(own, verbs.ModifyQP(qps[i], attr,
				ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC))
		}
		poll := func(i int) {
			for _, side := range []struct {
				cq   *ibv.CQ
				done *[]modelDone
			}{{sendCQs[i], &models[i].sent}, {recvCQs[i], &models[i].recvd}} {
				for {
					wc, ok := r.polled(side.cq)
					if !ok {
						break
					}
					if len(*side.done) == 0 {
						rt.Fatalf("QP %d: completion of %d with %v, and the model has none", i, wc.WRID, wc.Status)
					}
					want := (*side.done)[0]
					*side.done = (*side.done)[1:]
					if wc.WRID != want.id || wc.Status != want.status {
						rt.Fatalf("QP %d: completion of %d with %v, and the model's is of %d with %v", i, wc.WRID,
							wc.Status, want.id, want.status)
					}
					if side.done == &models[i].sent {
						models[i].retired = want.position + 1
					} else {
						models[i].recvsRetired++
					}
				}
				if len(*side.done) != 0 {
					rt.Fatalf("QP %d: the model has %d completions more: %v", i, len(*side.done), *side.done)
				}
			}
		}
		last := 4
		if lossy { // one that is its own peer breaks before it gets the reason, and sends data that it overwrites
			last = 3
		}
		offset := rapid.Map(rapid.IntRange(0, size/8-9), func(i int) int { return 8 * i })
		length := rapid.IntRange(0, 64)
		id := uint64(0)
		post := func(i int) {
			m, s := models[i], modelSend{op: rapid.SampledFrom([]ibv.WROpcode{
				ibv.WR_SEND, ibv.WR_SEND, ibv.WR_SEND, ibv.WR_RDMA_WRITE, ibv.WR_RDMA_READ, ibv.WR_ATOMIC_FETCH_AND_ADD,
				ibv.WR_ATOMIC_CMP_AND_SWP,
			}).Draw(rt, "opcode")}
			if !mistakes && s.op == ibv.WR_SEND && len(m.peer.recvs) == 0 {
				return // requests that wait for a receive are lost now and then, and retried only so often
			}
			id++
			s.id, s.position, s.signalled = id, m.posted, rapid.Bool().Draw(rt, "signalled")
			s.local, s.remote, s.length = offset.Draw(rt, "local"), offset.Draw(rt, "remote"), length.Draw(rt, "length")
			wr := r.send(id, s.op, buffers[i%2].sge(s.local, 0))
			if !s.signalled {
				wr.SendFlags = 0
			}
			peer := buffers[i%2]
			if i < 4 {
				peer = buffers[1-i%2]
			} else if s.op == ibv.WR_RDMA_WRITE || s.op == ibv.WR_RDMA_READ { // overlapping ranges mean nothing
				s.remote = (s.local + 128) % (size - 64)
				s.length = min(s.length, 64)
			}
			key := peer.mr.RKey
			if mistakes && s.op != ibv.WR_SEND && s.length > 0 && rapid.IntRange(0, 19).Draw(rt, "bad key") == 0 {
				s.badKey, key = true, key^0xff
			}
			switch s.op {
			case ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_ATOMIC_CMP_AND_SWP:
				s.length, s.operand, s.swap = 8, binary.NativeEndian.Uint64(peer.bytes[s.remote:]),
					rapid.Uint64().Draw(rt, "swap")
				*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: peer.at(s.remote), RKey: key, CompareAdd: s.operand,
					Swap: s.swap}
			default:
				*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: peer.at(s.remote), RKey: key}
			}
			wr.SGList.Deref().Length = uint32(s.length)
			if lossy { // read data is there before a later request is sent
				wr.SendFlags |= ibv.SEND_FENCE
			}
			err := r.post(qps[i], wr)
			if m.posted-m.retired == depth {
				if !assert.ErrorIs(rt, err, syscall.ENOMEM) {
					rt.FailNow()
				}
				return
			}
			if err != nil {
				rt.Fatalf("QP %d: %v", i, err)
			}
			m.posted++
			if m.broken {
				m.doneSend(s, ibv.WC_WR_FLUSH_ERR)
				return
			}
			m.sends = append(m.sends, s)
			m.run()
			wait()
		}
		rt.Repeat(map[string]func(*rapid.T){
			"post": func(*rapid.T) { post(rapid.IntRange(0, last).Draw(rt, "queue pair")) },
			"receive": func(*rapid.T) {
				i := rapid.IntRange(0, last).Draw(rt, "queue pair")
				m := models[i]
				id++
				recv := modelRecv{id, offset.Draw(rt, "local"), 64}
				if mistakes {
					recv.length -= rapid.SampledFrom([]int{0, 0, 0, 0, 30}).Draw(rt, "short")
				}
				err := r.tryRecv(qps[i], id, buffers[i%2].sge(recv.local, recv.length))
				if m.recvsPosted-m.recvsRetired == depth {
					if !assert.ErrorIs(rt, err, syscall.ENOMEM) {
						rt.FailNow()
					}
					return
				}
				if err != nil {
					rt.Fatalf("QP %d: %v", i, err)
				}
				m.recvsPosted++
				m.recvs = append(m.recvs, recv)
				if m.broken {
					m.doneRecv(ibv.WC_WR_FLUSH_ERR)
					return
				}
				m.peer.run()
				wait()
			},
			"poll": func(*rapid.T) { poll(rapid.IntRange(0, last).Draw(rt, "queue pair")) },
			"": func(*rapid.T) {
				for d := range memory {
					for i, b := range buffers[d].bytes {
						if b != memory[d][i] {
							rt.Fatalf("device %d: byte %d is %#x, and the model's %#x", d, i, b, memory[d][i])
						}
					}
				}
			},
		})
		for i := range qps {
			poll(i)
		}
	})
}
