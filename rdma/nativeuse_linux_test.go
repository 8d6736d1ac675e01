// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma

import (
	goruntime "runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Goroutines post to one queue while others poll, and all slots are free afterwards.
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
					if !assert.ErrorIs(t, err, syscall.ENOMEM) {
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

// A closed batch is rejected, with either way to call C.
func TestClosedBatch(t *testing.T) {
	for _, way := range []string{"blocking", "system"} {
		d := native(t)
		b := writes(sendBatch(t, 1, 1, 0), 1, 1)
		for _, unchecked := range []bool{false, true} {
			o := nativeOptions(way)
			o.Unchecked = unchecked
			recvQueue, err := NewRecvQueue(&d.qp, o)
			require.NoError(t, err)
			r := recvBatch(t, 1, 1)
			r.Recv(1)
			_, err = recvQueue.Post(r)
			require.NoError(t, err)

			q := sendQueue(t, d, o)
			_, err = q.Post(b)
			require.NoError(t, err)
			again := writes(sendBatch(t, 1, 1, 0), 1, 1)
			_, err = q.Post(again)
			require.NoError(t, err)
			require.NoError(t, again.Close())
			again.Send(1) // same length as the posted batch
			_, err = q.Post(again)
			assert.ErrorIs(t, err, errBatchClosed, way)
			require.NoError(t, r.Close())
			_, err = recvQueue.Post(r)
			assert.ErrorIs(t, err, errBatchClosed, way)
		}
	}
}
