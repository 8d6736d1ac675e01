// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

var qpTypes = []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_RAW_PACKET, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV,
	ibv.QPT_DRIVER}

// On every type of queue pair, a checked queue accepts an operation with a flag if the man page's table allows it, or
// if the table does not mention it and the headers define both.
func TestChecksMatchTheTables(t *testing.T) {
	accepted, refusals := 0, 0
	for _, qpt := range qpTypes {
		d := newDevice(t, qpt)
		q := sendQueue(t, d, options(1, 1, 8))
		b := sendBatch(t, 1, 1, 0)
		for op := range ibv.WROpcode(20) {
			for _, flag := range append(sendFlags[:], 0, 1<<20) {
				want := known(op) && !refusal.Refused(ibv.PostSendValidity(qpt, op)) && flag != 1<<20
				for _, f := range sendFlags {
					want = want && (flag != f || !refusal.Refused(ibv.SendFlagValidity(qpt, op, f)))
				}
				b.Reset()
				b.Send(5).SGE(1, 8, 1)
				w := b.WR(0)
				w.Opcode, w.SendFlags = op, flag
				if qpt == ibv.QPT_DRIVER {
					w.WR.UD().AH = 8
				}
				switch {
				case op == ibv.WR_BIND_MW:
					*w.BindMW() = ibv.SendBindMW{MW: 8, BindInfo: ibv.MWBindInfo{MR: 8}}
				case qpt == ibv.QPT_UD:
					w.WR.UD().AH = 8
				}
				_, err := q.Post(b)
				var e *PostError
				// accepted by the checks, but one unsignaled request would fill this queue
				if errors.As(err, &e) && e.Errno == syscall.ENOMEM {
					err = nil
				}
				assert.Equal(t, want, err == nil, "%v, %v, %v: %v", qpt, op, flag, err)
				if q.Reset(); want {
					accepted++
				} else {
					refusals++
					assert.ErrorIs(t, err, syscall.EINVAL)
				}
			}
		}
	}
	assert.Greater(t, accepted, 200)
	assert.Greater(t, refusals, 200)
}

