// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestAll: a loop over All may end at any time, and its body may poll, without losing completions.
func TestAll(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	e.write(10, 6)
	for wc, err := range e.cq.All(timeout(t)) {
		require.NoError(t, err)
		require.NoError(t, CompletionErr(&wc))
		assert.EqualValues(t, 10, wc.WRID)
		n, err := e.cq.Poll(e.wcs[:1])
		require.NoError(t, err)
		require.Equal(t, 1, n, "All polls one completion per iteration")
		assert.EqualValues(t, 11, e.wcs[0].WRID)
		break
	}
	next := uint64(12)
	for wc, err := range e.cq.All(timeout(t)) {
		require.NoError(t, err)
		assert.Equal(t, next, wc.WRID)
		if next++; next == 16 {
			break
		}
	}
	n, err := e.cq.Poll(e.wcs)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Equal(t, 16, e.qp.SendQueue().Free())
}

// TestAllEnds: All yields an error of the wait and ends. A failed completion does not end it.
func TestAllEnds(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	e.receive(1, 2)
	require.NoError(t, e.qp.Drain(t.Context()))
	ctx, cancel := context.WithCancel(timeout(t))
	defer cancel()
	var failed int
	var last error
	for wc, err := range e.cq.All(ctx) {
		require.NoError(t, last, "nothing follows an error")
		if last = err; err == nil {
			assert.ErrorIs(t, CompletionErr(&wc), &CompletionError{Status: ibv.WC_WR_FLUSH_ERR})
			if failed++; failed == 2 {
				go cancel()
			}
		}
	}
	assert.Equal(t, 2, failed)
	assert.ErrorIs(t, last, context.Canceled)

	p := newPoller[int](t, e, 1)
	for _, err := range e.cq.All(timeout(t)) {
		assert.ErrorIs(t, err, ErrInUse)
	}
	require.NoError(t, p.Close())
}

// TestAllPolls: without a channel, All polls. Poller.All yields the values of its tickets.
func TestAllPolls(t *testing.T) {
	e := newSoftPeer(t, softPD(t), ibv.QPT_RC)
	connectToSelf(t, e.qp)
	p, err := NewPoller[string](e.cq, 4)
	p = keep(t, p, err)
	b := sendBatch(t, 4, 1, 0)
	for _, name := range []string{"a", "b", "c"} {
		id, err := p.Ticket(name)
		require.NoError(t, err)
		b.Write(id, 0, 0).Signaled()
	}
	_, err = e.qp.PostSend(b)
	require.NoError(t, err)
	got := ""
	for c, err := range p.All(timeout(t)) {
		require.NoError(t, err)
		require.True(t, c.Known)
		if got += c.Value; len(got) == 2 {
			break
		}
	}
	for c, err := range p.All(timeout(t)) {
		require.NoError(t, err)
		got += c.Value
		break
	}
	assert.Equal(t, "abc", got)
	require.NoError(t, p.Close())

	b.Reset()
	b.Write(7, 0, 0).Signaled()
	defer postLater(t, e.qp, b)()
	for wc, err := range e.cq.All(timeout(t)) {
		require.NoError(t, err)
		assert.EqualValues(t, 7, wc.WRID)
		break
	}
}

// postLater posts a batch after a short delay or, if the queue has a channel, when a goroutine sleeps. The returned
// function waits for the post.
func postLater(t *testing.T, qp *QP, b *SendBatch) func() {
	ctx, posted := timeout(t), make(chan struct{})
	time.AfterFunc(10*time.Millisecond, func() {
		defer close(posted)
		for cq := qp.SendCQ(); cq.channel != nil && cq.waiters.Load() == 0; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Error("no goroutine sleeps")
				break
			}
		}
		qp.PostSend(b)
	})
	return func() { <-posted }
}

// TestAllDoesNotAllocate: All does not allocate per completion.
func TestAllDoesNotAllocate(t *testing.T) {
	if underRaceDetector {
		t.Skip("the race detector allocates")
	}
	e := selfConnected(t, ibv.QPT_RC)
	ctx := t.Context()
	round := func(n int) func() {
		return func() {
			e.write(1, n)
			left := n
			for wc, err := range e.cq.All(ctx) {
				if err == nil {
					err = CompletionErr(&wc)
				}
				if err != nil {
					t.Error(err)
				}
				if left--; left == 0 {
					break
				}
			}
		}
	}
	of := func(n int) float64 { // the least of five, since goroutines of other tests may allocate, too
		least := math.Inf(1)
		for range 5 {
			least = min(least, testing.AllocsPerRun(50, round(n)))
		}
		return least
	}
	assert.Equal(t, of(1), of(16))
}

