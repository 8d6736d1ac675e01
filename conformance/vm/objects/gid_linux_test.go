// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// spare returns a device with its own network device, on which tests create VLANs.
func spare(t *testing.T) (d *rdma.Device, netdev string) {
	r := testbed.Open(t)
	s := r.Spare()
	if s.Netdev() == "" {
		t.Skip("a software device has no network device below it, and so no VLANs and no namespaces")
	}
	d, err := rdma.Open(s.Name)
	return keep(t, d, err), s.Netdev()
}

// vlanName returns the name of a VLAN's network device.
func vlanName(netdev string, id int) string { return fmt.Sprintf("%s.%d", netdev, id) }

// addVLAN creates a VLAN on a network device. It is down and has no address.
func addVLAN(t *testing.T, netdev string, id int) netlink.Link {
	t.Helper()
	parent, err := netlink.LinkByName(netdev)
	require.NoError(t, err)
	link := &netlink.Vlan{LinkAttrs: netlink.NewLinkAttrs(), VlanId: id}
	link.Name, link.ParentIndex = vlanName(netdev, id), parent.Attrs().Index
	require.NoError(t, netlink.LinkAdd(link))
	t.Cleanup(func() { netlink.LinkDel(link) })
	return link
}

func ipnet(address string) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address).To4(), Mask: net.CIDRMask(24, 32)}}
}

func up(t *testing.T, link netlink.Link, addresses ...string) {
	t.Helper()
	require.NoError(t, netlink.LinkSetUp(link))
	for _, a := range addresses {
		require.NoError(t, netlink.AddrAdd(link, ipnet(a)))
	}
}

// found waits for a GID, which the kernel creates asynchronously.
func found(t *testing.T, d *rdma.Device, q rdma.GIDQuery) (e ibv.GIDEntry) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if e, err = d.FindGID(q); err == nil {
			return e
		}
	}
	require.NoError(t, err)
	return e
}

// missing waits until a GID is removed.
func missing(t *testing.T, d *rdma.Device, q rdma.GIDQuery) {
	t.Helper()
	require.Eventually(t, func() bool { _, err := d.FindGID(q); return err != nil }, 5*time.Second, 5*time.Millisecond,
		"%v", q)
}

// transfers connects a queue pair to itself through a GID and writes. It returns the GID index of the queue pair's
// path.
func transfers(t *testing.T, qp *rdma.QP, cq *rdma.CQ) int {
	t.Helper()
	loop(t, qp)
	require.NoError(t, write(t, qp, sendBatch(t, 1), 1))
	wcs := make([]ibv.WC, 1)
	require.Eventually(t, func() bool { n, err := cq.Poll(wcs); return n == 1 || err != nil }, 5*time.Second,
		time.Millisecond)
	require.NoError(t, rdma.CompletionErr(&wcs[0]))
	attr, _, err := qp.Query(ibv.QP_AV)
	require.NoError(t, err)
	return int(attr.AHAttr.GRH.SGIDIndex)
}

func newQP(t *testing.T, pd *rdma.PD, cq *rdma.CQ) *rdma.QP {
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: testbed.Caps},
		rdma.QueueOptions{})
	return keep(t, qp, err)
}

// TestGIDsOfVLANs checks that GIDs can be selected by VLAN even if two network devices have the same address, that
// traffic passes, and that connecting looks the GID up again after the table has changed.
func TestGIDsOfVLANs(t *testing.T) {
	d, netdev := spare(t)
	pd, err := d.AllocPD()
	pd = keep(t, pd, err)
	cq, err := d.CreateCQ(500, nil, 0)
	cq = keep(t, cq, err)
	plain, err := netlink.LinkByName(netdev)
	require.NoError(t, err)
	const shared = "10.78.7.1"
	seven, eight := addVLAN(t, netdev, 7), addVLAN(t, netdev, 8)
	up(t, seven, shared)
	up(t, eight, "10.78.8.1", shared)
	none, id7, id8, id9 := uint16(0), uint16(7), uint16(8), uint16(9)
	v2 := ibv.GID_TYPE_ROCE_V2
	address := netip.MustParseAddr(shared)
	for _, c := range []struct {
		q    rdma.GIDQuery
		link netlink.Link
	}{
		{rdma.GIDQuery{VLAN: &none, Type: &v2}, plain},
		{rdma.GIDQuery{VLAN: &id7, Address: address, Type: &v2}, seven},
		{rdma.GIDQuery{VLAN: &id8, Address: address, Type: &v2}, eight},
		{rdma.GIDQuery{VLAN: &id8, Address: netip.MustParseAddr("10.78.8.1")}, eight},
		{rdma.GIDQuery{Interface: vlanName(netdev, 7), Address: address}, seven},
		{rdma.GIDQuery{Interface: vlanName(netdev, 8), Address: address}, eight},
	} {
		e := found(t, d, c.q)
		assert.EqualValues(t, c.link.Attrs().Index, e.NDevIfindex, "%v", c.q)
		assert.Equal(t, v2, e.GIDType, "%v", c.q)
		qp := newQP(t, pd, cq)
		endpoint, err := qp.EndpointOn(c.q)
		require.NoError(t, err)
		assert.Equal(t, e.GID, endpoint.GID)
		assert.EqualValues(t, e.GIDIndex, transfers(t, qp, cq), "%v", c.q)
	}
	_, err = d.FindGID(rdma.GIDQuery{VLAN: &id9})
	assert.ErrorContains(t, err, "no GID with VLAN 9; the device has ")

	// Remove the addresses of VLAN 7, let other GIDs take their table entries, and add them again.
	q := rdma.GIDQuery{VLAN: &id7, Address: address, Type: &v2}
	before := found(t, d, q)
	qp := newQP(t, pd, cq)
	_, err = qp.EndpointOn(q)
	require.NoError(t, err)
	require.NoError(t, netlink.AddrDel(seven, ipnet(shared)))
	missing(t, d, q)
	assert.ErrorContains(t, qp.Connect(rdma.Endpoint{QPNum: qp.Num(), GID: before.GID, MTU: ibv.MTU_1024}),
		"no GID ")
	for i := range 4 {
		a := fmt.Sprintf("10.78.0.%d", 10+i)
		require.NoError(t, netlink.AddrAdd(plain, ipnet(a)))
		found(t, d, rdma.GIDQuery{Address: netip.MustParseAddr(a)})
	}
	require.NoError(t, netlink.AddrAdd(seven, ipnet(shared)))
	after := found(t, d, q)
	require.NotEqual(t, before.GIDIndex, after.GIDIndex, "no traffic passed, so the test proves nothing")
	assert.EqualValues(t, after.GIDIndex, transfers(t, qp, cq))
}

