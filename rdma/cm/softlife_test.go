// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// requesting returns an ID without a queue pair that has sent a connection request to a listener.
func requesting(t *testing.T, f *soft.Fabric, ch *EventChannel, to netip.AddrPort) *ID {
	t.Helper()
	id, err := ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, to, time.Second))
	_, err = ch.Event(timeout(t))
	require.NoError(t, err)
	require.NoError(t, id.ResolveRoute(timeout(t), time.Second))
	_, err = ch.Event(timeout(t))
	require.NoError(t, err)
	require.NoError(t, id.Connect(timeout(t), &rdmacm.ConnParam{QPNum: 99}, nil))
	return id
}

// TestSoftListenerOutlivesRequests: a request from ID.Event uses its listener's channel. Neither the listener nor the
// channel can be closed before it.
func TestSoftListenerOutlivesRequests(t *testing.T) {
	f := newFabric(t, soft.Options{})
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	l, err := CreateIDOn(f, rdmacm.PS_TCP)
	require.NoError(t, err)
	require.NoError(t, l.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	require.NoError(t, l.Listen(0))
	at := l.LocalAddr()
	requesting(t, f, ch, at)
	e, err := l.Event(timeout(t))
	require.NoError(t, err)
	require.Equal(t, rdmacm.CM_EVENT_CONNECT_REQUEST, e.Type)
	require.ErrorIs(t, l.Close(), rdma.ErrInUse)
	require.ErrorIs(t, l.Migrate(ch), rdma.ErrInUse)
	assert.Equal(t, at, l.LocalAddr(), "the listener is unchanged")
	assert.True(t, l.Synchronous())
	require.NoError(t, e.ID.Close())
	require.NoError(t, l.Close())
}

// TestSoftUndeliveredRequests: undelivered requests are closed with their listener, wherever they are queued.
func TestSoftUndeliveredRequests(t *testing.T) {
	for _, migrate := range []bool{false, true} {
		f := newFabric(t, soft.Options{})
		ch, err := CreateEventChannelOn(f)
		keep(t, ch, err)
		l, err := CreateIDOn(f, rdmacm.PS_TCP)
		require.NoError(t, err)
		require.NoError(t, l.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
		require.NoError(t, l.Listen(0))
		requesting(t, f, ch, l.LocalAddr())
		require.NoError(t, l.ResolveAddrInfo(timeout(t), "127.0.0.1", "7471", Hints{}), "the request is queued first")
		if migrate {
			passiveChannel, err := CreateEventChannelOn(f)
			keep(t, passiveChannel, err)
			// The request's ID stays on its channel, so the channel cannot be closed.
			require.ErrorIs(t, l.Migrate(passiveChannel), rdma.ErrInUse)
		}
		require.NoError(t, l.Close())
		e, err := ch.Event(timeout(t))
		require.NoError(t, err)
		assert.Equal(t, rdmacm.CM_EVENT_REJECTED, e.Type)
	}
}

// TestSoftMigrateKeepsEvents: events that a wait has queued move to the new channel.
func TestSoftMigrateKeepsEvents(t *testing.T) {
	f := newFabric(t, soft.Options{})
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	id := newSoftID(t, f, rdmacm.PS_TCP)
	require.NoError(t, id.WriteEvent(0, 1))
	require.NoError(t, id.ResolveAddrInfo(timeout(t), "127.0.0.1", "7471", Hints{}), "the other event is queued first")
	arrives := make(chan Event)
	go func() {
		e, err := ch.Event(timeout(t))
		assert.NoError(t, err)
		arrives <- e
	}()
	time.Sleep(10 * time.Millisecond) // until it waits
	require.NoError(t, id.Migrate(ch))
	e := <-arrives
	assert.Equal(t, rdmacm.CM_EVENT_USER, e.Type)
	assert.Same(t, id, e.ID)

	require.NoError(t, id.Migrate(nil))
	require.NoError(t, id.WriteEvent(0, 2))
	res, err := id.QueryAddrInfo()
	require.NoError(t, err)
	res.Close()
	require.NoError(t, id.ResolveAddrInfo(timeout(t), "127.0.0.1", "7471", Hints{}))
	require.NoError(t, id.Migrate(ch))
	require.NoError(t, id.Migrate(nil))
	e, err = id.Event(timeout(t))
	require.NoError(t, err)
	assert.EqualValues(t, 2, e.Arg, "moved away and back")
	require.NoError(t, id.WriteEvent(0, 3))
	res, err = id.QueryAddrInfo()
	require.NoError(t, err)
	res.Close()
	require.NoError(t, id.ResolveAddrInfo(timeout(t), "127.0.0.1", "7471", Hints{}))
	require.NoError(t, id.Migrate(ch))
	require.NoError(t, id.Close())
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = ch.Event(ctx)
	assert.ErrorIs(t, err, context.DeadlineExceeded, "events of a closed ID are dropped")
}

// TestSoftEventChannelCloseDuringCreation: either the channel is closed or an ID is created on it, never both.
func TestSoftEventChannelCloseDuringCreation(t *testing.T) {
	f := newFabric(t, soft.Options{})
	for range 3000 {
		ch, err := CreateEventChannelOn(f)
		require.NoError(t, err)
		var id *ID
		var of, closing error
		var wg sync.WaitGroup
		wg.Go(func() { id, of = ch.CreateID(rdmacm.PS_TCP) })
		wg.Go(func() {
			runtime.Gosched()
			closing = ch.Close()
		})
		wg.Wait()
		require.False(t, of == nil && closing == nil, "the channel was closed while it had an ID")
		if of == nil {
			require.ErrorIs(t, closing, rdma.ErrInUse)
			require.NoError(t, id.Close())
			require.NoError(t, ch.Close())
		}
	}
}

// TestSoftCompletionWaitsEnd: a goroutine that waits for its turn to wait returns when its context ends.
func TestSoftCompletionWaitsEnd(t *testing.T) {
	s := newTestbedOn(t, rdmacm.PS_TCP, soft.Options{})
	s.listen(1)
	s.connect()
	first, stop := context.WithCancel(context.Background())
	var one sync.WaitGroup
	one.Go(func() {
		_, err := s.client.GetRecvComp(first)
		assert.ErrorIs(t, err, context.Canceled)
	})
	defer one.Wait()
	defer stop()
	time.Sleep(10 * time.Millisecond) // until it waits
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := s.client.GetRecvComp(ctx)
		done <- err
	}()
	select {
	case err := <-done:
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(5 * time.Second):
		t.Error("the wait continues after its context has ended")
		stop()
		<-done
	}
}

// TestSoftAddrInfoClosedInUse: a closed result stays allocated while C uses it in CreateEP, even after CreateEP has
// returned.
func TestSoftAddrInfoClosedInUse(t *testing.T) {
	f := newFabric(t, soft.Options{})
	f.SetLink("soft1", false)
	info, err := GetAddrInfoOn(context.Background(), f, "soft1", "7471", Hints{})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = CreateEP(ctx, info, nil, nil, rdma.QueueOptions{}) // its link is down
	require.ErrorIs(t, err, context.DeadlineExceeded)
	read := info.list
	info.Close()
	read.mu.Lock()
	assert.Equal(t, 1, read.users, "not freed while C reads it")
	read.mu.Unlock()
	assert.False(t, info.Destination().IsValid())
	assert.False(t, info.Source().IsValid())
	assert.Nil(t, info.Next())
	_, err = CreateEP(context.Background(), info, nil, nil, rdma.QueueOptions{})
	assert.ErrorIs(t, err, rdma.ErrClosed)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.Eventually(t, func() bool {
		read.mu.Lock()
		defer read.mu.Unlock()
		return read.users == 0
	}, stepTimeout, 10*time.Millisecond)
}

// TestSoftForeignEvents: if one ID's wait takes an event of another ID that has moved to a new channel, a goroutine
// that waits on that channel receives it.
func TestSoftForeignEvents(t *testing.T) {
	id := newSoftID(t, newFabric(t, soft.Options{}), rdmacm.PS_TCP)
	arrives := make(chan Event)
	go func() {
		e, err := id.Event(timeout(t))
		assert.NoError(t, err)
		arrives <- e
	}()
	time.Sleep(10 * time.Millisecond) // until it waits
	id.keep(Event{Type: rdmacm.CM_EVENT_DISCONNECTED, ID: id}, true)
	assert.Equal(t, rdmacm.CM_EVENT_DISCONNECTED, (<-arrives).Type)
}
