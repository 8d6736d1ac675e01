// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"errors"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// carried lists the operands of each opcode in ibv_send_wr, except entries and flags. ud marks those that can be
// datagrams.
var carried = []struct {
	opcode           ibv.WROpcode
	extra, arm, tail uint32
	ud               bool
}{
	{opcode: ibv.WR_SEND, ud: true},
	{opcode: ibv.WR_SEND_WITH_IMM, extra: extraImm, ud: true},
	{opcode: ibv.WR_SEND_WITH_INV, extra: extraInvalidate},
	{opcode: ibv.WR_RDMA_WRITE, arm: armRDMA},
	{opcode: ibv.WR_RDMA_WRITE_WITH_IMM, extra: extraImm, arm: armRDMA},
	{opcode: ibv.WR_RDMA_READ, arm: armRDMA},
	{opcode: ibv.WR_ATOMIC_CMP_AND_SWP, arm: armAtomic},
	{opcode: ibv.WR_ATOMIC_FETCH_AND_ADD, arm: armAtomic},
	{opcode: ibv.WR_LOCAL_INV, extra: extraInvalidate},
	{opcode: ibv.WR_BIND_MW, tail: tailBind},
	{opcode: ibv.WR_TSO, tail: tailTSO, ud: true},
	{opcode: ibv.WR_DRIVER1},
}

// carriedShapes yields lists with every combination of opcode, arm, flags and SGE count.
func carriedShapes(yield func([]shape) bool) {
	for _, c := range carried {
		for way := range uint32(4) {
			xrc, ud := way%2, way/2
			if ud == 1 && !c.ud {
				continue
			}
			var list []shape
			for flags := range allFlags + 1 {
				for _, sges := range []int{0, 1, 2, maxSGE} {
					list = append(list, shape{c.opcode, flags, c.extra, max(c.arm, ud*armUD), xrc, c.tail, sges})
				}
			}
			if !yield(list) {
				return
			}
		}
	}
}

// randomList returns shapes of a random list. A batch reuses memory of earlier requests, so some lists have rare
// operands, and some have few opcodes, so that a request is often overwritten by one of the same kind.
func randomList(r *rand.Rand) []shape {
	all := make([]shape, 1+r.IntN(24)/(1+r.IntN(8)))
	xrc, ud, opcodes := r.IntN(4) == 0, r.IntN(3) == 0, 1+r.IntN(len(carried))
	for i := range all {
		c := carried[r.IntN(opcodes)]
		all[i] = shape{c.opcode, ibv.SendFlags(r.IntN(int(allFlags) + 1)), c.extra, c.arm, 0, c.tail,
			r.IntN(maxSGE + 1)}
		if xrc && r.IntN(2) == 0 {
			all[i].xrc = 1
		}
		if ud && c.ud && r.IntN(2) == 0 {
			all[i].arm = armUD
		}
	}
	return all
}

// batched returns a shape's values as SendBatch writes them: the list of entries always has an address, and
// fetch-and-add no swap value.
func (s shape) batched(r *rand.Rand, readable []byte) recipe {
	c := s.values(r, readable)
	c.list = 1
	if s.opcode == ibv.WR_ATOMIC_FETCH_AND_ADD {
		c.swap = 0
	}
	if s.flags&ibv.SEND_INLINE != 0 { // inline data that the batch copies has no key
		for i := range c.sge {
			c.sge[i].LKey = 0
		}
	}
	return c
}

// append appends the recipe to a batch.
func (c *recipe) append(b *rdma.SendBatch) {
	var r rdma.SendRequest
	switch id := c.wrID; ibv.WROpcode(c.opcode) {
	case ibv.WR_SEND:
		r = b.Send(id)
	case ibv.WR_SEND_WITH_IMM:
		r = b.SendImm(id, ibv.ToBE32(c.imm))
	case ibv.WR_SEND_WITH_INV:
		r = b.SendInv(id, c.imm)
	case ibv.WR_RDMA_WRITE:
		r = b.Write(id, c.remoteAddr, c.rkey)
	case ibv.WR_RDMA_WRITE_WITH_IMM:
		r = b.WriteImm(id, c.remoteAddr, c.rkey, ibv.ToBE32(c.imm))
	case ibv.WR_RDMA_READ:
		r = b.Read(id, c.remoteAddr, c.rkey)
	case ibv.WR_ATOMIC_CMP_AND_SWP:
		r = b.CompareSwap(id, c.remoteAddr, c.rkey, c.compareAdd, c.swap)
	case ibv.WR_ATOMIC_FETCH_AND_ADD:
		r = b.FetchAdd(id, c.remoteAddr, c.rkey, c.compareAdd)
	case ibv.WR_LOCAL_INV:
		r = b.LocalInv(id, c.imm)
	case ibv.WR_BIND_MW:
		info := ibv.MWBindInfo{MR: ibv.Ptr[ibv.MR](c.mr), Addr: c.bindAddr, Length: c.bindLength,
			MWAccessFlags: ibv.AccessFlags(c.bindAccess)}
		r = b.BindMW(id, ibv.Ptr[ibv.MW](c.mw), c.mwRKey, info)
	case ibv.WR_TSO:
		r = b.TSO(id, unsafe.Slice(at[byte](uintptr(c.hdr)), c.hdrSz), uint16(c.mss))
	case ibv.WR_DRIVER1:
		r = b.Driver(id)
	}
	for _, e := range c.sge[:c.numSGE] {
		if c.flags&uint32(ibv.SEND_INLINE) != 0 {
			r = r.Inline(unsafe.Slice(at[byte](uintptr(e.Addr)), e.Length))
		} else {
			r = r.SGE(e.Addr, e.Length, e.LKey)
		}
	}
	r = r.Flags(ibv.SendFlags(c.flags))
	if c.arm == armUD {
		r = r.UD(ibv.Ptr[ibv.AH](c.ah), c.remoteQPN, c.remoteQKey)
	}
	if c.xrc != 0 {
		r.XRC(c.srqn)
	}
}

