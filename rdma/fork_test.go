// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

func TestForkStatus(t *testing.T) {
	before, err := ForkStatus()
	if err != nil { // no library on this machine
		require.ErrorIs(t, err, ErrNotSupported)
		return
	}
	sendBatch(t, 1, 1, 1)
	after, err := ForkStatus()
	require.NoError(t, err)
	assert.Equal(t, before, after)
	assert.NotEqual(t, ibv.FORK_ENABLED, after, "ibv_fork_init was not called")
}
