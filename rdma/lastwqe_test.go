// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// sharedReceiver returns a queue pair connected to itself that receives from a shared receive queue.
func sharedReceiver(t *testing.T) (*end, *Device) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, QueueOptions{})
	closeAtEnd(t, srq, err)
	e := newEnd(t, pd, ibv.QPT_RC, srq, QueueOptions{})
	loop(t, e.qp)
	return e, d
}

func to(t *testing.T, qp *QP, state ibv.QPState) {
	require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: state}, ibv.QP_STATE))
}

// waitForLastWQE sets the time that a drain waits for its event. A minute suffices even on a busy machine.
func waitForLastWQE(t *testing.T, d time.Duration) {
	usual := lastWQEWait
	lastWQEWait = d
	t.Cleanup(func() { lastWQEWait = usual })
}

// timed returns the duration of a drain during which no event arrives.
func timed(t *testing.T, d *Device, qp *QP) time.Duration {
	d.objects.remove(address(qp.c))
	defer d.objects.add(address(qp.c), qp)
	start := time.Now()
	require.NoError(t, qp.Drain(soon(t)))
	defer d.keepsLastWQE.Store(false)
	return time.Since(start)
}

// An event from before RESET is not taken for one after it, even if it was not read until then.
func TestLastWQEBeforeReset(t *testing.T) {
	e, d := sharedReceiver(t)
	for range 200 {
		to(t, e.qp, ibv.QPS_ERR)
		to(t, e.qp, ibv.QPS_RESET)
		d.events.flush()
		if !assert.False(t, e.qp.lastWQE.reset()) {
			break
		}
		loop(t, e.qp)
	}

	d.notify(AsyncEvent{Type: ibv.EVENT_QP_LAST_WQE_REACHED, QP: e.qp}) // a delayed event
	assert.GreaterOrEqual(t, timed(t, d, e.qp), lastWQEWait, "no event since the queue pair was reset")
}

// A queue pair that failed by itself has sent its event before it is drained.
func TestLastWQEOfFailedQP(t *testing.T) {
	e, d := sharedReceiver(t)
	b := sendBatch(t, 1, 1, 0)
	b.Send(1).Add(ibv.SGE{Addr: 8, Length: 1, LKey: 0xbad}).Signaled()
	_, err := e.qp.PostSend(b)
	require.NoError(t, err)
	wc := softCompletion(t, e.cq)
	require.Error(t, CompletionErr(&wc))
	d.events.flush()
	waitForLastWQE(t, time.Minute)
	assert.Less(t, timed(t, d, e.qp), lastWQEWait)
	assert.Less(t, timed(t, d, e.qp), lastWQEWait, "a drained queue pair is drained again at once")
}

// A goroutine that waits until all events are read does not hang when the reader has ended.
func TestFlushAfterEventReaderEnded(t *testing.T) {
	d := openSoft(t)
	d.events.flush()
	require.NoError(t, d.Close())
	d.events.flush()
}
