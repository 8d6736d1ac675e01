// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	tests "github.com/goverbs/goverbs/rdma/soft/internal/testbed"
)

// testbed is a fabric with a connection manager, for tests that use only the generated functions.
type testbed struct {
	t       testing.TB
	fabric  *device.Fabric
	manager *Manager
}

func newFabric(o device.Options) (*device.Fabric, *Manager, error) {
	f, err := device.New(o)
	if err != nil {
		return nil, nil, err
	}
	m := New(f, 0)
	f.Manage(m)
	return f, m, nil
}

func newTestbed(t testing.TB, o device.Options) *testbed {
	f, m, err := newFabric(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return &testbed{t, f, m}
}

// offHeap returns n zeroed values outside Go's heap.
func offHeap[T any](r *testbed, n int) []T { return tests.Outside[T](r.t, n) }

// within calls wait, and fails the test with the event's name if it does not return in time.
func (r *testbed) within(event any, wait func() error) {
	r.t.Helper()
	tests.Within(r.t, event, wait)
}

type fuzzInput = tests.Hostile

var testCaps = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}

// event takes the next event of an event channel.
func (r *testbed) event(ch *rdmacm.EventChannel, want rdmacm.CMEventType) *rdmacm.CMEvent {
	r.t.Helper()
	event := &offHeap[ibv.Ptr[rdmacm.CMEvent]](r, 1)[0]
	r.within(want, func() error { return rdma.GetCMEvent(ch, event) })
	require.Equal(r.t, want, event.Deref().Event)
	return event.Deref()
}

// pointerTo returns the address of v for functions that take C pointers.
func pointerTo[T any](v *T) uintptr { return uintptr(mem.AddressOf(v)) }
