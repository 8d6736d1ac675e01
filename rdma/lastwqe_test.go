// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// sharedReceiver is a queue pair, connected with itself, that receives from a shared queue.
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

// waitForLastWQE changes how long a drain waits for its event: a minute is more than a machine with much to do needs.
func waitForLastWQE(t *testing.T, d time.Duration) {
	usual := lastWQEWait
	lastWQEWait = d
	t.Cleanup(func() { lastWQEWait = usual })
}

// timed is how long a drain took that can only hear of events of the past.
func timed(t *testing.T, d *Device, qp *QP) time.Duration {
	d.objects.remove(address(qp.c))
	defer d.objects.add(address(qp.c), qp)
	start := time.Now()
	require.NoError(t, qp.Drain(soon(t)))
	defer d.keepsLastWQE.Store(false)
	return time.Since(start)
}

// The event of a life that ended in RESET is not taken for one of the next life, even if nobody had read it by then.
func TestEventsOfFormerLives(t *testing.T) {
	e, d := sharedReceiver(t)
	for range 200 {
		to(t, e.qp, ibv.QPS_ERR)
		to(t, e.qp, ibv.QPS_RESET)
		d.events.flush()
		if !assert.False(t, e.qp.lastWQE.again()) {
			break
		}
		loop(t, e.qp)
	}

	d.notify(AsyncEvent{Type: ibv.EVENT_QP_LAST_WQE_REACHED, QP: e.qp}) // the device took its time
	assert.GreaterOrEqual(t, timed(t, d, e.qp), lastWQEWait, "before the way to ERR there was none of this life")
}

// A queue pair that broke by itself has raised its event before anyone drains it.
func TestEventOfAQueuePairThatBroke(t *testing.T) {
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
	assert.Less(t, timed(t, d, e.qp), lastWQEWait, "what is drained is drained at once")
}

// A goroutine that waits for a look at the events does not wait for ever when nobody looks any more.
func TestFlushOfEventsThatEnded(t *testing.T) {
	d := openSoft(t)
	d.events.flush()
	require.NoError(t, d.Close())
	d.events.flush()
}
