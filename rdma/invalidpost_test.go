// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// TestUnusableQueues: a placeholder queue rejects every post and poll with its error, even invalid ones. So does the
// queue of a zero object.
func TestUnusableQueues(t *testing.T) {
	reason := errors.New("no such queue")
	b, err := NewSendBatch(2, 1, 0)
	require.NoError(t, err)
	defer b.Close()
	none := refusingSendQueue(&ibv.QP{QPNum: 7, QPType: ibv.QPT_XRC_RECV}, reason)
	for range 2 {
		b.Send(1)
		posted, err := none.Post(b)
		assert.Zero(t, posted)
		assert.Equal(t, reason, err)
	}
	_, err = (*SendQueue)(nil).Post(b)
	assert.ErrorContains(t, err, "never created")

	wcs := make([]ibv.WC, 1)
	_, err = noCompletionQueue(reason).Poll(wcs)
	assert.Equal(t, reason, err)
	_, err = (*CompletionQueue)(nil).Poll(wcs)
	assert.ErrorContains(t, err, "never created")
}

// TestInvalidPosts: checked and unchecked queues reject nil batches, zero batches and invalid requests.
func TestInvalidPosts(t *testing.T) {
	for name, o := range map[string]QueueOptions{"checked": options(8, 1, 8), "unchecked": {Unchecked: true}} {
		t.Run(name, func(t *testing.T) {
			d := newDevice(t, ibv.QPT_RC)
			q := sendQueue(t, d, o)
			_, err := q.PostRange(nil, 0, 1)
			assert.ErrorContains(t, err, "the batch is nil")
			_, err = (*SendQueue)(nil).PostRange(nil, 0, 1)
			assert.ErrorContains(t, err, "never created")
			_, err = (*RecvQueue)(nil).PostRange(nil, 0, 1)
			assert.ErrorContains(t, err, "never created")
			_, err = q.Post(new(SendBatch))
			assert.ErrorContains(t, err, "zero value")
		})
	}
	q, b := sendQueue(t, newDevice(t, ibv.QPT_RC), options(8, 1, 8)), sendBatch(t, 2, 1, 8)
	writes(b, 1, 2)
	b.WR(0).Opcode, b.WR(0).NumSGE, b.WR(0).SendFlags = ^ibv.WROpcode(0), -1, 0
	posted, err := q.Post(b)
	assert.Zero(t, posted)
	var e *PostError
	require.ErrorAs(t, err, &e)
	assert.Zero(t, e.Index)
	writes(b, 1, 2)
	b.WR(1).Opcode = 99
	posted, err = q.Post(b)
	require.ErrorAs(t, err, &e)
	assert.Equal(t, 1, e.Index)
	assert.Zero(t, posted, "no request is posted if a check rejects one")
	assert.Equal(t, 8, q.Free())
}
