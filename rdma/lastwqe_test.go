// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// sharedReceiver returns a queue pair that is connected to itself and uses a shared receive queue.
func sharedReceiver(t *testing.T) (*testQP, *Device) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, QueueOptions{})
	closeAtEnd(t, srq, err)
	e := newTestQP(t, pd, ibv.QPT_RC, srq, QueueOptions{})
	connectToSelf(t, e.qp)
	return e, d
}

func to(t *testing.T, qp *QP, state ibv.QPState) {
	require.NoError(t, qp.Modify(&ibv.QPAttr{QPState: state}, ibv.QP_STATE))
}

// waitForLastWQE sets the time that a drain waits for IBV_EVENT_QP_LAST_WQE_REACHED. A minute suffices even on a busy
// machine.
func waitForLastWQE(t *testing.T, d time.Duration) {
	usual := lastWQEWait
	lastWQEWait = d
	t.Cleanup(func() { lastWQEWait = usual })
}

// timed returns the duration of a drain.
func timed(t *testing.T, d *Device, qp *QP) time.Duration {
	d.objects.remove(address(qp.c))
	defer d.objects.add(address(qp.c), qp)
	start := time.Now()
	require.NoError(t, qp.Drain(timeout(t)))
	defer d.noLastWQE.Store(false)
	return time.Since(start)
}

// A drain ignores an event from before RESET, even if it was not read until then.
func TestLastWQEBeforeReset(t *testing.T) {
	e, d := sharedReceiver(t)
	for range 200 {
		to(t, e.qp, ibv.QPS_ERR)
		to(t, e.qp, ibv.QPS_RESET)
		d.events.flush()
		if !assert.False(t, e.qp.lastWQE.reset()) {
			break
		}
		connectToSelf(t, e.qp)
	}

	d.notify(AsyncEvent{Type: ibv.EVENT_QP_LAST_WQE_REACHED, QP: e.qp}) // a delayed event
	assert.GreaterOrEqual(t, timed(t, d, e.qp), lastWQEWait, "no event since the queue pair was reset")
}

// If the device moved the queue pair to ERR, the event was raised before the drain, which then does not wait.
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

// flush returns if the goroutine that reads events has ended.
func TestFlushAfterEventReaderEnded(t *testing.T) {
	d := openSoft(t)
	d.events.flush()
	require.NoError(t, d.Close())
	d.events.flush()
}
