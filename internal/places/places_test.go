// SPDX-License-Identifier: BSD-2-Clause

package places

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShare: one host gets three quarters of the places, others the rest; who waits gets a place that is given back.
func TestShare(t *testing.T) {
	p := New(16)
	hostile, honest := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for range 12 {
		require.NoError(t, p.Take(t.Context(), hostile))
	}
	const waiting = mostWaiting / 4 * 3
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range waiting {
		go func() { ended <- p.Take(ctx, hostile) }()
	}
	for users := 0; users < 12+waiting; {
		p.mu.Lock()
		users = p.users
		p.mu.Unlock()
	}
	require.ErrorIs(t, p.Take(t.Context(), hostile), ErrFull)
	for range 4 {
		require.NoError(t, p.Take(t.Context(), honest))
	}
	p.Give(hostile)
	require.NoError(t, <-ended)
	assert.Equal(t, 16, p.Taken())
	cancel()
	for range waiting - 1 {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	for range 12 {
		p.Give(hostile)
	}
	for range 4 {
		p.Give(honest)
	}
	assert.Zero(t, p.Taken())
	assert.Zero(t, p.users)
	assert.Empty(t, p.hosts)
}
