// SPDX-License-Identifier: BSD-2-Clause

// Package rig has what tests of the device and of its connection manager have in common.
package rig

import (
	"encoding/binary"
	"testing"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/runtime/offheap"
)

// EventLimit is how long an event is waited for that has to come: longer than any machine with much to do takes.
const EventLimit = time.Minute

// Outside is n zeroed T's outside Go's heap.
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

// Within makes a call that waits for an event, and fails the test by the event's name when it does not come.
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
		t.Fatalf("%v did not come within %v", event, EventLimit)
	}
}

// Hostile gives numbers out of a fuzzer's bytes; some of them are what a test wants most.
type Hostile struct {
	Data []byte
	Well []uint64 // numbers that mean something
}

// Next is any number.
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

// Or is the number that is right, more often than not.
func (h *Hostile) Or(v uint64) uint64 {
	if len(h.Data) > 0 && h.Data[0] < 200 {
		h.Data = h.Data[1:]
		return v
	}
	return h.Next()
}
