// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/rdma/soft"
)

// Cable is a virtual Ethernet cable between two network namespaces, neither of which is the guest's own.
type Cable struct {
	At    [2]netip.Addr // addresses of the ends
	links [2]string
	spots [2]*namespace
}

// OpenCable creates a cable. The cable is removed when the test ends.
func OpenCable(t testing.TB, number byte) *Cable {
	t.Helper()
	c := &Cable{spots: [2]*namespace{newNamespace(t), newNamespace(t)}}
	for i := range c.At {
		c.At[i] = netip.AddrFrom4([4]byte{10, 100, number, byte(i + 1)})
		c.links[i] = fmt.Sprintf("cable%d-%d", number, i)
	}
	link := netlink.NewLinkAttrs()
	link.Name = c.links[0]
	require.NoError(t, c.spots[0].do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: c.links[1],
			PeerNamespace: netlink.NsFd(c.spots[1].fd)})
	}))
	for i, spot := range c.spots {
		require.NoError(t, spot.do(func() error {
			l, err := netlink.LinkByName(c.links[i])
			if err == nil {
				err = addAddresses(l, c.At[i])
			}
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			return err
		}))
	}
	return c
}

// Soft returns a fabric with one device, soft0, at an end of the cable. It is closed when the test ends.
func (c *Cable) Soft(t testing.TB, end int) (f *soft.Fabric) {
	t.Helper()
	require.NoError(t, c.spots[end].do(func() (err error) {
		f, err = soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: c.At[end], Wire: true}}})
		return err
	}))
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

// Kernel returns the name of a Soft-RoCE device at an end of the cable. The device is removed when the test ends.
// Before Linux 7, Soft-RoCE does not work in a namespace.
func (c *Cable) Kernel(t testing.TB, end int) string {
	t.Helper()
	device := "rxe-" + c.links[end]
	require.NoError(t, c.spots[end].do(func() error { return netlink.RdmaLinkAdd(device, "rxe", c.links[end]) }))
	t.Cleanup(func() {
		assert.NoError(t, c.spots[end].do(func() error { return netlink.RdmaLinkDel(device) }))
	})
	require.Eventually(t, func() bool { return sysfsHasGID(device, c.At[end]) }, 10*time.Second, 5*time.Millisecond,
		"%s has no GID with %v", device, c.At[end])
	return device
}
