// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// keep closes an object when the test ends.
func keep[T interface{ Close() error }](t testing.TB, o T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return o
}

// tooLong is a timeout for steps that hang. It is long enough for a busy machine.
const tooLong = time.Minute

// soon returns a context with the timeout tooLong.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), tooLong)
	t.Cleanup(cancel)
	return ctx
}

func newFabric(t *testing.T, o soft.Options) *soft.Fabric {
	t.Helper()
	f, err := soft.New(o)
	return keep(t, f, err)
}

// resolved returns an ID with a resolved route to a peer, and its channel.
func resolved(t *testing.T, f *soft.Fabric, to netip.AddrPort) (*cm.ID, *cm.EventChannel) {
	t.Helper()
	ch, err := cm.CreateEventChannelOn(f)
	keep(t, ch, err)
	id, err := ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(soon(t), netip.AddrPort{}, to, time.Second))
	_, err = ch.Event(soon(t))
	require.NoError(t, err)
	require.NoError(t, id.ResolveRoute(soon(t), time.Second))
	_, err = ch.Event(soon(t))
	require.NoError(t, err)
	return id, ch
}

func dialer(c Config) *Dialer { return &Dialer{Config: c} }

// listening returns a ListenConfig, optionally with a Backlog.
func listening(c Config, backlog ...int) *ListenConfig {
	return &ListenConfig{Config: c, Backlog: append(backlog, 0)[0]}
}
