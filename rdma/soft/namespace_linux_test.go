// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/soft/internal/testbed"
)

// inNamespace is testbed.InNamespace with the loopback interface up.
func inNamespace(t *testing.T) bool {
	t.Helper()
	if !testbed.InNamespace(t) {
		return false
	}
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	return true
}

// addressed adds an address to an interface and brings it up.
func addressed(t *testing.T, link netlink.Link, prefix string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(prefix)
	require.NoError(t, err)
	require.NoError(t, netlink.AddrAdd(link, a))
	require.NoError(t, netlink.LinkSetUp(link))
	return a
}

// cabled creates a veth pair, near0 and far0, and returns near0.
func cabled(t *testing.T) netlink.Link {
	t.Helper()
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "far0"}
	veth.Name, veth.MTU = "near0", 1500
	if err := netlink.LinkAdd(veth); errors.Is(err, syscall.EOPNOTSUPP) {
		t.Skip("the kernel does not support veth")
	} else {
		require.NoError(t, err)
	}
	remote, err := netlink.LinkByName("far0")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(remote))
	local, err := netlink.LinkByName("near0")
	require.NoError(t, err)
	return local
}

// TestFullSocket: while the socket buffer of one device is full because its network accepts no packets, other devices
// of the fabric keep working. Unsent packets are counted, and retransmitted once the network accepts them.
func TestFullSocket(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	near := cabled(t)
	addressed(t, near, "192.0.2.1/24")
	// Packets are queued until ARP resolves 192.0.2.2.
	for name, value := range map[string]string{"unres_qlen_bytes": "1000000000", "mcast_solicit": "1000"} {
		require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/neigh/near0/"+name, []byte(value), 0))
	}
	// On a busy machine a write can take a second as well, but not in every attempt.
	slowest := time.Hour
	for try := 0; try < 5 && slowest > 700*time.Millisecond; try++ {
		t.Run("", func(t *testing.T) { slowest = writeWithFullSocket(t, near) })
	}
	assert.Less(t, slowest, 700*time.Millisecond, "packets wait for a second, others do not")
}

// writeWithFullSocket fills the socket buffer of a device, and returns the longest time of a write on other devices.
func writeWithFullSocket(t *testing.T, near netlink.Link) (slowest time.Duration) {
	f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{}, {},
		{Address: netip.MustParseAddr("192.0.2.1"), Wire: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })

	stop, posters := make(chan struct{}), sync.WaitGroup{}
	for range 2 {
		r := newRunner(t, f, "soft2", ibv.QPT_UC)
		to := r.end
		*to.GID.Raw() = netip.MustParseAddr("192.0.2.2").As16()
		require.NoError(t, r.qp.Connect(to))
		sends, err := rdma.NewSendBatch(1, 1, 0)
		require.NoError(t, err)
		sends.Write(1, r.mr.Address(), r.mr.RKey()).Add(r.mr.SGE(0, runnerMemory)).Signaled()
		posters.Go(func() {
			wcs := make([]ibv.WC, 4)
			for done := false; !done; {
				select {
				case <-stop:
					done = true
				default:
				}
				if _, err := r.qp.PostSend(sends); err != nil && !assert.ErrorIs(t, err, syscall.ENOMEM) {
					return
				}
				_, err := r.cq.Poll(wcs)
				assert.NoError(t, err)
			}
		})
	}
	a, b := newRunner(t, f, "soft0", ibv.QPT_RC), newRunner(t, f, "soft1", ibv.QPT_RC)
	a.connect(b, ibv.MTU_1024)
	b.connect(a, ibv.MTU_1024)
	count := func(name string) uint64 { return f.HWCounters("soft2")[name] }
	times := 0
	last, end := time.Now(), time.Now().Add(bound)
	for full := false; !full; times++ {
		require.True(t, time.Now().Before(end), "the socket takes everything")
		full = count("udp_sndbuf_errors") > 0
		a.do(b, func(p *rdma.WRProgram) rdma.WRRequest {
			return p.Write(1, b.mr.Address(), b.mr.RKey()).Add(a.mr.SGE(0, 8))
		})
		now := time.Now()
		slowest, last = max(slowest, now.Sub(last)), now
		time.Sleep(time.Millisecond)
	}
	t.Logf("%d writes, the slowest took %v", times, slowest)

	sent := count("sent_pkts")
	to := &netlink.Neigh{LinkIndex: near.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(192, 0, 2, 2),
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}}
	require.NoError(t, netlink.NeighSet(to))
	waitFor(t, func() bool { return count("sent_pkts") > sent+1000 })
	close(stop)
	posters.Wait()
	require.NoError(t, netlink.NeighDel(to))
	return slowest
}

