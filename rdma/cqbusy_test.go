// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestBusyPoll: a wait polls before it sleeps. It stops doing so when polling finds no completions, retries it
// occasionally, and SetBusyPoll disables it.
func TestBusyPoll(t *testing.T) {
	e := newSoftPeer(t, softPD(t), ibv.QPT_RC)
	self, err := e.qp.Endpoint()
	require.NoError(t, err)
	require.NoError(t, e.qp.Connect(self))
	wcs := make([]ibv.WC, 1)
	polls := 0 // counted, because times vary on a busy machine
	poll := e.cq.queue.replacePath(polling(func() { polls++ }))
	lingers := func() bool {
		polls = 0
		n, err := e.cq.spin(into{wcs: wcs})
		require.NoError(t, err)
		require.Zero(t, n)
		return polls > 0
	}
	e.cq.SetBusyPoll(10 * time.Millisecond)
	assert.True(t, lingers())
	for range probeInterval - 1 {
		assert.False(t, lingers(), "polling found nothing")
	}
	assert.True(t, lingers(), "retried")

	e.cq.queue.replacePath(poll)
	e.cq.SetBusyPoll(10 * time.Second)
	e.cq.busy.pays.Store(true)
	b, posted := sendBatch(t, 1, 1, 0), make(chan error, 1)
	b.Write(7, e.mr.Address(), e.mr.RKey()).Add(e.mr.SGE(64, 8)).Signaled()
	time.AfterFunc(5*time.Millisecond, func() {
		_, err := e.qp.PostSend(b)
		posted <- err
	})
	n, err := e.cq.spin(into{wcs: wcs})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, <-posted)
	assert.EqualValues(t, 7, wcs[0].WRID)
	assert.True(t, e.cq.busy.pays.Load())

	e.cq.SetBusyPoll(0)
	n, err = e.cq.spin(into{wcs: wcs})
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.True(t, e.cq.busy.pays.Load(), "polling was not retried")
}
