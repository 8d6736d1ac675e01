// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || ppc64le || riscv64

package rdma

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestPostsAfterAPanic: a post panics if a request's scatter/gather list is at an invalid address. The queue still
// accepts later posts, whether or not the panicking goroutine owns its lock.
func TestPostsAfterAPanic(t *testing.T) {
	both(t, func(t *testing.T, d *device) {
		for _, invalidAddr := range []ibv.Ptr[ibv.SGE]{0, 8} {
			for _, before := range []int{1, 200} { // the goroutine owns the queue's lock after many posts
				for _, n := range []int{1, 2, 40} {
					o := options(512, 1, 0)
					o.Way = "system"
					q, b := sendQueue(t, d, o), sendBatch(t, n, 1, 0)
					for range before {
						_, err := q.Post(writes(b, 1, n)) // the first post terminates the batch's chain
						require.NoError(t, err)
						q.Reset()
					}
					entry := b.WR(n - 1).SGList
					b.WR(n - 1).SGList = invalidAddr
					assert.Panics(t, func() { q.Post(b) })
					b.WR(n - 1).SGList = entry
					assert.Equal(t, 512, q.Free())

					posted := make(chan error)
					go func() {
						_, err := q.Post(b)
						posted <- err
					}()
					select {
					case err := <-posted:
						assert.NoError(t, err)
					case <-time.After(time.Minute):
						t.Fatalf("a post after a panic hangs: %d requests, %d posts before", n, before)
					}
					_, err := q.Post(b)
					assert.NoError(t, err)
					assert.Equal(t, 512-2*n, q.Free())
					q.Retire([]ibv.WC{success(uint64(n)), success(uint64(n))})
					assert.Equal(t, 512, q.Free())
				}
			}
		}
	})
}
