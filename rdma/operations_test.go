// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// A queue pair created with send_ops_flags accepts only these operations. Otherwise it accepts all operations of its
// type.
func TestSendOpsFlags(t *testing.T) {
	requestedOps := ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_ATOMIC_FETCH_AND_ADD
	of := map[bool]QueueOptions{false: options(64, 1, 0), true: options(64, 1, 0)}
	only := of[true]
	only.notRequestedOps = ^uint16(requestedOps)
	of[true] = only
	for some, o := range of {
		d := newDevice(t, ibv.QPT_RC)
		q := sendQueue(t, d, o)
		q.limitReads(1) // rebuilds the checks
		q.limitMessages(100)
		for op := range ibv.WROpcode(knownOpcodes) {
			if !known(op) || refusal.Refused(ibv.PostSendValidity(ibv.QPT_RC, op)) || op == ibv.WR_DRIVER1 {
				continue
			}
			b := sendBatch(t, 1, 1, 0)
			b.Send(1).SGE(1, 8, 1).Signaled()
			b.WR(0).Opcode = op
			if op == ibv.WR_BIND_MW {
				*b.WR(0).BindMW() = ibv.SendBindMW{MW: 8, BindInfo: ibv.MWBindInfo{MR: 8}}
			}
			_, err := q.Post(b)
			if !some || requestedOps&ibv.WRBuilder(op).SendOps != 0 {
				assert.NoError(t, err, "%v", op)
				continue
			}
			assert.ErrorContains(t, err, "the queue pair was created without "+op.String()+": add "+
				ibv.WRBuilder(op).SendOps.String()+" to SendOpsFlags (it has: IBV_WR_SEND, IBV_WR_ATOMIC_FETCH_AND_ADD")
			assert.ErrorIs(t, err, syscall.EINVAL)
		}
	}
	d := newDevice(t, ibv.QPT_RC)
	err := sendQueue(t, d, only).BindMW(&ibv.MW{}, &ibv.MWBind{})
	assert.ErrorContains(t, err, "ibv_bind_mw: QP 0x12 (RC): WR 0 (id 0x0): the queue pair was created without "+
		"IBV_WR_BIND_MW")
	only.Unchecked = true
	_, err = sendQueue(t, d, only).Post(writes(sendBatch(t, 1, 1, 0), 1, 1))
	assert.NoError(t, err, "an unchecked queue passes it to C")
}

// Checks limit remote queue pair numbers to 16 bits for libefa, which truncates them, and to 24 bits for others.
func TestRemoteQPNumBits(t *testing.T) {
	of := func(provider string) QueueOptions {
		o := options(4, 1, 0)
		o.restrict(provider)
		return o
	}
	for most, o := range map[uint32]QueueOptions{
		0xffffff: of("mlx5"), 0xffff: of("efa"),
	} {
		for _, kind := range []ibv.QPType{ibv.QPT_UD, ibv.QPT_DRIVER} {
			q := sendQueue(t, newDevice(t, kind), o)
			q.limitMessages(100)
			for _, number := range []uint32{most, most + 1} {
				b := sendBatch(t, 1, 1, 0)
				b.Send(1).SGE(1, 8, 1).UD(8, number, 0).Signaled()
				_, err := q.Post(b)
				if number == most {
					require.NoError(t, err)
					continue
				}
				expected := map[uint32]string{0xffff: "0x10000 has more than 16 bits",
					0xffffff: "0x1000000 has more than 24 bits"}
				assert.ErrorContains(t, err, "the remote queue pair's number "+expected[most])
			}
		}
	}
}

// A receive without scatter/gather entries is rejected only for libefa.
func TestReceivesWithoutEntries(t *testing.T) {
	for _, provider := range []string{"mlx5", "efa"} {
		o := options(4, 2, 0)
		o.restrict(provider)
		q, err := NewRecvQueue(&newDevice(t, ibv.QPT_UD).qp, o)
		require.NoError(t, err)
		b := recvBatch(t, 2, 2)
		b.Recv(1).SGE(1, 8, 1).SGE(2, 8, 1)
		b.Recv(2)
		n, err := q.Post(b)
		if provider == "mlx5" {
			require.NoError(t, err)
			assert.Equal(t, 2, n)
			continue
		}
		assert.EqualError(t, err, "ibv_post_recv: QP 0x12 (UD): WR 1 (id 0x2): no entries; the device's library "+
			"would count the receive but never pass it to the device: add an entry: invalid argument")
		assert.Equal(t, 4, q.Free())
		b.WR(1).NumSGE = 3
		_, err = q.Post(b)
		assert.ErrorContains(t, err, "3 entries exceed the queue's limit of 2")
		b.WR(1).NumSGE = 2
		_, err = q.Post(b)
		assert.NoError(t, err)
	}
}
