// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// The number of free slots stays within its bounds while other goroutines post, poll and reset.
func TestFreeDuringUse(t *testing.T) {
	const capacity = 4
	for _, anyOrder := range []bool{false, true} {
		s := slots{anyOrder: anyOrder}
		require.NoError(t, s.init(capacity, true))
		done := make(chan struct{})
		var user sync.WaitGroup
		user.Go(func() {
			defer close(done)
			list := recvBatch(t, capacity, 0)
			for range capacity {
				list.Recv(0)
			}
			for i := range 50_000 {
				s.reserveRecvs(&list.batch, 0, 1+i%capacity)
				if i%3 == 0 {
					s.reset()
				}
				for s.retire(0, true) {
				}
			}
		})
		for asking := true; asking; {
			select {
			case <-done:
				asking = false
			default:
			}
			free, outstanding := s.free(), s.outstanding()
			require.True(t, free >= 0 && free <= capacity, free)
			require.True(t, outstanding >= 0 && outstanding <= capacity, outstanding)
		}
		user.Wait()
		assert.Equal(t, capacity, s.free())
	}
}

// Completions of requests that were never posted, concurrent with posts that the device rejects, do not change the
// number of free slots.
func TestStrayCompletionsDuringFailedPosts(t *testing.T) {
	const capacity = 4
	for name, open := range map[string]func(d *device) (post func() error, retire func(*ibv.WC), free func() int){
		"send": func(d *device) (func() error, func(*ibv.WC), func() int) {
			q, b := sendQueue(t, d, options(capacity, 1, 0)), sendBatch(t, capacity, 1, 0)
			next := uint64(0)
			return func() error {
				next++
				_, err := q.Post(writes(b, next,
					1+int(next%3)))
				return err
			}, func(wc *ibv.WC) { q.retireWC(wc) }, q.Free
		},
		"receive": func(d *device) (func() error, func(*ibv.WC), func() int) {
			q, err := NewRecvQueue(&d.qp, options(capacity, 1, 0))
			require.NoError(t, err)
			return receiving(t, q, capacity), q.retireWC, q.Free
		},
		"shared receive": func(d *device) (func() error, func(*ibv.WC), func() int) {
			q, err := NewSharedRecvQueue(&d.srq, options(capacity, 1, 0))
			require.NoError(t, err)
			return receiving(t, q, capacity), q.retireWC, q.Free
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			post, retire, free := open(d)
			require.NoError(t, post())
			left := free()
			d.fail = 0
			var strays sync.WaitGroup
			strays.Go(func() {
				for range 10_000 {
					retire(&ibv.WC{QPNum: d.qp.QPNum, WRID: 1 << 40, Status: ibv.WC_WR_FLUSH_ERR})
					if name != "shared receive" { // it releases a slot for every receive
						retire(&ibv.WC{QPNum: d.qp.QPNum, WRID: 1 << 40, Opcode: ibv.WC_RECV})
						retire(&ibv.WC{QPNum: d.qp.QPNum, WRID: 1 << 40, Opcode: ibv.WC_SEND})
					}
				}
			})
			for range 10_000 {
				require.Error(t, post())
				require.LessOrEqual(t, free(), capacity)
			}
			strays.Wait()
			if name != "shared receive" {
				assert.Equal(t, left, free())
			}
		})
	}
}

// receiving returns a function that posts one, two or three receives.
func receiving(t *testing.T, q *RecvQueue, most int) func() error {
	b, next := recvBatch(t, most, 1), uint64(0)
	return func() error {
		b.Reset()
		for next++; b.Len() < 1+int(next%3); {
			b.Recv(next)
		}
		_, err := q.Post(b)
		return err
	}
}