// queue is implemented by every kind of queue of package rdma.
type queue[B any] interface {
	Post(B) (posted int, err error)
	PostRange(b B, from, to int) (posted int, err error)
}

// patch changes a request of a batch through the pointers that the batch returns, including members that were unset,
// and returns the new recipe.
func (b *bench) patch(batch *rdma.SendBatch, i int, old recipe, s shape) recipe {
	if s.xrc = 1; s.arm == armNone {
		s.arm = armUD
	}
	c := s.batched(b.random, b.data.Bytes())
	if s.flags&ibv.SEND_INLINE != 0 { // copied into the batch
		c.sge, c.numSGE = old.sge, old.numSGE
	} else {
		copy(batch.SGEs(i), c.sge[:c.numSGE])
	}
	c.fill(batch.WR(i))
	return c
}

// posted converts the result of a post to C's representation.
func (b *bench) posted(n, length int, err error) outcome {
	o := outcome{bad: badKept, log: b.stub.RawLog()}
	if err == nil {
		if n != length {
			o.bad = int64(n)
		}
		return o
	}
	var failed *rdma.PostError
	if errors.As(err, &failed) {
		o.bad = int64(failed.Index)
	}
	o.result = errnoOf(err)
	return o
}

// TestSendBatch checks that a SendBatch, also a reused one, posts the same list as C for the same values, and that the
// queue reports failures like C.
func TestSendBatch(t *testing.T) {
	b := newBench(t)
	b.stub.Readable(nil)
	b.stub.log.from, b.stub.log.to = 0, ^uint64(0)
	batch, err := rdma.NewSendBatch(128, maxSGE, maxSGE*64+64)
	require.NoError(t, err)
	defer batch.Close()
	queues := map[string]queue[*rdma.SendBatch]{}
	for _, way := range ways {
		q, err := rdma.NewSendQueue(b.device.QP, rdma.QueueOptions{Unchecked: true, Way: way.String()})
		require.NoError(t, err)
		queues["rdma "+way.String()] = q
	}
	requests := 0
	compare := func(recipes []recipe) bool {
		want := b.postC("stub_post_send", b.device.Address("ibv_qp"), recipes)
		for name, q := range queues {
			batch.Reset()
			for i := range recipes {
				recipes[i].append(batch)
			}
			require.NoError(t, batch.Err())
			b.stub.ResetLog()
			n, err := q.Post(batch)
			if !b.same(t, name, recipes, want, b.posted(n, len(recipes), err)) {
				return false
			}
			requests += len(recipes)
		}
		return true
	}
	for list := range carriedShapes {
		recipes := make([]recipe, len(list))
		for i, s := range list {
			recipes[i] = s.batched(b.random, b.data.Bytes())
		}
		if !compare(recipes) {
			return
		}
	}
	for range 10_000 {
		shapes := randomList(b.random)
		recipes := make([]recipe, len(shapes))
		for i, s := range shapes {
			recipes[i] = s.batched(b.random, b.data.Bytes())
		}
		b.answer("ibv_context_ops.post_send", len(recipes))
		if !compare(recipes) {
			return
		}
		if b.random.IntN(4) > 0 {
			continue
		}
		// patch some of them
		i := b.random.IntN(len(recipes))
		recipes[i] = b.patch(batch, i, recipes[i], shapes[i])
		from := b.random.IntN(i + 1)
		to := i + 1 + b.random.IntN(len(recipes)-i)
		b.stub.Script("ibv_context_ops.post_send")
		want := b.postC("stub_post_send", b.device.Address("ibv_qp"), recipes[from:to])
		for queueName, q := range queues {
			b.stub.ResetLog()
			n, err := q.PostRange(batch, from, to)
			if !b.same(t, "patched, "+queueName, recipes[from:to], want, b.posted(n, to-from, err)) {
				return
			}
		}
	}
	t.Logf("%d work requests", requests)
}