// Timeout codes, with the time after which a pair without responses fails after 7 retries.
const (
	aSecond     = 15
	fourSeconds = 17
)

// reconnect connects a pair again with another timeout.
func (p *pair) reconnect(t *testing.T, timeout uint8) {
	t.Helper()
	ends := [2]rdma.Endpoint{}
	for i, q := range []*rdma.QP{p.a, p.b} {
		var err error
		require.NoError(t, q.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		ends[i], err = q.Endpoint()
		require.NoError(t, err)
	}
	for i, q := range []*rdma.QP{p.a, p.b} {
		attr, err := q.ConnectAttr(ends[1-i])
		require.NoError(t, err)
		attr.Timeout = timeout
		require.NoError(t, q.ConnectWith(attr))
	}
}

// write writes the complete memory and returns the status.
func (p *pair) write(t *testing.T) ibv.WCStatus {
	t.Helper()
	p.post(t)
	return p.status(t)
}

func (p *pair) post(t *testing.T) {
	t.Helper()
	p.sends.Reset()
	p.sends.Write(1, p.there.Address(), p.there.RKey()).Add(p.here.SGE(0, uint32(len(p.here.Bytes())))).Signaled()
	_, err := p.a.PostSend(p.sends)
	require.NoError(t, err)
}

func (p *pair) status(t *testing.T) ibv.WCStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	n, err := p.a.SendCQ().Wait(ctx, p.wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return p.wcs[0].Status
}

// TestAddressRemoved: after its address is removed from the interface, requests of a connection fail after their
// retries, and are counted. If the address returns in time, the connection continues at full speed.
func TestAddressRemoved(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	near := cabled(t)
	own := addressed(t, near, "192.0.2.1/32")
	addressed(t, near, "192.0.2.2/32")
	p := newPair(t, "192.0.2.1", "192.0.2.2", 1<<20)
	p.reconnect(t, fourSeconds)
	require.Equal(t, ibv.WC_SUCCESS, p.write(t))

	require.NoError(t, netlink.AddrDel(near, own))
	p.post(t)
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, netlink.AddrAdd(near, own))
	require.Equal(t, ibv.WC_SUCCESS, p.status(t))
	require.Equal(t, ibv.WC_SUCCESS, p.write(t))

	p.reconnect(t, aSecond)
	require.NoError(t, netlink.AddrDel(near, own))
	start := time.Now()
	require.Equal(t, ibv.WC_RETRY_EXC_ERR, p.write(t))
	require.Less(t, time.Since(start), bound/2)
	t.Log(p.fabric[0].HWCounters("soft0"))
	require.NoError(t, netlink.AddrAdd(near, own))
	p.reconnect(t, aSecond)
	require.Equal(t, ibv.WC_SUCCESS, p.write(t))
	t.Log(p.fabric[0].HWCounters("soft0"))
}

// TestMTULowered: after the interface's MTU was lowered, packets that are too long are counted, and their requests fail
// after the retries. If the MTU is restored in time, the connection continues.
func TestMTULowered(t *testing.T) {
	if !inNamespace(t) {
		return
	}
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	p := newPair(t, "127.0.0.1", "127.0.0.2", 1<<20)
	p.reconnect(t, fourSeconds)
	require.Equal(t, ibv.WC_SUCCESS, p.write(t))
	require.NoError(t, netlink.LinkSetMTU(lo, 2000))
	p.post(t)
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, netlink.LinkSetMTU(lo, 65536))
	require.Equal(t, ibv.WC_SUCCESS, p.status(t))
	p.reconnect(t, aSecond)
	require.Equal(t, ibv.WC_SUCCESS, p.write(t))
	require.NoError(t, netlink.LinkSetMTU(lo, 2000))
	require.Equal(t, ibv.WC_RETRY_EXC_ERR, p.write(t))
	require.Positive(t, p.fabric[0].HWCounters("soft0")["send_err"])
	t.Log(p.fabric[0].HWCounters("soft0"))
	require.NoError(t, netlink.LinkSetMTU(lo, 65536))
	p.reconnect(t, aSecond)
	require.Equal(t, ibv.WC_SUCCESS, p.write(t))
}
