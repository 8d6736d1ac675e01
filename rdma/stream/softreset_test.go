// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/runtime"
)

type unobserved struct{}

func (unobserved) Ended(uint64, runtime.Errno) {}
func (unobserved) Failed(runtime.Errno)        {}

// TestCloseResets: both sides move their queue pair to RESET once when they close, instead of waiting until all
// receives are flushed.
func TestCloseResets(t *testing.T) {
	clients, servers := softPairs(t, Config{}, 1)
	_, err := clients[0].Write([]byte("word"))
	require.NoError(t, err)
	b := make([]byte, 4)
	_, err = servers[0].Read(b)
	require.NoError(t, err)
	assert.Equal(t, "word", string(b))
	var eventArrived atomic.Int32
	runtime.Observe(func(function string, _ []uint64) runtime.Observation {
		if function == "ibv_modify_qp" {
			eventArrived.Add(1)
		}
		return unobserved{}
	})
	defer runtime.Observe(nil)
	var both sync.WaitGroup
	both.Go(func() { assert.NoError(t, clients[0].Close()) })
	n, err := servers[0].Read(b)
	assert.Zero(t, n)
	assert.Error(t, err)
	time.Sleep(10 * time.Millisecond) // until the peer's disconnect arrives
	assert.NoError(t, servers[0].Close())
	both.Wait()
	assert.EqualValues(t, 2, eventArrived.Load())
}
