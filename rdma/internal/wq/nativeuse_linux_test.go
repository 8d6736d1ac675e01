// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package wq

import (
	goruntime "runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Goroutines post to one queue while others poll: every slot comes back.
func TestManyGoroutines(t *testing.T) {
	d := native(t)
	q := sendQueue(t, d, nativeOptions("system"))
	cq, err := NewCompletionQueue(&d.cq, nativeOptions("system"))
	require.NoError(t, err)
	cq.Track(0x12, q, nil)
	const goroutines, lists = 4, 2000
	var posters, pollers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		pollers.Go(func() {
			wcs := make([]ibv.WC, 8)
			for {
				if n, err := cq.Poll(wcs); err != nil {
					t.Error(err)
				} else if n == 0 {
					select {
					case <-done:
						return
					default:
						goruntime.Gosched()
					}
				}
			}
		})
	}
	for g := range goroutines {
		posters.Go(func() {
			b := sendBatch(t, 16, 1, 0)
			for i := range lists {
				writes(b, uint64(g)<<32|uint64(i)<<4, 1+i%16)
				for {
					_, err := q.Post(b)
					if err == nil {
						break
					}
					if !assert.ErrorIs(t, err, enomem) {
						return
					}
					goruntime.Gosched()
				}
			}
		})
	}
	posters.Wait()
	close(done)
	pollers.Wait()
	wcs := make([]ibv.WC, 8)
	for n := 1; n > 0; {
		n, err = cq.Poll(wcs)
		require.NoError(t, err)
	}
	assert.Equal(t, 1024, q.Free())
}

func TestExclusiveIsForOneGoroutine(t *testing.T) {
	d := native(t)
	q := sendQueue(t, d, nativeOptions("exclusive"))
	x, err := q.Exclusive()
	require.NoError(t, err)
	b := writes(sendBatch(t, 1, 1, 0), 1, 1)
	_, err = x.Post(b)
	require.NoError(t, err)
	other := func() (caught any) {
		caught = "nothing"
		done := make(chan bool)
		go func() {
			defer close(done)
			defer func() { caught = recover() }()
			x.Post(writes(sendBatch(t, 1, 1, 0), 2, 1))
		}()
		<-done
		return caught
	}
	if runtime.PrivateStacks() {
		assert.Equal(t, runtime.ErrNotOwner, other())
	} else {
		assert.Nil(t, other(), "nothing detects another goroutine")
	}
	x.Release()
	assert.Nil(t, other())
}

// Another goroutine's attempt on a checked exclusive handle costs no slot.
func TestOthersTakeNoSlots(t *testing.T) {
	d := native(t)
	nothing := d.context.Ops.ReqNotifyCQ // a function of C's that does nothing
	extended := &ibv.QPEx{QPBase: d.qp, WRStart: nothing, WRComplete: nothing, WRLocalInv: nothing}
	p := NewWRProgram(extended)
	p.LocalInv(1, 1).Signaled()
	send, err := NewSendQueue(&extended.QPBase, nativeOptions("exclusive"))
	require.NoError(t, err)
	x, err := send.Exclusive()
	require.NoError(t, err)
	defer x.Close()
	recv, err := NewRecvQueue(&d.qp, nativeOptions("exclusive"))
	require.NoError(t, err)
	y, err := recv.Exclusive()
	require.NoError(t, err)
	defer y.Close()
	b, r := writes(sendBatch(t, 2, 1, 0), 1, 2), recvBatch(t, 1, 1)
	r.Recv(1)
	_, err = x.Post(b)
	require.NoError(t, err)
	_, err = y.Post(r)
	require.NoError(t, err)
	require.NoError(t, x.PostProgram(p))
	sends, recvs := x.q.Free(), y.q.Free()
	for _, attempt := range []func(){
		func() { x.Post(b) }, func() { x.PostRange(b, 0, 1) }, func() { y.Post(r) }, func() { y.PostRange(r, 0, 1) },
		func() { x.PostProgram(p) }, func() { x.BindMW(&ibv.MW{}, &ibv.MWBind{}) },
	} {
		refused := make(chan any)
		go func() {
			defer func() { refused <- recover() }()
			attempt()
		}()
		if runtime.PrivateStacks() {
			assert.Equal(t, runtime.ErrNotOwner, <-refused)
		} else {
			assert.Nil(t, <-refused, "nothing detects another goroutine")
		}
	}
	if !runtime.PrivateStacks() {
		return
	}
	assert.Equal(t, sends, x.q.Free())
	assert.Equal(t, recvs, y.q.Free())
}

// What is closed says so, however it is called.
func TestClosed(t *testing.T) {
	for _, way := range []string{"blocking", "system", "exclusive"} {
		d := native(t)
		cq, err := NewCompletionQueue(&d.cq, nativeOptions(way))
		require.NoError(t, err)
		x, err := cq.Exclusive()
		require.NoError(t, err)
		_, err = x.Poll(make([]ibv.WC, 1))
		require.NoError(t, err)
		require.NoError(t, x.Close())
		for range 2 {
			_, err = x.Poll(make([]ibv.WC, 1))
			assert.ErrorIs(t, err, errClosed, way)
			assert.ErrorIs(t, x.ReqNotify(false), errClosed, way)
			cq.Track(0x12, nil, nil)
		}
		send, err := sendQueue(t, d, nativeOptions(way)).Exclusive()
		require.NoError(t, err)
		b := writes(sendBatch(t, 1, 1, 0), 1, 1)
		_, err = send.Post(b)
		require.NoError(t, err)
		require.NoError(t, send.Close())
		_, err = send.Post(b)
		assert.ErrorIs(t, err, errClosed, way)

		for _, unchecked := range []bool{false, true} {
			o := nativeOptions(way)
			o.Unchecked = unchecked
			recvQueue, err := NewRecvQueue(&d.qp, o)
			require.NoError(t, err)
			recv, err := recvQueue.Exclusive()
			require.NoError(t, err)
			r := recvBatch(t, 1, 1)
			r.Recv(1)
			_, err = recv.Post(r)
			require.NoError(t, err)
			require.NoError(t, recv.Close())
			_, err = recv.Post(r)
			assert.ErrorIs(t, err, errClosed, way)
			_, err = recvQueue.Post(r)
			require.NoError(t, err)

			q := sendQueue(t, d, o)
			_, err = q.Post(b)
			require.NoError(t, err)
			again := writes(sendBatch(t, 1, 1, 0), 1, 1)
			_, err = q.Post(again)
			require.NoError(t, err)
			require.NoError(t, again.Close())
			again.Send(1) // as long as what was posted
			_, err = q.Post(again)
			assert.ErrorIs(t, err, errBatchClosed, way)
			require.NoError(t, r.Close())
			_, err = recvQueue.Post(r)
			assert.ErrorIs(t, err, errBatchClosed, way)
		}
	}
}
