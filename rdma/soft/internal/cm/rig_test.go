// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	rdma "github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// rig is a fabric with a connection manager, for tests that drive it through the generated functions alone.
type rig struct {
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

func newRig(t testing.TB, o device.Options) *rig {
	f, m, err := newFabric(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return &rig{t, f, m}
}

// outside is n zeroed T's outside Go's heap.
func outside[T any](r *rig, n int) []T {
	var v T
	m, err := offheap.Map(max(n*int(unsafe.Sizeof(v)), 1), offheap.Options{})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { m.Close() })
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m.Bytes()))), n)
}

var testCaps = ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}

// eventLimit is how long an event is waited for that has to come: longer than any machine with much to do takes.
var eventLimit = time.Minute

// within makes a call that waits for an event, and fails the test by the event's name when it does not come.
func (r *rig) within(event any, wait func() error) {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- wait() }()
	select {
	case err := <-done:
		require.NoError(r.t, err, "%v", event)
	case <-time.After(eventLimit):
		require.FailNow(r.t, "an event did not come", "%v, within %v", event, eventLimit)
	}
}

// event takes the next event of a channel of the connection manager's.
func (r *rig) event(ch *rdmacm.EventChannel, want rdmacm.CMEventType) *rdmacm.CMEvent {
	r.t.Helper()
	event := &outside[ibv.Ptr[rdmacm.CMEvent]](r, 1)[0]
	r.within(want, func() error { return rdma.GetCMEvent(ch, event) })
	require.Equal(r.t, want, event.Deref().Event)
	return event.Deref()
}

// pointerTo is where v is, for functions that take C's pointers.
func pointerTo[T any](v *T) uintptr { return uintptr(mem.AddressOf(v)) }

// hostile gives numbers out of a fuzzer's bytes; some of them are what a test wants most.
type hostile struct {
	data []byte
	well []uint64 // numbers that mean something
}

func (h *hostile) next() uint64 {
	if len(h.data) == 0 {
		return 0
	}
	kind := h.data[0]
	h.data = h.data[1:]
	switch {
	case kind < 128 && len(h.well) > 0:
		return h.well[int(kind)%len(h.well)]
	case kind < 160:
		return uint64(kind) - 128
	case kind < 192:
		return -(uint64(kind) - 160)
	}
	var b [8]byte
	h.data = h.data[copy(b[:], h.data):]
	return binary.LittleEndian.Uint64(b[:])
}

// or is the number that is right, more often than not.
func (h *hostile) or(v uint64) uint64 {
	if len(h.data) > 0 && h.data[0] < 200 {
		h.data = h.data[1:]
		return v
	}
	return h.next()
}
