// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// onlyIWARP skips a test in guests without Soft-iWARP.
func onlyIWARP(t *testing.T) {
	t.Helper()
	testbed.Kernel(t)
	if !testbed.IWARP() {
		t.Skip("runs on Soft-iWARP: make vm WHAT=siw")
	}
}

// TestTransitionsOnIWARP measures which states a queue pair can be moved to, with the state only and with the
// attributes that InfiniBand requires, and the state that ibv_query_qp then returns. Only the connection manager moves
// it to RTS.
func TestTransitionsOnIWARP(t *testing.T) {
	onlyIWARP(t)
	r := testbed.Open(t)
	table := results.Table{Columns: []string{"from", "to", "attributes", "modify", "query"}, Keys: 3}
	for _, from := range []ibv.QPState{ibv.QPS_RESET, ibv.QPS_INIT, ibv.QPS_RTS, ibv.QPS_ERR} {
		for _, to := range wanted {
			for _, name := range []string{"state", "required"} {
				key := []string{trim(from.String()), trim(to.String()), name}
				t.Run(strings.Join(key, "/"), func(t *testing.T) {
					sub := r.For(t)
					var qp *ibv.QP
					switch from {
					case ibv.QPS_RTS:
						qp = sub.Pair(ibv.QPT_RC).A
					default:
						cq := sub.CQ(16)
						qp = sub.QP(ibv.QPT_RC, cq, cq)
						if from != ibv.QPS_RESET {
							sub.Init(qp)
						}
						if from == ibv.QPS_ERR {
							sub.Move(qp, from)
						}
					}
					attr, mask := attributes(r, qp, from, to), ibv.QP_STATE
					if name == "required" {
						mask |= ibv.ModifyQP(ibv.QPT_RC, from, to).Required
					}
					err := verbs.ModifyQP(qp, &attr, mask)
					table.Rows = append(table.Rows, append(key, errnoName(err), trim(sub.State(qp).String())))
				})
			}
		}
	}
	check(t, "modify_qp", table)
}

// TestInvalidatedOnIWARP checks which key SEND_WITH_INV invalidates: libsiw sends wr.rdma.rkey, package native
// invalidate_rkey, as ibv_post_send(3) documents.
func TestInvalidatedOnIWARP(t *testing.T) {
	onlyIWARP(t)
	r := testbed.Open(t)
	p := r.Pair(ibv.QPT_RC)
	local, to := r.Buffer(64, r.Access), r.Buffer(64, r.Access)
	named, other := r.Buffer(64, r.Access), r.Buffer(64, r.Access)
	r.Recv(p.B, 7, to.SGE(0, 64))
	l := r.Sends(1)
	wr := &l.WRs[0]
	wr.Opcode, wr.SendFlags, l.SGEs[0] = ibv.WR_SEND_WITH_INV, ibv.SEND_SIGNALED, local.SGE(0, 8)
	wr.WR.RDMA().RKey = other.MR.RKey
	*wr.InvalidateRKey() = named.MR.RKey
	_, err := l.Post(p.A)
	require.NoError(t, err)
	require.Equal(t, ibv.WC_SUCCESS, r.Completion(p.ASend).Status)
	wc := r.Completion(p.BRecv)
	require.Equal(t, ibv.WC_SUCCESS, wc.Status)
	assert.Zero(t, wc.WCFlags, "the kernel reports the key only to the kernel's queues")
	want := other.MR.RKey
	if testbed.Native() {
		want = named.MR.RKey
	}
	for _, b := range []*testbed.Buffer{named, other} {
		l.WRs[0] = ibv.SendWR{WRID: 2, SGList: wr.SGList, NumSGE: 1, Opcode: ibv.WR_RDMA_READ,
			SendFlags: ibv.SEND_SIGNALED}
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: b.Address(0), RKey: b.MR.RKey}
		if b.MR.RKey != want {
			_, err = l.Post(p.A)
			require.NoError(t, err)
			assert.Equal(t, ibv.WC_SUCCESS, r.Completion(p.ASend).Status, "the other region is still valid")
		}
	}
	*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: named.Address(0), RKey: want}
	if want == other.MR.RKey {
		wr.WR.RDMA().RemoteAddr = other.Address(0)
	}
	_, err = l.Post(p.A)
	require.NoError(t, err)
	assert.NotEqual(t, ibv.WC_SUCCESS, r.Completion(p.ASend).Status, "the region was invalidated")
}