// TestGIDsOfNamespaces checks that a network device of another namespace is used only if nothing else matches, and
// never by name or VLAN, since these may denote a different device in this namespace.
func TestGIDsOfNamespaces(t *testing.T) {
	d, netdev := spare(t)
	local, remote := addVLAN(t, netdev, 7), addVLAN(t, netdev, 9)
	const shared = "10.78.7.1"
	up(t, local, shared)
	id9 := uint16(9)
	v2 := ibv.GID_TYPE_ROCE_V2
	localAddr := rdma.GIDQuery{Address: netip.MustParseAddr(shared), Type: &v2}
	found(t, d, localAddr)
	inside(t, remote, func(link netlink.Link) {
		up(t, link, "10.78.9.1", shared)
		e := found(t, d, rdma.GIDQuery{VLAN: &id9, Address: netip.MustParseAddr("10.78.9.1")})
		assert.EqualValues(t, link.Attrs().Index, e.NDevIfindex, "this thread is in the namespace")
		e = found(t, d, localAddr)
		assert.EqualValues(t, link.Attrs().Index, e.NDevIfindex, "this namespace's is preferred")
		_, err := d.FindGID(rdma.GIDQuery{Interface: vlanName(netdev, 7)})
		assert.Error(t, err)
	}, func() {
		foreign := found(t, d, rdma.GIDQuery{Address: netip.MustParseAddr("10.78.9.1")})
		t.Logf("entry %d has the address of the other namespace, on its device %d", foreign.GIDIndex,
			foreign.NDevIfindex)
		for _, q := range []rdma.GIDQuery{{VLAN: &id9}, {Interface: vlanName(netdev, 9)}} {
			_, err := d.FindGID(q)
			assert.Error(t, err, "%v", q)
		}
		e := found(t, d, localAddr)
		assert.EqualValues(t, local.Attrs().Index, e.NDevIfindex, "of two with the address, that of this namespace")
	})
}

// inside moves a network device to a new network namespace. It calls there on a thread in that namespace, and here
// outside of it while the namespace exists.
func inside(t *testing.T, link netlink.Link, there func(link netlink.Link), here func()) {
	t.Helper()
	namespace, ready, proceed, done := make(chan int), make(chan bool), make(chan bool), make(chan bool)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread exits with the goroutine
		defer close(done)
		if !assert.NoError(t, unix.Unshare(unix.CLONE_NEWNET)) {
			close(namespace)
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if !assert.NoError(t, err) {
			close(namespace)
			return
		}
		defer f.Close()
		defer func() { <-ready }() // keep the namespace until then, even if the test fails
		defer close(proceed)
		namespace <- int(f.Fd())
		<-ready
		moved, err := netlink.LinkByName(link.Attrs().Name)
		if assert.NoError(t, err) {
			there(moved)
		}
	}()
	fd, ok := <-namespace
	require.True(t, ok)
	require.NoError(t, netlink.LinkSetNsFd(link, fd))
	ready <- true
	<-proceed
	here()
	ready <- true
	<-done
}

// TestGIDsAndGUIDsAsInSysfs compares GIDs and GUIDs with sysfs. GUIDs have the format of sysfs, and GIDs the format in
// which ibv_devinfo prints RoCE v2 GIDs.
func TestGIDsAndGUIDsAsInSysfs(t *testing.T) {
	if testbed.Kernel(t) == testbed.Soft {
		t.Skip("a software device is not in sysfs")
	}
	d := open(t)
	dir := filepath.Join("/sys/class/infiniband", d.Name())
	text, err := os.ReadFile(filepath.Join(dir, "node_guid"))
	require.NoError(t, err)
	guid, err := ibv.ParseGUID(string(text))
	require.NoError(t, err)
	assert.Equal(t, guid, d.Info().GUID)
	assert.Equal(t, strings.TrimSpace(string(text)), d.Info().GUID.String())
	attr, err := d.Query()
	require.NoError(t, err)
	assert.Equal(t, guid, attr.NodeGUID)

	devinfo, err := exec.Command("ibv_devinfo", "-v", "-d", d.Name()).Output()
	require.NoError(t, err)
	assert.Regexp(t, `node_guid:\s+`+d.Info().GUID.String(), string(devinfo))

	gids, err := d.GIDs()
	require.NoError(t, err)
	require.NotEmpty(t, gids)
	for _, g := range gids {
		assert.Regexp(t, fmt.Sprintf(`GID\[ *%d\]:\s+%v, RoCE v2`, g.GIDIndex, g.GID), string(devinfo))
		text, err := os.ReadFile(fmt.Sprintf("%s/ports/%d/gids/%d", dir, g.PortNum, g.GIDIndex))
		require.NoError(t, err)
		gid, err := ibv.ParseGID(string(text))
		require.NoError(t, err)
		assert.Equal(t, g.GID, gid)
	}
}
