// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestAbandonedCallKeepsItsMemory: the memory of an abandoned receive is neither released nor collected before a
// message has been written to it.
func TestAbandonedCallKeepsItsMemory(t *testing.T) {
	for _, wire := range []string{"", "delayed"} {
		t.Run("wire "+wire, func(t *testing.T) {
			t.Setenv("GOVERBS_SOFT_WIRE", wire)
			e := selfConnected(t, ibv.QPT_RC)
			calls, err := NewCalls(e.cq, 8, nil)
			calls = closeAtEnd(t, calls, err)
			released, freed := make(chan string, 1), make(chan struct{})
			abandonReceive(t, e, calls, released, freed)
			for range 3 {
				goruntime.GC()
			}
			select {
			case <-released:
				t.Fatal("the memory was released while the device may write to it")
			case <-freed:
				t.Fatal("the memory was collected while the device may write to it")
			default:
			}
			err = calls.Close()
			assert.ErrorIs(t, err, ErrInUse)
			assert.ErrorContains(t, err, "1 abandoned calls are outstanding: close or drain their queue pairs first")

			mr, err := e.pd.RegMR([]byte("hello"), 0)
			mr = closeAtEnd(t, mr, err)
			send, err := calls.Begin()
			require.NoError(t, err)
			e.send.Reset()
			e.send.Send(send.ID()).Add(mr.SGEOf(mr.Bytes())).Signaled()
			_, err = e.qp.PostSend(e.send)
			require.NoError(t, err)
			wc, err := send.Wait(timeout(t))
			require.NoError(t, err)
			require.NoError(t, CompletionErr(&wc))
			select {
			case got := <-released:
				assert.Equal(t, "hello", got)
			case <-timeout(t).Done():
				t.Fatal("the memory was not released")
			}
			collected := func() bool {
				goruntime.GC()
				select {
				case <-freed:
					return true
				default:
					return false
				}
			}
			assert.Eventually(t, collected, 20*time.Second, 10*time.Millisecond)
		})
	}
}

// abandonReceive posts a receive into memory without other references, and abandons it.
func abandonReceive(t *testing.T, e *testQP, calls *Calls, released chan<- string, freed chan struct{}) {
	t.Helper()
	memory := new([4096]byte)
	goruntime.AddCleanup(memory, func(freed chan struct{}) { close(freed) }, freed)
	mr, err := e.pd.RegMR(memory[:], ibv.ACCESS_LOCAL_WRITE)
	require.NoError(t, err)
	call, err := calls.Begin()
	require.NoError(t, err)
	e.recv.Recv(call.ID()).Add(mr.SGE(0, 64))
	_, err = e.qp.PostRecv(e.recv)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = call.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
	call.Abandon(func() {
		got := string(memory[:5])
		assert.NoError(t, mr.Close())
		released <- got
	})
}

// TestAbandonedCallsEnd: closing a queue pair ends its abandoned calls, after which Calls can be closed. Abandoning a
// call that has ended releases its memory at once.
func TestAbandonedCallsEnd(t *testing.T) {
	for _, channel := range []bool{true, false} {
		pd := softPD(t)
		e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
		if !channel {
			cq, err := pd.Device().CreateCQ(64, nil, 0)
			e.cq = keep(t, cq, err)
		}
		qp := e.newQP(ibv.QPT_RC, nil, QueueOptions{})
		connectToSelf(t, qp)
		calls, err := NewCalls(e.cq, 8, nil)
		require.NoError(t, err)
		released := make(chan int, 8)
		e.recv.Reset()
		for i := range 3 {
			call, err := calls.Begin()
			require.NoError(t, err)
			e.recv.Recv(call.ID())
			call.Abandon(func() { released <- i })
		}
		_, err = qp.PostRecv(e.recv)
		require.NoError(t, err)
		assert.Empty(t, released)
		require.NoError(t, qp.Close())
		require.NoError(t, calls.Close(), "closing the queue pair completes the calls")
		ended, err := NewCalls(e.cq, 1, nil)
		require.NoError(t, err)
		call, err := ended.Begin()
		require.NoError(t, err)
		call.Cancel()
		call.Abandon(func() { released <- 3 })
		Call{}.Abandon(func() { released <- 4 })
		require.NoError(t, ended.Close())
		all := map[int]bool{}
		for range 5 {
			all[<-released] = true
		}
		assert.Len(t, all, 5)
	}
}
