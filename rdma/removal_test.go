// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// When a device is removed, operations in progress and later ones fail. All of its objects can still be closed,
// children first.
func TestDeviceRemoval(t *testing.T) {
	for range rounds(t, 20) {
		removeDevice(t)
		if t.Failed() {
			return
		}
	}
}

func removeDevice(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent(), goleak.IgnoreAnyFunction("runtime.runCleanups"))
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	d, err := OpenOn(fabric, "soft0")
	require.NoError(t, err)
	pd := must(d.AllocPD())
	channel, bare := must(d.CreateCompChannel()), must(d.CreateCompChannel())
	cq, other := must(d.CreateCQ(64, channel, 0)), must(d.CreateCQ(64, channel, 0))
	srq := must(pd.CreateSRQ(ibv.SRQAttr{MaxWR: 8, MaxSGE: 1}, QueueOptions{}))
	mr := must(pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE))
	qp := func(q *CQ, shared *SRQ) *QP {
		attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: q.Ptr(), RecvCQ: q.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}
		if shared != nil {
			attr.SRQ = shared.Ptr()
		}
		return connectToSelf(t, must(pd.CreateQP(attr, QueueOptions{})))
	}
	a, b, c := qp(cq, nil), qp(other, srq), qp(other, nil)
	calls := must(NewCalls(other, 8, nil))

	var users sync.WaitGroup
	until := func(name string, f func() error) { // until f fails
		users.Go(func() {
			for deadline := time.Now().Add(30 * time.Second); ; {
				err := f()
				if err != nil {
					assert.NotErrorIs(t, err, context.DeadlineExceeded, name)
					return
				}
				if !assert.True(t, time.Now().Before(deadline), "%s does not fail", name) {
					return
				}
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for range 2 {
		until("wait", func() error { _, err := cq.Wait(ctx, make([]ibv.WC, 1)); return err })
	}
	until("busy wait", func() error { _, err := cq.WaitBusy(ctx, make([]ibv.WC, 1)); return err })
	until("channel", func() error { _, err := bare.Wait(ctx); return err })
	until("events", func() error { _, err := d.Event(ctx); return err })
	until("post", func() error {
		batch, err := NewSendBatch(1, 1, 0)
		if err != nil {
			return err
		}
		defer batch.Close()
		batch.Write(1, 0, 0).Signaled()
		_, err = a.PostSend(batch)
		if errors.Is(err, syscall.ENOMEM) {
			return d.Err() // another goroutine polls until then
		}
		return err
	})
	until("call", func() error {
		call, err := calls.Begin()
		if err != nil {
			return err
		}
		batch, err := NewSendBatch(1, 1, 0)
		if err != nil {
			return err
		}
		defer batch.Close()
		batch.Write(call.ID(), 0, 0).Signaled()
		if _, err := c.PostSend(batch); err != nil {
			call.Cancel()
			return err
		}
		wc, err := call.Wait(ctx)
		return errors.Join(err, CompletionErr(&wc))
	})
	until("drain", func() error {
		if err := b.Drain(ctx); err != nil {
			return err
		}
		if err := b.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE); err != nil {
			return err
		}
		local, err := b.Endpoint()
		if err != nil {
			return err
		}
		return b.Connect(local)
	})
	time.Sleep(2 * time.Millisecond)
	require.True(t, fabric.RemoveDevice("soft0"))
	users.Wait()

	assert.ErrorIs(t, d.Err(), syscall.EIO)
	_, err = d.AllocPD()
	assert.ErrorIs(t, err, syscall.EIO)
	_, err = cq.Wait(ctx, make([]ibv.WC, 1))
	for err == nil { // completions from before the removal
		_, err = cq.Wait(ctx, make([]ibv.WC, 1))
	}
	assert.ErrorIs(t, err, syscall.EIO)
	assert.ErrorIs(t, pd.Close(), ErrInUse)
	for _, o := range []interface{ Close() error }{calls, a, b, c, srq, mr, cq, other, channel, bare, pd, d} {
		start := time.Now()
		assert.NoError(t, o.Close())
		assert.Less(t, time.Since(start), closeDrains)
	}
	require.NoError(t, fabric.Close())
}

// If no events are read, the newest are kept, and the number of dropped events is reported once.
func TestUnreadEvents(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	d, err := OpenOn(fabric, "soft0")
	closeAtEnd(t, d, err)
	const older = 10
	for i := range asyncBacklog + older {
		require.True(t, fabric.SetLink("soft0", i%2 == 1))
	}
	d.events.flush()
	for i := range asyncBacklog {
		e, err := d.Event(timeout(t))
		require.NoError(t, err)
		want := AsyncEvent{Type: ibv.EVENT_PORT_ERR, Port: 1}
		if i%2 == 1 {
			want.Type = ibv.EVENT_PORT_ACTIVE
		}
		if i == 0 {
			want.Lost = older
		}
		require.Equal(t, want, e, i)
	}
}
