// SPDX-License-Identifier: BSD-2-Clause

// Package vendorrig creates objects on the fake device, for tests of vendor-specific packages.
package vendorrig

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/fakedevice"
)

// Keep closes an object when the test ends.
func Keep[T interface{ Close() error }](t *testing.T, o T, err error) T {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, o.Close()) })
	return o
}

// Open returns the fake device with a protection domain and a completion queue.
func Open(t *testing.T) (f *fakedevice.Fake, d *rdma.Device, pd *rdma.PD, cq *rdma.CQ) {
	f = fakedevice.New()
	f.QueuePairs()
	d, err := rdma.OpenOn(f, "fake")
	d = Keep(t, d, err)
	pd, err = d.AllocPD()
	pd = Keep(t, pd, err)
	cq, err = d.CreateCQ(64, nil, 0)
	return f, d, pd, Keep(t, cq, err)
}

// Address returns the address of an object, as C functions receive it.
func Address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
