// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestWaitForReceive checks that after an RNR NAK the sender retries when the peer's min_rnr_timer expires, not earlier
// because of a new receive or another message, and that messages stay in order.
func TestWaitForReceive(t *testing.T) {
	testbed.Immediate(t, "the timer takes no time")
	r := testbed.Open(t)
	p := r.Pair(ibv.QPT_RC)
	const code, least = 28, 110 * time.Millisecond // 163.84 ms; ticks of an emulated kernel are sometimes late
	require.NoError(t, verbs.ModifyQP(p.B, &ibv.QPAttr{MinRNRTimer: code}, ibv.QP_MIN_RNR_TIMER))
	b := r.Buffer(64, ibv.ACCESS_LOCAL_WRITE)
	start := time.Now()
	for id := range uint64(2) {
		l := r.Sends(1)
		l.WRs[0].WRID, l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = id, ibv.WR_SEND, ibv.SEND_SIGNALED, b.SGE(0, 8)
		_, err := l.Post(p.A)
		require.NoError(t, err)
		time.Sleep(2 * time.Millisecond) // until the NAK has arrived
		r.Recv(p.B, id, b.SGE(16, 16))
	}
	for id := range uint64(2) {
		wc := r.Completion(p.ASend)
		assert.Equal(t, ibv.WC_SUCCESS, wc.Status)
		assert.Equal(t, id, wc.WRID)
		assert.Greater(t, time.Since(start), least)
		assert.Equal(t, id, r.Completion(p.BRecv).WRID)
	}
}
