// SPDX-License-Identifier: BSD-2-Clause

package places

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestShare: one host gets three quarters of the places, and others the rest. A waiting client gets a freed place.
func TestShare(t *testing.T) {
	p := New(16, 8)
	hostile, honest := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	ctx, cancel := context.WithCancel(t.Context())
	served, end, dropped := make(chan netip.Addr), make(chan struct{}), make(chan netip.Addr)
	come := func(n int, at netip.Addr, until chan struct{}) {
		for range n {
			p.Go(ctx, at, func() { served <- at; <-until }, func() { dropped <- at })
		}
	}
	come(20, hostile, end)
	for range 12 {
		assert.Equal(t, hostile, <-served)
	}
	for range 2 { // six wait
		assert.Equal(t, hostile, <-dropped)
	}
	assert.False(t, p.TryTake(hostile))
	assert.True(t, p.TryTake(honest))
	p.Give(honest)
	come(4, honest, nil)
	for range 4 {
		assert.Equal(t, honest, <-served)
	}
	assert.Equal(t, 16, p.Taken())
	end <- struct{}{}
	assert.Equal(t, hostile, <-served)
	cancel()
	for range 5 {
		assert.Equal(t, hostile, <-dropped)
	}
}

// TestRelease: clients that have left occupy no place.
func TestRelease(t *testing.T) {
	p := New(2, 2)
	for range 100 {
		p.Go(t.Context(), netip.Addr{}, func() {}, func() {})
	}
	p.Wait()
	assert.Zero(t, p.Taken())
	p.mu.Lock()
	defer p.mu.Unlock()
	assert.Zero(t, p.users)
	assert.Empty(t, p.hosts)
}
