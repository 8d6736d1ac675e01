// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// TestUnconfirmedRequest checks that Accept does not fail if a peer never confirms its connection, and returns the next
// connection.
func TestUnconfirmedRequest(t *testing.T) {
	r := newPair(t, options{})
	id, err := cm.CreateIDOn(r.fabric, rdmacm.PS_TCP)
	require.NoError(t, err)
	defer id.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := r.ep.Accept(t.Context(), nil, nil)
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	require.NoError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, r.ep.Addr(), time.Second))
	require.NoError(t, id.ResolveRoute(t.Context(), time.Second))
	require.NoError(t, id.Connect(t.Context(), &rdmacm.ConnParam{QPNum: 99}, nil)) // without Establish
	c, err := r.a.peer.Connect(t.Context(), r.ep.Addr().String(), nil, nil)
	require.NoError(t, err)
	assert.NoError(t, <-accepted)
	assert.NoError(t, c.Close())
}

// TestAcceptKeepsConnections checks that later calls of Accept return connections that are established while Accept
// returns another one or times out, and that Close closes the rest.
func TestAcceptKeepsConnections(t *testing.T) {
	r := newPair(t, options{})
	var all sync.WaitGroup
	for range 5 {
		request, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
		require.NoError(t, err)
		c, err := request.Connect(nil)
		require.NoError(t, err)
		all.Go(func() {
			for e := Undefined; e == Undefined || e == Established; {
				if e, err = c.NextEvent(timeout(t)); !assert.NoError(t, err) {
					break
				}
			}
			assert.NoError(t, c.Close())
		})
	}
	for range 2 {
		c, err := r.ep.Accept(timeout(t), nil, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if c, err = r.ep.Accept(canceled, nil, nil); err == nil { // it was already established
			require.NoError(t, c.Close())
			continue
		}
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, ErrNoEvent)
	}
	require.NoError(t, r.ep.Close())
	all.Wait()
	_, err := r.ep.Accept(timeout(t), nil, nil)
	assert.ErrorIs(t, err, rdma.ErrClosed)
}

// TestAcceptFails checks that Accept returns failures of this side, but no error when a peer withdraws its request.
func TestAcceptFails(t *testing.T) {
	r := newPair(t, options{})
	connect := func() *Conn {
		request, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
		require.NoError(t, err)
		c, err := request.Connect(nil)
		require.NoError(t, err)
		return c
	}
	for name, accept := range map[string]func() (*Conn, error){
		"private data": func() (*Conn, error) { return r.ep.Accept(timeout(t), nil, make([]byte, 197)) },
		"queues":       func() (*Conn, error) { return r.ep.Accept(timeout(t), &ConnConfig{SQSize: 1 << 30}, nil) },
	} {
		c := connect()
		_, err := accept()
		assert.ErrorIs(t, err, ErrProvider, name)
		assert.Equal(t, Rejected, r.event(c))
		require.NoError(t, c.Close())
	}
	require.NoError(t, connect().Close())
	c := connect()
	accepted := make(chan error, 1)
	go func() {
		c, err := r.ep.Accept(timeout(t), nil, nil)
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	assert.Equal(t, Established, r.event(c))
	require.NoError(t, <-accepted)
	require.NoError(t, c.Close())
}

// TestWithdrawnRequest checks that Accept returns no error when a peer withdraws a request that waits for its host's
// limit.
func TestWithdrawnRequest(t *testing.T) {
	defer func(d time.Duration) { handshakeTimeout = d }(handshakeTimeout)
	handshakeTimeout = time.Hour
	r := newPair(t, options{})
	accepted := make(chan error, 1)
	go func() {
		c, err := r.ep.Accept(timeout(t), nil, nil)
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	var all []*cm.ID
	for i := range uint32(handshakes) {
		id, err := cm.CreateIDOn(r.fabric, rdmacm.PS_TCP)
		require.NoError(t, err)
		require.NoError(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, r.ep.Addr(), time.Second))
		require.NoError(t, id.ResolveRoute(t.Context(), time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err = id.Connect(ctx, &rdmacm.ConnParam{QPNum: 99 + i}, nil); err != nil { // without Establish
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		}
		all = append(all, id)
	}
	for i := range all { // those that wait first
		require.NoError(t, all[len(all)-1-i].Close())
	}
	c, err := r.a.peer.Connect(timeout(t), r.ep.Addr().String(), nil, nil)
	require.NoError(t, err)
	assert.NoError(t, <-accepted)
	assert.NoError(t, c.Close())
}

// TestCloseEndsAccept checks that goroutines in Accept return when the endpoint is closed.
func TestCloseEndsAccept(t *testing.T) {
	r := newPair(t, options{})
	done := make(chan error)
	for range 3 {
		go func() {
			_, err := r.ep.Accept(t.Context(), nil, nil)
			done <- err
		}()
	}
	require.NoError(t, r.ep.Close())
	for range 3 {
		assert.ErrorIs(t, <-done, rdma.ErrClosed)
	}
}
