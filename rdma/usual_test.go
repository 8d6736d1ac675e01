// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestQueuesThatTakeNothing: a queue that stands in place of none says why it takes or gives nothing, whatever the
// batch is, and that of an object that was never created says so.
func TestQueuesThatTakeNothing(t *testing.T) {
	why := errors.New("none of these")
	b, err := NewSendBatch(2, 1, 0)
	require.NoError(t, err)
	defer b.Close()
	none := noSendQueue(&ibv.QP{QPNum: 7, QPType: ibv.QPT_XRC_RECV}, why)
	for range 2 {
		b.Send(1)
		posted, err := none.Post(b)
		assert.Zero(t, posted)
		assert.Equal(t, why, err)
	}
	_, err = (*SendQueue)(nil).Post(b)
	assert.ErrorContains(t, err, "never created")

	wcs := make([]ibv.WC, 1)
	_, err = noCompletionQueue(why).Poll(wcs)
	assert.Equal(t, why, err)
	_, err = (*CompletionQueue)(nil).Poll(wcs)
	assert.ErrorContains(t, err, "never created")
}
