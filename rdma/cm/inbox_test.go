// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestPostmanFails: when events cannot be had any more, every ID whose events are handed out is told, also one that is
// being created; later connections get their events from another channel.
func TestPostmanFails(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for range 50 {
		p, err := sharePostman(f)
		require.NoError(t, err)
		failed := make(chan struct{})
		go func() {
			defer close(failed)
			p.fail(io.ErrUnexpectedEOF)
		}()
		var ids []*ID
		for err == nil {
			var id *ID
			if id, err = p.createID(rdmacm.PS_TCP); err == nil {
				ids = append(ids, id)
			}
			if len(ids) == 1000 { // memory for more may be lacking before a busy machine runs the goroutine
				<-failed
			}
		}
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		<-failed
		for _, id := range ids {
			_, err := id.inbox.event(soon(t))
			assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			require.NoError(t, id.Close())
		}
		other, err := sharePostman(f)
		require.NoError(t, err)
		assert.NotSame(t, p, other)
		assert.NoError(t, other.leave())
		assert.NoError(t, p.leave())
	}
}
