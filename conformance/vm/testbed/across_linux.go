// SPDX-License-Identifier: BSD-2-Clause

package testbed

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/rdma/soft"
)

// Across connects Soft-RoCE in the guest's own namespace with another network namespace, by a virtual Ethernet cable.
// The other namespace is for a software device with a wire, which needs its own namespace, since Soft-RoCE binds the
// RoCE v2 port of every address in its namespace.
type Across struct {
	Device           string     // Soft-RoCE
	Soft4, Soft6     netip.Addr // addresses for the software device
	Kernel4, Kernel6 netip.Addr // addresses of Soft-RoCE

	namespace *namespace
}

const (
	acrossDevice = "rxe1"
	nearLink     = "across0" // of Soft-RoCE
	farLink      = "across1" // in the namespace
)

// OpenAcross creates the cable. It is removed when the test ends. A guest can have only one at a time.
func OpenAcross(t testing.TB) *Across {
	t.Helper()
	if Kernel(t) == Soft {
		t.Skip("runs in a guest: the other end is Soft-RoCE")
	}
	a := &Across{
		Device: acrossDevice,
		Soft4:  netip.MustParseAddr("10.88.0.2"), Soft6: netip.MustParseAddr("fd88::2"),
		Kernel4: netip.MustParseAddr("10.88.0.1"), Kernel6: netip.MustParseAddr("fd88::1"),
		namespace: newNamespace(t),
	}
	link := netlink.NewLinkAttrs()
	link.Name = nearLink
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: farLink,
		PeerNamespace: netlink.NsFd(a.namespace.fd)}))
	local, err := netlink.LinkByName(nearLink)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, netlink.LinkDel(local)) })
	require.NoError(t, a.namespace.do(func() error {
		for _, name := range []string{"lo", farLink} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
			if name == farLink {
				err = addAddresses(l, a.Soft4, a.Soft6)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, netlink.LinkSetUp(local))
	require.NoError(t, addAddresses(local, a.Kernel4, a.Kernel6))
	a.introduce(t, local)
	require.NoError(t, netlink.RdmaLinkAdd(acrossDevice, "rxe", nearLink))
	t.Cleanup(func() { assert.NoError(t, netlink.RdmaLinkDel(acrossDevice)) })
	for _, ip := range []netip.Addr{a.Kernel4, a.Kernel6} {
		require.Eventually(t, func() bool { return sysfsHasGID(acrossDevice, ip) }, 10*time.Second,
			5*time.Millisecond, "%s has no GID with %v", acrossDevice, ip)
	}
	return a
}

// Soft returns a fabric with one device, soft0, that has both addresses. It is closed when the test ends.
func (a *Across) Soft(t testing.TB) (f *soft.Fabric) {
	t.Helper()
	require.NoError(t, a.Inside(func() (err error) {
		f, err = soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: a.Soft4, Wire: true}}})
		if err != nil {
			return err
		}
		return f.AddAddress("soft0", a.Soft6)
	}))
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f
}

// SecondSoft returns another fabric in the namespace of Soft, with one device, soft0, at a different address.
func (a *Across) SecondSoft(t testing.TB) (f *soft.Fabric, at netip.Addr) {
	t.Helper()
	at = netip.MustParseAddr("10.88.0.3")
	require.NoError(t, a.Inside(func() error {
		link, err := netlink.LinkByName(farLink)
		if err == nil {
			err = addAddresses(link, at)
		}
		if err == nil {
			f, err = soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: at, Wire: true}}})
		}
		return err
	}))
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	return f, at
}

// Version returns the IP version of an address, for subtest names.
func Version(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// NoRepeats requires that since OpenAcross neither side has retransmitted a connection manager message, according to
// Soft-RoCE's counters, for this number of connections. Only DREQ may be repeated, up to three times within one
// timeout, since a guest that is not scheduled, or a program that exits, responds late. If the DREQ were never
// acknowledged, there would be many more.
func (a *Across) NoRepeats(t testing.TB, connections int) {
	t.Helper()
	files, err := filepath.Glob("/sys/class/infiniband/" + a.Device + "/ports/1/cm_[tr]x_[rd]*/*")
	require.NoError(t, err)
	require.Greater(t, len(files), 10, "this kernel has other counters of the connection manager")
	for _, file := range files { // cm_tx_retries and cm_rx_duplicates, for each kind of message
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		count, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)
		most := 0
		if strings.HasSuffix(file, "cm_rx_duplicates/dreq") || strings.HasSuffix(file, "cm_tx_retries/drep") {
			most = 2 * connections
		}
		assert.LessOrEqual(t, count, most, file)
	}
}

// Inside runs f on a thread in the software device's namespace. Processes that f starts are in the same namespace.
func (a *Across) Inside(f func() error) error { return a.namespace.do(f) }

// introduce adds each end of the cable to the neighbor table of the other. Otherwise the kernel's rdma_resolve_addr
// would send a neighbor solicitation and miss the reply, since over a cable within one kernel the reply arrives before
// the request is queued. It would retry only after the caller's timeout, which is 2 s for programs of rdmacm-utils.
func (a *Across) introduce(t testing.TB, near netlink.Link) {
	t.Helper()
	know := func(link string, peer net.HardwareAddr, all ...netip.Addr) (net.HardwareAddr, error) {
		l, err := netlink.LinkByName(link)
		for _, ip := range all {
			if err == nil {
				err = netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
					IP: ip.AsSlice(), HardwareAddr: peer})
			}
		}
		if err != nil {
			return nil, err
		}
		return l.Attrs().HardwareAddr, nil
	}
	var far net.HardwareAddr
	require.NoError(t, a.Inside(func() (err error) {
		far, err = know(farLink, near.Attrs().HardwareAddr, a.Kernel4, a.Kernel6)
		return err
	}))
	_, err := know(nearLink, far, a.Soft4, a.Soft6)
	require.NoError(t, err)
}

func addAddresses(l netlink.Link, all ...netip.Addr) error {
	for _, ip := range all {
		err := netlink.AddrAdd(l, &netlink.Addr{Flags: unix.IFA_F_NODAD,
			IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen()*3/4, ip.BitLen())}})
		if err != nil {
			return fmt.Errorf("address %v: %w", ip, err)
		}
	}
	return nil
}

// sysfsHasGID reports whether the kernel has created a GID for an address.
func sysfsHasGID(device string, ip netip.Addr) bool {
	var groups []string
	for b := ip.As16(); len(groups) < 8; {
		i := 2 * len(groups)
		groups = append(groups, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	want := strings.Join(groups, ":")
	files, _ := filepath.Glob("/sys/class/infiniband/" + device + "/ports/1/gids/*")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == want {
			return true
		}
	}
	return false
}

// namespace is a network namespace with a thread in it.
type namespace struct {
	fd   int
	work chan func()
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	n := &namespace{fd: -1, work: make(chan func())}
	created := make(chan error)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread exits with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		created <- err
		for f := range n.work {
			f()
		}
	}()
	t.Cleanup(func() {
		close(n.work)
		if n.fd >= 0 {
			unix.Close(n.fd)
		}
	})
	require.NoError(t, <-created)
	return n
}

func (n *namespace) do(f func() error) error {
	done := make(chan error)
	n.work <- func() { done <- f() }
	return <-done
}
