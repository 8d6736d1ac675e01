// SPDX-License-Identifier: BSD-2-Clause

// Package unconfirmed is a hostile client for testing listeners. It sends connection requests and never confirms them.
package unconfirmed

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Requests sends n connection requests with private data to a listener, from a software device at an address of this
// machine. The device is closed when the test ends.
func Requests(t testing.TB, from string, to netip.AddrPort, n int, private []byte) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	closes := func(c interface{ Close() error }) {
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	fabric, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Name: "hostile", Wire: true,
		Address: netip.MustParseAddr(from)}}})
	must(err)
	closes(fabric)
	ch, err := cm.CreateEventChannelOn(fabric)
	must(err)
	closes(ch)
	expect := func(want rdmacm.CMEventType) {
		for {
			e, err := ch.Event(t.Context())
			must(err)
			if e.Type == want {
				return
			}
		}
	}
	for i := range n {
		id, err := ch.CreateID(rdmacm.PS_TCP)
		must(err)
		closes(id)
		must(id.ResolveAddr(t.Context(), netip.AddrPort{}, to, time.Second))
		expect(rdmacm.CM_EVENT_ADDR_RESOLVED)
		must(id.ResolveRoute(t.Context(), time.Second))
		expect(rdmacm.CM_EVENT_ROUTE_RESOLVED)
		must(id.Connect(t.Context(), &rdmacm.ConnParam{QPNum: uint32(99 + i)}, private))
	}
}
