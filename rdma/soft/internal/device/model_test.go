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

// iteration runs its cleanups at the end of one random program, not at the end of the test.
type iteration struct {
	testing.TB
	undo []func()
}

func (t *iteration) Cleanup(f func()) { t.undo = append(t.undo, f) }

func (t *iteration) end() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
}

// The model implements the semantics of verbs in as little code as possible. Its queue pairs are RC, retry RNR without
// limit, and are connected to another queue pair or to themselves.

type modelQP struct {
	peer           *modelQP
	memory         []byte // of its device
	broken         bool
	sends          []modelSend // posted, not executed
	recvs          []modelRecv
	sent, received []modelDone // expected completions
	posted         int
	retired        int // the slots of earlier sends are free
	recvsPosted    int
	recvsRetired   int
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
	q.received = append(q.received, modelDone{q.recvs[0].id, status, 0})
	q.recvs = q.recvs[1:]
}

func (q *modelQP) enterError() {
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
		if q.peer.broken { // the peer does not answer
			return
		}
		q.sends = q.sends[1:]
		local, remote := q.memory[s.local:s.local+s.length], q.peer.memory[s.remote:]
		switch {
		case s.op == ibv.WR_SEND && q.peer.recvs[0].length < s.length:
			q.peer.doneRecv(ibv.WC_LOC_LEN_ERR)
			q.fail(s, ibv.WC_REM_INV_REQ_ERR)
			continue
		case s.op == ibv.WR_SEND:
			copy(q.peer.memory[q.peer.recvs[0].local:], local)
			q.peer.doneRecv(ibv.WC_SUCCESS)
		case s.badKey:
			q.fail(s, ibv.WC_REM_ACCESS_ERR)
			continue
		case s.op == ibv.WR_RDMA_WRITE:
			copy(remote, local)
		case s.op == ibv.WR_RDMA_READ:
			copy(local, remote)
		default:
			was := binary.NativeEndian.Uint64(remote)
			if s.op == ibv.WR_ATOMIC_FETCH_AND_ADD {
				binary.NativeEndian.PutUint64(remote, was+s.operand)
			} else if was == s.operand {
				binary.NativeEndian.PutUint64(remote, s.swap)
			}
			binary.NativeEndian.PutUint64(local, was)
		}
		q.doneSend(s, ibv.WC_SUCCESS)
	}
}

func (q *modelQP) fail(s modelSend, status ibv.WCStatus) {
	q.doneSend(s, status)
	q.enterError()
	if !q.peer.broken {
		q.peer.enterError()
	}
}

// TestModel runs random programs on several queue pairs and on the model: completions, their order and the final memory
// must be equal. On a fabric that loses, delays and duplicates messages, correct programs get the same results.
func TestModel(t *testing.T) {
	t.Run("no faults", func(t *testing.T) { runModels(t, Options{}) })
	t.Run("faults", func(t *testing.T) {
		runModels(t, Options{Faults: Faults{Drop: 0.2, Duplicate: 0.3, Delay: 0.2, Late: time.Microsecond}})
	})
	t.Run("packets", func(t *testing.T) { runModels(t, Options{losses: &packets.Losses{}}) })
	for _, percent := range []int{1, 10} {
		t.Run(fmt.Sprintf("packets, %d %% loss", percent), func(t *testing.T) {
			losses := packets.Evenly(1, float64(percent)/100)
			runModels(t, Options{losses: &losses})
		})
	}
}

func runModels(t *testing.T, o Options) {
	lossy := o.losses != nil
	withErrors := o.Faults == Faults{}
	o.Virtual = true
	rapid.Check(t, func(rt *rapid.T) {
		own := &iteration{TB: t}
		defer own.end()
		if !withErrors {
			o.Faults.Seed = rapid.Uint64().Draw(rt, "seed")
		}
		if lossy {
			o.losses.Seed = rapid.Uint64().Draw(rt, "seed")
		}
		r := newTestbed(own, o)
		// long enough for RNR retries and retransmissions
		wait := func() { r.fabric.Advance(2 * time.Millisecond) }
		if lossy {
			wait = func() { r.fabric.Advance(20 * time.Millisecond) }
		}
		const size, depth = 512, 8
		buffers := []*buffer{r.buffer(0, size, allAccess), r.buffer(1, size, allAccess)}
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
		for i := range 5 { // two pairs between the devices, and one queue pair connected to itself
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
				attr.Timeout = 6 // 262 µs: longer than the maximum delay of a packet
			case !withErrors:
				attr.Timeout = 1
			}
			require.NoError(own, verbs.ModifyQP(qps[i], attr,
				ibv.QP_STATE|ibv.QP_SQ_PSN|ibv.QP_TIMEOUT|ibv.QP_RETRY_CNT|ibv.QP_RNR_RETRY|ibv.QP_MAX_QP_RD_ATOMIC))
		}
		poll := func(i int) {
			for _, side := range []struct {
				cq   *ibv.CQ
				done *[]modelDone
			}{{sendCQs[i], &models[i].sent}, {recvCQs[i], &models[i].received}} {
				for {
					wc, ok := r.tryPoll(side.cq)
					if !ok {
						break
					}
					if len(*side.done) == 0 {
						rt.Fatalf("QP %d: completion of WR %d with %v, model has none", i, wc.WRID, wc.Status)
					}
					want := (*side.done)[0]
					*side.done = (*side.done)[1:]
					if wc.WRID != want.id || wc.Status != want.status {
						rt.Fatalf("QP %d: completion of WR %d with %v, model has WR %d with %v", i, wc.WRID,
							wc.Status, want.id, want.status)
					}
					if side.done == &models[i].sent {
						models[i].retired = want.position + 1
					} else {
						models[i].recvsRetired++
					}
				}
				if len(*side.done) != 0 {
					rt.Fatalf("QP %d: model has %d more completions: %v", i, len(*side.done), *side.done)
				}
			}
		}
		last := 4
		if lossy { // a queue pair connected to itself fails before the NAK arrives, and overwrites data in flight
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
			if !withErrors && s.op == ibv.WR_SEND && len(m.peer.recvs) == 0 {
				return // the retry limit applies when such a request is also lost
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
			} else if s.op == ibv.WR_RDMA_WRITE || s.op == ibv.WR_RDMA_READ {
				// The result of overlapping ranges is undefined.
				s.remote = (s.local + 128) % (size - 64)
				s.length = min(s.length, 64)
			}
			key := peer.mr.RKey
			if withErrors && s.op != ibv.WR_SEND && s.length > 0 && rapid.IntRange(0, 19).Draw(rt, "bad key") == 0 {
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
			if lossy { // wait for read data before a later request is sent
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
				if withErrors {
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
							rt.Fatalf("device %d: byte %d is %#x, model has %#x", d, i, b, memory[d][i])
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
