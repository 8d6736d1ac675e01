// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
)

// TestEventDispatcherFails: when reading events fails, every endpoint is notified, including one that is being created.
// Later connections get their events from another dispatcher.
func TestEventDispatcherFails(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for range 50 {
		d, err := shareDispatcher(f)
		require.NoError(t, err)
		failed := make(chan struct{})
		go func() {
			defer close(failed)
			d.fail(io.ErrUnexpectedEOF)
		}()
		var all []*endpoint
		for err == nil {
			var p *endpoint
			if p, err = d.create(); err == nil {
				all = append(all, p)
			}
			if len(all) == 1000 { // on a busy machine, memory may run out before the goroutine runs
				<-failed
			}
		}
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		<-failed
		for _, p := range all {
			_, err := p.next(soon(t))
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.NoError(t, p.ID.Close())
		}
		other, err := shareDispatcher(f)
		require.NoError(t, err)
		assert.NotSame(t, d, other)
		assert.NoError(t, other.leave())
		assert.NoError(t, d.leave())
	}
}