// TestWaitProgram: a program reads the values that the queue provides. WaitProgram sleeps or, without a channel, polls.
func TestWaitProgram(t *testing.T) {
	pd := softPD(t)
	channel, err := pd.Device().CreateCompChannel()
	channel = keep(t, channel, err)
	for name, in := range map[string]*ibv.CQInitAttrEx{
		"sleeps": {CQE: 16, Channel: channel.Ptr()},
		"polls":  {CQE: 16},
	} {
		t.Run(name, func(t *testing.T) {
			in.WCFlags = ibv.WC_EX_WITH_QP_NUM | ibv.WC_EX_WITH_BYTE_LEN | ibv.WC_EX_WITH_COMPLETION_TIMESTAMP
			cq, err := pd.Device().CreateCQEx(in)
			cq = keep(t, cq, err)
			cq.SetBusyPoll(0)
			qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(),
				Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, QueueOptions{})
			connectToSelf(t, keep(t, qp, err))
			p, err := cq.NewPollProgram(4)
			p = keep(t, p, err)
			b := emptyWrites(sendBatch(t, 3, 1, 0), 5, 3)
			ctx := timeout(t)
			round := func() {
				if _, err := qp.PostSend(b); err != nil {
					t.Error(err)
				}
				for got := 0; got < 3; {
					found, err := cq.WaitProgram(ctx, p)
					if err != nil || len(found) == 0 || found[0].WRID != uint64(5+got) || found[0].QPNum != qp.Num() ||
						found[0].Timestamp == 0 {
						t.Fatal(found, err)
					}
					got += len(found)
				}
			}
			round()
			if !underRaceDetector {
				assert.Zero(t, testing.AllocsPerRun(20, round))
			}
			defer postLater(t, qp, b)()
			found, err := cq.WaitProgram(ctx, p)
			require.NoError(t, err)
			assert.EqualValues(t, 5, found[0].WRID)
			for got := len(found); got < 3; got += len(found) {
				found, err = cq.WaitProgram(ctx, p)
				require.NoError(t, err)
			}
			canceled, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			found, err = cq.WaitProgram(canceled, p)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Empty(t, found)
		})
	}
	plain, err := pd.Device().CreateCQ(4, nil, 0)
	plain = keep(t, plain, err)
	_, err = plain.NewPollProgram(4)
	assert.ErrorContains(t, err, "not extended: create it with CreateCQEx")
	_, err = plain.WaitProgram(t.Context(), new(PollProgram))
	assert.ErrorContains(t, err, "not extended")
}

// TestEvents tests the iterators over events of a device and of a channel.
func TestEvents(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	require.NoError(t, e.cq.ReqNotify(false))
	e.write(1, 1)
	for cq, err := range e.channel.Events(timeout(t)) {
		require.NoError(t, err)
		assert.Same(t, e.cq, cq)
		break
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	n := 0
	for _, err := range e.pd.Device().Events(ctx) {
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		n++
	}
	assert.Equal(t, 1, n)
}

// TestSGEOfSlices: SGEOf returns the entry of a slice of the registered memory and panics for other slices.
func TestSGEOfSlices(t *testing.T) {
	pd := softPD(t)
	memory := make([]byte, 100)
	mr, err := pd.RegMR(memory[10:90], 0)
	mr = keep(t, mr, err)
	assert.Equal(t, mr.SGE(0, 80), mr.SGEOf(mr.Bytes()))
	assert.Equal(t, mr.SGE(7, 13), mr.SGEOf(mr.Bytes()[7:20]))
	assert.Equal(t, mr.SGE(79, 1), mr.SGEOf(memory[89:90]))
	assert.Equal(t, mr.SGE(0, 0), mr.SGEOf(nil))
	outside := "rdma: SGEOf of a slice of %d bytes that is not inside the region of 80 bytes; slice MR.Bytes or " +
		"the registered memory"
	for _, b := range [][]byte{memory[9:20], memory[89:91], memory[90:91], make([]byte, 8), memory} {
		assert.PanicsWithValue(t, fmt.Sprintf(outside, len(b)), func() { mr.SGEOf(b) })
	}
	address := uintptr(unsafe.Pointer(&memory[0]))
	bare, err := pd.RegAddress(address, 100, uint64(address), 0)
	bare = keep(t, bare, err)
	assert.PanicsWithValue(t, "rdma: SGEOf of a region without Go memory; use SGE, which takes an offset",
		func() { bare.SGEOf(memory) })
}
