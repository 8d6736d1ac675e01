// SPDX-License-Identifier: BSD-2-Clause

package roce

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestErrors checks the status at the requester for each error that a peer can cause, and the completion at the
// responder.
func TestErrors(t *testing.T) {
	const sent, wrongData, wrongBind = 5001, "data with a wrong key", "a window of a region without the right"
	without := func(e *end, rights ibv.AccessFlags) uint32 { // another region of the same memory
		mr, err := e.q.RegMR(e.mr.Bytes(), (ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_READ|
			ibv.ACCESS_REMOTE_ATOMIC)&^rights)
		require.NoError(e.t, err)
		return mr.RKey()
	}
	// Timeouts are short only where the requester must give up: on a busy machine, answers may be late.
	patience := func(want ibv.WCStatus) func(*ibv.QPAttr) {
		return func(attr *ibv.QPAttr) {
			attr.RNRRetry, attr.RetryCnt, attr.Timeout = 7, 7, testbed.PeerAckTimeout
			switch want {
			case ibv.WC_RNR_RETRY_EXC_ERR:
				attr.RNRRetry = 1
			case ibv.WC_RETRY_EXC_ERR:
				attr.RetryCnt, attr.Timeout = 1, 14
			}
		}
	}
	forBothRequesters(t, func(t *testing.T, pair func(*testing.T, options) (a, b *end)) {
		for _, c := range []struct {
			name  string
			ready func(b *end)
			post  func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest
			want  ibv.WCStatus
			other ibv.WCStatus // SUCCESS means no completion
		}{
			{"write with a wrong key", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.Write(1, b.mr.SGE(0, 1).Addr, b.mr.RKey()^0x5500)
			}, ibv.WC_REM_ACCESS_ERR, ibv.WC_SUCCESS},
			{"write beyond the region", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.Write(1, b.mr.SGE(memory-sent+1, 1).Addr, b.mr.RKey())
			}, ibv.WC_REM_ACCESS_ERR, ibv.WC_SUCCESS},
			{"read with a wrong key", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.Read(1, b.mr.SGE(0, 1).Addr, b.mr.RKey()^0x5500)
			}, ibv.WC_REM_ACCESS_ERR, ibv.WC_SUCCESS},
			{"atomic with a wrong key", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.FetchAdd(1, b.mr.SGE(0, 1).Addr, b.mr.RKey()^0x5500, 1).Add(a.mr.SGE(0, 8))
			}, ibv.WC_REM_ACCESS_ERR, ibv.WC_SUCCESS},
			{"write without the right", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.Write(1, b.mr.SGE(0, 1).Addr, without(b, ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_ATOMIC))
			}, ibv.WC_REM_ACCESS_ERR, ibv.WC_SUCCESS},
			{"read without the right", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.Read(1, b.mr.SGE(0, 1).Addr, without(b, ibv.ACCESS_REMOTE_READ))
			}, ibv.WC_REM_ACCESS_ERR, ibv.WC_SUCCESS},
			{"write that the queue pair does not allow", func(b *end) { b.allow(ibv.ACCESS_REMOTE_READ) },
				func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
					return batch.Write(1, b.mr.SGE(0, 1).Addr, b.mr.RKey())
				}, ibv.WC_REM_INV_REQ_ERR, ibv.WC_SUCCESS},
			{"read that the queue pair does not allow", func(b *end) { b.allow(ibv.ACCESS_REMOTE_WRITE) },
				func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
					return batch.Read(1, b.mr.SGE(0, 1).Addr, b.mr.RKey())
				}, ibv.WC_REM_INV_REQ_ERR, ibv.WC_SUCCESS},
			{wrongData, nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.Write(1, b.mr.SGE(0, 1).Addr, b.mr.RKey()).SGE(a.mr.SGE(0, 1).Addr, 8, a.mr.LKey()^0x5500)
			}, ibv.WC_LOC_PROT_ERR, ibv.WC_SUCCESS},
			{"read into memory with a wrong key", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				return batch.Read(1, b.mr.SGE(0, 1).Addr, b.mr.RKey()).SGE(a.mr.SGE(0, 1).Addr, 8, a.mr.LKey()^0x5500)
			}, ibv.WC_LOC_PROT_ERR, ibv.WC_SUCCESS},
			{wrongBind, nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest {
				mw, err := a.q.PD().AllocMW(ibv.MW_TYPE_2)
				keep(a.t, mw, err)
				mr, err := a.q.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE) // without MW_BIND
				require.NoError(a.t, err)
				return batch.BindMW(1, mw.Ptr(), mw.NextRKey(), ibv.MWBindInfo{MR: mr.Ptr(), Addr: mr.Address(),
					Length: 64, MWAccessFlags: ibv.ACCESS_REMOTE_WRITE})
			}, ibv.WC_MW_BIND_ERR, ibv.WC_SUCCESS},
			{"receive with a wrong key", func(b *end) { b.recvAt(b.mr.SGE(0, 1).Addr, sent, b.mr.LKey()^0x5500) },
				func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(1) },
				ibv.WC_REM_OP_ERR, ibv.WC_LOC_PROT_ERR},
			{"receive too short", func(b *end) { b.recv(0, sent-1) },
				func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(1) },
				ibv.WC_REM_INV_REQ_ERR, ibv.WC_LOC_LEN_ERR},
			{"no receive", nil, func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(1) },
				ibv.WC_RNR_RETRY_EXC_ERR, ibv.WC_SUCCESS},
			{"no queue pair", func(b *end) { b.q.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE) },
				func(a, b *end, batch *rdma.SendBatch) rdma.SendRequest { return batch.Send(1) },
				ibv.WC_RETRY_EXC_ERR, ibv.WC_SUCCESS},
		} {
			t.Run(c.name, func(t *testing.T) {
				a, b := pair(t, options{kind: ibv.QPT_RC, change: patience(c.want)})
				if c.ready != nil {
					c.ready(b)
				}
				a.recv(0, 1)
				a.post(func(batch *rdma.SendBatch) rdma.SendRequest {
					r := c.post(a, b, batch)
					if batch.WR(0).NumSGE == 0 && batch.WR(0).Opcode != ibv.WR_BIND_MW {
						r.Add(a.mr.SGE(0, sent))
					}
					return r
				})
				want, other := c.want, c.other
				switch { // behavior of Soft-RoCE, see conformance/vm/results
				case b.kernel && (other == ibv.WC_LOC_LEN_ERR || other == ibv.WC_LOC_PROT_ERR):
					want, other = ibv.WC_REM_OP_ERR, ibv.WC_LOC_QP_OP_ERR
				case a.kernel && c.name == wrongData && testbed.Kernel(t) == "6.1":
					want = ibv.WC_LOC_QP_OP_ERR
				case a.kernel && (c.name == wrongData || c.name == wrongBind && testbed.Kernel(t) != "6.1"):
					want = ibv.WC_WR_FLUSH_ERR
				}
				wc := a.completion()
				assert.Equal(t, want, wc.Status)
				wc = a.completion()
				assert.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status, "its receive")
				if other != ibv.WC_SUCCESS {
					wc := b.completion()
					assert.Equal(t, other, wc.Status)
				}
			})
		}
	})
}