func TestCheckMessages(t *testing.T) {
	o := options(64, 2, 16)
	o.MaxMessage, o.NoIPChecksum = 4096, true
	for _, c := range []struct {
		qpt   ibv.QPType
		build func(*SendBatch)
		want  string
	}{
		{ibv.QPT_UC, func(b *SendBatch) { b.Read(0x2a, 1, 2) },
			"IBV_WR_RDMA_READ is not valid on UC (valid on: RC, XRC_SEND)"},
		{ibv.QPT_RC, func(b *SendBatch) { b.TSO(0x2a, nil, 1) },
			"IBV_WR_TSO is not valid on RC (valid on: UD, RAW_PACKET)"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Send(0x2a); b.WR(1).Opcode = ibv.WR_ATOMIC_WRITE },
			"IBV_WR_ATOMIC_WRITE: not in ibv_post_send: struct ibv_send_wr has no operands " +
				"for an atomic write; it is posted with ibv_wr_atomic_write"},
		{ibv.QPT_RAW_PACKET, func(b *SendBatch) { b.Send(0x2a); b.WR(1).Opcode = 77 },
			"unknown opcode ibv_wr_opcode(77) " +
				"(valid on RAW_PACKET: IBV_WR_SEND, IBV_WR_TSO, IBV_WR_DRIVER1)"},
		{ibv.QPT_RAW_PACKET, func(b *SendBatch) { b.Send(0x2a); b.WR(1).Opcode = ^ibv.WROpcode(0) },
			"unknown opcode ibv_wr_opcode(4294967295) " +
				"(valid on RAW_PACKET: IBV_WR_SEND, IBV_WR_TSO, IBV_WR_DRIVER1)"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Read(0x2a, 1, 2).Flags(ibv.SEND_INLINE) },
			"IBV_SEND_INLINE is not valid with IBV_WR_RDMA_READ on RC (valid flags: " +
				"IBV_SEND_FENCE|IBV_SEND_SIGNALED; valid operations: " +
				"IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, " +
				"IBV_WR_SEND_WITH_INV, IBV_WR_DRIVER1)"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Read(0x2a, 1, 2).Flags(1<<20 | ibv.SEND_SIGNALED) },
			"unknown send flag 0x100000 (valid flags: IBV_SEND_FENCE|IBV_SEND_SIGNALED)"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Read(0x2a, 1, 2).Flags(1<<20 | ibv.SEND_SOLICITED) },
			"unknown send flag 0x100000 (valid flags: IBV_SEND_FENCE|IBV_SEND_SIGNALED)"},
		{ibv.QPT_UD, func(b *SendBatch) { b.Send(0x2a).SGE(1, 1, 1).Flags(ibv.SEND_IP_CSUM) },
			"the device does not support IBV_SEND_IP_CSUM on UD"},
		{ibv.QPT_RC, func(b *SendBatch) { b.FetchAdd(0x2a, 16, 1, 1).SGE(1, 4, 1) },
			"an atomic operation of 4 bytes; it must have 8"},
		{ibv.QPT_RC, func(b *SendBatch) { b.CompareSwap(0x2a, 16, 1, 1, 1).SGE(1, 8, 1).SGE(1, 8, 1) },
			"an atomic operation of 16 bytes; it must have 8"},
		{ibv.QPT_RC, func(b *SendBatch) { b.CompareSwap(0x2a, 16, 1, 1, 1) },
			"an atomic operation of 0 bytes; it must have 8"},
		{ibv.QPT_RC, func(b *SendBatch) { b.FetchAdd(0x2a, 12, 1, 1).SGE(1, 8, 1) },
			"an atomic operation at remote address 0xc, which is not a multiple of 8"},
		{ibv.QPT_UD, func(b *SendBatch) { b.Send(0x2a).SGE(1, 1, 1) },
			"a datagram needs an address handle"},
		{ibv.QPT_UD, func(b *SendBatch) { b.Send(0x2a).SGE(1, 1, 1).UD(8, 1<<24, 1) },
			"the remote queue pair's number 0x1000000 has more than 24 bits"},
		{ibv.QPT_RC, func(b *SendBatch) { b.BindMW(0x2a, 0, 1, ibv.MWBindInfo{MR: 8, Length: 8}) },
			"binding needs a memory window and a memory region"},
		{ibv.QPT_RC, func(b *SendBatch) { b.BindMW(0x2a, 8, 1, ibv.MWBindInfo{Length: 8}) },
			"binding needs a memory window and a memory region"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Send(0x2a).SGE(1, 1, 1).SGE(1, 1, 1).SGE(1, 1, 1) },
			"3 entries exceed the queue pair's limit of 2"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Send(0x2a).Inline(make([]byte, 9)).Inline(make([]byte, 8)) },
			"17 inline bytes exceed the queue pair's limit of 16"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Send(0x2a).SGE(1, 4097, 1) },
			"a message of 4097 bytes exceeds the limit of 4096"},
		{ibv.QPT_RC, func(b *SendBatch) { b.Send(0x2a).SGE(1, 4000, 1).SGE(1, 97, 1) },
			"a message of 4097 bytes exceeds the limit of 4096"},
	} {
		d := newDevice(t, c.qpt)
		q := sendQueue(t, d, o)
		b := sendBatch(t, 4, 3, 32)
		if first := b.Send(1).SGE(1, 4096, 1); c.qpt == ibv.QPT_UD {
			first.UD(8, 1, 1)
		}
		c.build(b)
		posted, err := q.Post(b)
		assert.Zero(t, posted)
		assert.ErrorIs(t, err, syscall.EINVAL)
		assert.EqualError(t, err, fmt.Sprintf("ibv_post_send: QP 0x12 (%s): WR 1 (id 0x2a): %s: invalid argument",
			refusal.ShortName(c.qpt), c.want))
		assert.Empty(t, d.sends, "rejected before the call")

		d.fail = 1 // an unchecked queue leaves errors to the provider
		q = sendQueue(t, d, QueueOptions{Unchecked: true})
		posted, err = q.Post(b)
		assert.Equal(t, 1, posted)
		assert.ErrorIs(t, err, syscall.ENOMEM)
	}
}

func TestCheckedLimits(t *testing.T) {
	d := newDevice(t, ibv.QPT_UD)
	o := options(64, 2, 16)
	o.MaxMessage = 4096
	q := sendQueue(t, d, o)
	b := sendBatch(t, 4, 2, 16)
	b.Send(1).SGE(1, 4000, 1).SGE(1, 96, 1).UD(8, 1<<24-1, 1)
	b.Send(2).Inline(make([]byte, 16)).UD(8, 1, 1)
	b.TSO(3, nil, 100).SGE(1, 1<<20, 1).UD(8, 1, 1) // many messages
	b.Send(4).UD(8, 1, 1)
	_, err := q.Post(b)
	require.NoError(t, err, "requests at the limits are valid")

	d = newDevice(t, ibv.QPT_RC)
	q = sendQueue(t, d, options(64, 2, 16))
	b.Reset()
	b.Write(1, 1, 1).SGE(0, 1<<31, 1)
	_, err = q.Post(b)
	require.NoError(t, err)
	b.Write(2, 1, 1).SGE(0, 1<<31, 1).SGE(0, 1, 1)
	_, err = q.Post(b)
	assert.ErrorContains(t, err, "WR 1 (id 0x2): a message of 2147483649 bytes exceeds the limit of 2147483648")
	b.Reset()
	b.Write(1, 1, 1)
	b.WR(0).NumSGE = -1
	_, err = q.Post(b)
	assert.ErrorContains(t, err, "-1 entries")
}

