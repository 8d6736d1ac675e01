// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

var operationNames = []string{"read", "write", "write imm", "flush", "atomic write", "send", "send imm", "recv"}

// eachOperation returns a function for every operation. id is the id of its completion.
func eachOperation(r *pair) map[string]func(id uint64) error {
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	to, c := remote(r.t, remoteMR), r.a.conn
	recv := func(id uint64) error { return r.b.conn.Recv(remoteMR, 0, 64, id) }
	send := func(id uint64) error { return c.Send(localMR, 0, 8, Always, id) }
	writeImm := func(id uint64) error { return c.WriteWithImm(to, 0, localMR, 0, 8, Always, 1, id) }
	return map[string]func(id uint64) error{
		"read":         func(id uint64) error { return c.Read(localMR, 0, to, 0, 8, Always, id) },
		"write":        func(id uint64) error { return c.Write(to, 0, localMR, 0, 8, Always, id) },
		"write imm":    r.message(recv, writeImm),
		"atomic write": func(id uint64) error { return c.AtomicWrite(to, 8, [8]byte{}, Always, id) },
		"flush":        func(id uint64) error { return c.Flush(to, 0, 64, Visibility, Always, id) },
		"send":         r.message(recv, send),
		"send imm":     r.message(recv, func(id uint64) error { return c.SendWithImm(localMR, 0, 8, Always, 1, id) }),
		"recv":         r.message(recv, send),
	}
}

// message returns a function that posts a receive at b and a message at a, and polls the receive's completion.
func (r *pair) message(recv, send func(id uint64) error) func(id uint64) error {
	cq, received := r.b.conn.CQ(), make([]ibv.WC, 1)
	return func(id uint64) error {
		if err := recv(id); err != nil {
			return err
		}
		err := send(id)
		if err == nil {
			_, err = cq.Poll(received)
		}
		return err
	}
}

// TestNoAllocation checks that no operation, batch, or future allocates.
func TestNoAllocation(t *testing.T) {
	if underRaceDetector {
		t.Skip("the race detector allocates")
	}
	forEachProtocol(t, func(t *testing.T, r *pair) {
		wcs := make([]ibv.WC, 1)
		for name, post := range eachOperation(r) {
			assert.Zero(t, testing.AllocsPerRun(100, func() {
				if err := post(1); err != nil {
					t.Fatal(name, err)
				}
				if n, err := r.a.conn.CQ().Poll(wcs); n != 1 || err != nil || wcs[0].Status != ibv.WC_SUCCESS {
					t.Fatal(name, n, err, wcs[0].Status)
				}
			}), name)
		}
	})
}

// BenchmarkOperations measures each operation with 8 bytes, including the poll of its completion. added-ns is the time
// added to the same verbs of package rdma on the same queue pair (the median of short spans), at most 20 ns.
func BenchmarkOperations(b *testing.B) {
	const span = 256
	for variant, o := range flushWays {
		for _, name := range operationNames {
			b.Run(variant+"/"+name, func(b *testing.B) {
				r := connected(b, options{a: o, b: o}) // new locks, used by this goroutine only
				post, verb := eachOperation(r)[name], eachVerb(r)[name]
				cq, rdmaCQ, wcs := r.a.conn.CQ(), r.a.conn.CQ().RDMA(), make([]ibv.WC, 1)
				var added, all []float64
				for spans := 0; spans <= b.N/span; spans++ {
					start := time.Now()
					for range span {
						if err := post(1); err != nil {
							b.Fatal(err)
						}
						if n, err := cq.Poll(wcs); n != 1 || err != nil {
							b.Fatal(n, err)
						}
					}
					between := time.Now()
					for range span {
						if err := verb(1); err != nil {
							b.Fatal(err)
						}
						if n, err := rdmaCQ.Poll(wcs); n != 1 || err != nil {
							b.Fatal(n, err)
						}
					}
					all = append(all, float64(between.Sub(start))/span)
					added = append(added, float64(between.Sub(start)-time.Since(between))/span)
				}
				slices.Sort(added)
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], "ns/op")
				b.ReportMetric(added[len(added)/2], "added-ns")
			})
		}
	}
}

// eachVerb returns functions that post the operations of eachOperation with package rdma. For messages, it is the side
// that the operation's name mentions.
func eachVerb(r *pair) map[string]func(id uint64) error {
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	to, qp, sge, one := remote(r.t, remoteMR), r.a.conn.QP(), localMR.RDMA().SGE(0, 8), ibv.ToBE32(1)
	batch, err := rdma.NewSendBatch(1, 1, 8)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { batch.Close() })
	list := func(add func(id uint64)) func(id uint64) error {
		return func(id uint64) error {
			batch.Reset()
			add(id)
			_, err := qp.PostSend(batch)
			return err
		}
	}
	program := func(build func(p *rdma.WRProgram) rdma.WRRequest, set func(w rdma.WRRequest)) func(id uint64) error {
		p, err := qp.NewWRProgram()
		require.NoError(r.t, err)
		w := build(p)
		return func(id uint64) error {
			w.SetID(id)
			w.SetRemote(to.address, to.rkey)
			set(w)
			return qp.PostProgram(p)
		}
	}
	recvs, err := rdma.NewRecvBatch(1, 1)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { recvs.Close() })
	space := remoteMR.RDMA().SGE(0, 64)
	recv := func(id uint64) error { return r.b.conn.Recv(remoteMR, 0, 64, id) }
	all := map[string]func(id uint64) error{
		"read":  list(func(id uint64) { batch.Read(id, to.address, to.rkey).Add(sge).Signaled() }),
		"write": list(func(id uint64) { batch.Write(id, to.address, to.rkey).Add(sge).Signaled() }),
		"write imm": r.message(recv, list(func(id uint64) {
			batch.WriteImm(id, to.address, to.rkey, one).Add(sge).Signaled()
		})),
		"send":     r.message(recv, list(func(id uint64) { batch.Send(id).Add(sge).Signaled() })),
		"send imm": r.message(recv, list(func(id uint64) { batch.SendImm(id, one).Add(sge).Signaled() })),
		"recv": r.message(func(id uint64) error {
			recvs.Reset()
			recvs.Recv(id).Add(space)
			_, err := r.b.conn.QP().PostRecv(recvs)
			return err
		}, func(id uint64) error { return r.a.conn.Send(localMR, 0, 8, Always, id) }),
		"flush": list(func(id uint64) { batch.Read(id, to.address, to.rkey).Add(sge).Signaled() }),
		"atomic write": list(func(id uint64) {
			var value [8]byte
			batch.Write(id, to.address, to.rkey).Inline(value[:]).Flags(ibv.SEND_FENCE).Signaled()
		}),
	}
	if r.a.peer.NativeFlush() {
		all["flush"] = program(func(p *rdma.WRProgram) rdma.WRRequest {
			return p.Flush(0, 0, 0, 64, uint8(ibv.FLUSH_GLOBAL), uint8(ibv.FLUSH_RANGE)).Signaled()
		}, func(w rdma.WRRequest) { w.SetFlush(64, uint8(ibv.FLUSH_GLOBAL)) })
	}
	if r.a.peer.NativeAtomicWrite() {
		all["atomic write"] = program(func(p *rdma.WRProgram) rdma.WRRequest {
			return p.AtomicWrite(0, 0, 0, [8]byte{}).Signaled()
		}, func(w rdma.WRRequest) { w.SetValue([8]byte{}) })
	}
	return all
}
