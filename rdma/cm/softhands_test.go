// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// workers is the shared state of goroutines that use the same IDs concurrently.
type workers struct {
	f    *soft.Fabric
	ch   *EventChannel
	at   netip.AddrPort
	attr ibv.QPInitAttr
	mu   sync.Mutex
	ids  []*ID // created IDs, followed by those of requests
	ctx  context.Context
}

func (h *workers) track(id *ID) {
	if id != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.ids = append(h.ids, id)
	}
}

func (h *workers) randomID(r *rand.Rand) *ID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ids[r.IntN(len(h.ids))]
}

// do performs a random operation, which may fail.
func (h *workers) do(r *rand.Rand) {
	ctx, cancel := context.WithTimeout(h.ctx, time.Duration(r.IntN(5000))*time.Microsecond)
	defer cancel()
	id := h.randomID(r)
	request := func(e Event) {
		if e.Type == rdmacm.CM_EVENT_CONNECT_REQUEST {
			h.track(e.ID)
		}
	}
	all := []func(){
		func() { id.Bind(netip.MustParseAddrPort("127.0.0.1:0")) },
		func() { id.ResolveAddr(ctx, netip.AddrPort{}, h.at, time.Millisecond) },
		func() { id.ResolveRoute(ctx, time.Millisecond) },
		func() { id.CreateQP(nil, &h.attr, rdma.QueueOptions{}) },
		func() { id.CreateSRQ(nil, ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, rdma.QueueOptions{}) },
		func() {
			if qp := id.QP(); qp != nil {
				qp.Close()
			}
		},
		func() { id.Connect(ctx, nil, []byte("hello")) },
		func() { id.Accept(ctx, nil, nil) },
		func() { id.Reject(nil) },
		func() { id.Disconnect(ctx) },
		func() { e, _ := id.Event(ctx); request(e) },
		func() { e, _ := h.ch.Event(ctx); request(e) },
		func() { child, _, _ := id.GetRequest(ctx); h.track(child) },
		func() { id.Migrate(nil) },
		func() { id.Migrate(h.ch) },
		func() { id.Join(ctx, netip.MustParseAddrPort("239.1.1.1:0")) },
		func() { id.WriteEvent(0, 1) },
		func() { _ = id.name() },
		func() {
			id.ResolveAddrInfo(ctx, "127.0.0.1", "7", Hints{})
			if info, err := id.QueryAddrInfo(); err == nil {
				info.Close()
			}
		},
		func() {
			if r.IntN(4) == 0 {
				id.Close()
			}
		},
	}
	all[r.IntN(len(all))]()
}

// TestSoftIDUsedConcurrently: random concurrent operations on IDs neither hang nor leak.
func TestSoftIDUsedConcurrently(t *testing.T) {
	for seed := range uint64(30) {
		f, err := soft.New(soft.Options{CMResponse: 50 * time.Millisecond})
		require.NoError(t, err)
		h := &workers{f: f, at: netip.MustParseAddrPort("127.0.0.2:7000"), attr: softAttr, ctx: timeout(t)}
		h.ch, err = CreateEventChannelOn(f)
		require.NoError(t, err)
		ps := rdmacm.PS_TCP
		if seed%4 == 3 {
			ps, h.attr.QPType = rdmacm.PS_UDP, ibv.QPT_UD
		}
		for i := range 4 {
			id, err := h.ch.CreateID(ps)
			require.NoError(t, err)
			if i%2 == 0 {
				require.NoError(t, id.Migrate(nil))
			}
			h.track(id)
		}
		require.NoError(t, h.ids[0].Bind(h.at))
		require.NoError(t, h.ids[0].Listen(4))
		var all sync.WaitGroup
		for g := range uint64(6) {
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, g))
				for range 40 {
					h.do(r)
				}
			})
		}
		all.Wait()
		for _, id := range slices.Backward(h.ids) { // requests are on the channel of a synchronous listener
			assert.NoError(t, id.Close(), "seed %d", seed)
		}
		require.NoError(t, h.ch.Close(), "seed %d", seed)
		require.Empty(t, f.Resources(), "seed %d", seed)
		require.NoError(t, f.Close())
	}
}

// TestSoftMigrateToOwnChannel: migrating an ID to its own channel changes nothing.
func TestSoftMigrateToOwnChannel(t *testing.T) {
	f := newFabric(t, soft.Options{})
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	id, err := ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.Migrate(ch))
	assert.ErrorIs(t, ch.Close(), rdma.ErrInUse)
	require.NoError(t, id.ResolveAddr(timeout(t), netip.AddrPort{}, netip.MustParseAddrPort("127.0.0.1:1"), time.Second))
	e, err := ch.Event(timeout(t))
	require.NoError(t, err)
	assert.Equal(t, rdmacm.CM_EVENT_ADDR_RESOLVED, e.Type)
	assert.Same(t, id, e.ID)
}

// TestSoftMigrateWhileWaiting: when an ID becomes asynchronous, a goroutine that waits for its events fails and
// consumes no event.
func TestSoftMigrateWhileWaiting(t *testing.T) {
	f := newFabric(t, soft.Options{})
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	id := newSoftID(t, f, rdmacm.PS_TCP)
	require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	require.NoError(t, id.Listen(1))
	waited := make(chan error, 1)
	go func() {
		_, _, err := id.GetRequest(timeout(t))
		waited <- err
	}()
	require.NoError(t, id.Migrate(ch))
	err = <-waited
	assert.Error(t, err)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, id.Close())
}

// TestSoftQPKept: an ID keeps its queue pair until its destruction has succeeded.
func TestSoftQPKept(t *testing.T) {
	id := newSoftID(t, newFabric(t, soft.Options{}), rdmacm.PS_UDP)
	require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	attr := softAttr
	attr.QPType = ibv.QPT_UD
	qp, err := id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(t, err)
	id.setQP(0)
	_, err = id.CreateQP(nil, &attr, rdma.QueueOptions{})
	assert.ErrorContains(t, err, "already has a queue pair")
	assert.Same(t, qp, id.QP())
	id.setQP(qp.Ptr())
	require.NoError(t, qp.Close())
	_, err = id.CreateQP(nil, &attr, rdma.QueueOptions{})
	require.NoError(t, err)
	require.NoError(t, id.Close())
}
