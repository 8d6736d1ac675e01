// SPDX-License-Identifier: BSD-2-Clause

// Package testbed has helpers for tests of the device and of its connection manager.
package testbed

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/runtime/offheap"
)

// EventLimit is the timeout for an expected event, longer than even a busy machine needs.
const EventLimit = time.Minute

// Outside returns n zeroed T's outside Go's heap.
func Outside[T any](t testing.TB, n int) []T {
	t.Helper()
	var v T
	m, err := offheap.Map(max(n*int(unsafe.Sizeof(v)), 1), offheap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(m.Bytes()))), n)
}

// Within calls wait, and fails the test with the event's name if it does not return in time.
func Within(t testing.TB, event any, wait func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%v: %v", event, err)
		}
	case <-time.After(EventLimit):
		t.Fatalf("no %v event within %v", event, EventLimit)
	}
}

// Hostile derives numbers from a fuzzer's bytes, some of which are drawn from Well.
type Hostile struct {
	Data []byte
	Well []uint64 // meaningful numbers
}

// Next returns any number.
func (h *Hostile) Next() uint64 {
	if len(h.Data) == 0 {
		return 0
	}
	kind := h.Data[0]
	h.Data = h.Data[1:]
	switch {
	case kind < 128 && len(h.Well) > 0:
		return h.Well[int(kind)%len(h.Well)]
	case kind < 160:
		return uint64(kind) - 128
	case kind < 192:
		return -(uint64(kind) - 160)
	}
	var b [8]byte
	h.Data = h.Data[copy(b[:], h.Data):]
	return binary.LittleEndian.Uint64(b[:])
}

// Or returns v more often than not, otherwise any number.
func (h *Hostile) Or(v uint64) uint64 {
	if len(h.Data) > 0 && h.Data[0] < 200 {
		h.Data = h.Data[1:]
		return v
	}
	return h.Next()
}