func TestCheckedStates(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, options(64, 1, 0))
	b := writes(sendBatch(t, 1, 1, 0), 3, 1)
	for state := ibv.QPS_RESET; state <= ibv.QPS_UNKNOWN; state++ {
		d.qp.State = state
		_, err := q.Post(b)
		assert.Equal(t, refusal.Refused(ibv.PostInState(state, ibv.WorkQueueSend).Validity), err != nil, "%v: %v",
			state, err)
	}
	d.qp.State = ibv.QPS_INIT
	_, err := q.Post(b)
	assert.EqualError(t, err, "ibv_post_send: QP 0x12 (RC): WR 0 (id 0x3): the send queue accepts no requests in INIT "+
		"(valid in: RTS, SQD, SQE, ERR): invalid argument")
}

// TestCheckedStatesOnIWARP: C's record of the state stays INIT or RTR, because the kernel moves queue pairs to RTS.
func TestCheckedStatesOnIWARP(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	d.context.Device = ibv.PtrTo(&ibv.Device{TransportType: ibv.TRANSPORT_IWARP})
	q := sendQueue(t, d, options(64, 1, 0))
	b := writes(sendBatch(t, 1, 1, 0), 3, 1)
	for state, refused := range map[ibv.QPState]bool{ibv.QPS_RESET: true, ibv.QPS_INIT: false, ibv.QPS_RTR: false,
		ibv.QPS_RTS: false, ibv.QPS_ERR: false} {
		d.qp.State = state
		_, err := q.Post(b)
		assert.Equal(t, refused, err != nil, "%v: %v", state, err)
	}
}

func TestFirstRequestIsAlwaysChecked(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, options(64, 1, 0))
	b := sendBatch(t, 1, 1, 0)
	for _, op := range []ibv.WROpcode{0, ibv.WR_TSO, ^ibv.WROpcode(0), ^ibv.WR_TSO} {
		b.Reset()
		b.Send(1)
		b.WR(0).Opcode = op
		_, err := q.Post(b)
		assert.Equal(t, op == ibv.WR_RDMA_WRITE, err == nil, "%v: %v", op, err)
	}
}

// TestChecksAreShared: queues with equal limits share one table of rules, which is freed with the last of them.
func TestChecksAreShared(t *testing.T) {
	count := func() int {
		sharedChecks.Lock()
		defer sharedChecks.Unlock()
		return len(sharedChecks.all)
	}
	before := count()
	var all []*sendChecks
	for i := range uint32(100) {
		o := options(1, 1, 0)
		o.MaxMessage = 1000 + i
		all = append(all, sendChecksOf(limitsOf(ibv.QPT_RC, &o)))
		assert.Same(t, all[i], sendChecksOf(limitsOf(ibv.QPT_RC, &o)))
		assert.NotSame(t, all[0], sendChecksOf(limitsOf(ibv.QPT_UC, &o)))
	}
	assert.GreaterOrEqual(t, count(), 100)
	goruntime.KeepAlive(all)
	all = nil
	assert.Eventually(t, func() bool { goruntime.GC(); return count() <= before }, 10*time.Second, time.Millisecond)
}

// TestPass: a list passes if and only if each of its requests is valid. Its wr_ids and signaled requests are recorded.
func TestPass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := options(1, 2, 16)
		o.MaxMessage = 100
		c := newSendChecks(limitsOf(ibv.QPT_RC, &o))
		n := rapid.IntRange(1, 64).Draw(t, "length")
		b, err := NewSendBatch(n, 2, 0)
		require.NoError(t, err)
		defer b.Close()
		rare := func(name string) bool { return rapid.IntRange(0, 40).Draw(t, name) == 0 }
		for i := range n {
			r := b.Write(uint64(i)*3, 0, 0).SGE(0, rapid.SampledFrom([]uint32{0, 8, 16}).Draw(t, "bytes"), 0)
			r.Flags(ibv.SEND_SIGNALED * ibv.SendFlags(rapid.IntRange(0, 1).Draw(t, "signalled")))
			r.Flags(ibv.SEND_INLINE * ibv.SendFlags(rapid.IntRange(0, 1).Draw(t, "inline")))
			if rare("second entry") {
				r.SGE(0, rapid.SampledFrom([]uint32{0, 92, 101}).Draw(t, "more bytes"), 0)
			}
			if rare("long") {
				b.SGEs(i)[0].Length = 17
			}
			if rare("unknown") {
				r.Flags(1 << 20)
			}
			if rare("opcode") {
				b.WR(i).Opcode = ibv.WROpcode(rapid.IntRange(0, 17).Draw(t, "opcode"))
			}
		}
		var ids [64]uint64
		signalled, ok := c.check(b.WRs(), &ids[0])
		refused := slices.ContainsFunc(b.WRs(), func(w ibv.SendWR) bool { return c.reason(&w) != "" })
		require.Equal(t, !refused, ok)
		for i, w := range b.WRs() {
			if ok {
				assert.Equal(t, w.WRID, ids[i])
				assert.Equal(t, w.SendFlags&ibv.SEND_SIGNALED != 0, signalled>>i&1 != 0)
			}
		}
	})
}
