// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/rdma/stream"
)

// twoHosts connects two guests. Host 0 listens.
func twoHosts(t *testing.T, config stream.Config, port uint16) (c *stream.Conn, first bool) {
	t.Helper()
	inGuest(t, "two of them")
	addr := address(t, port)
	remote := os.Getenv(wire.EnvPeer)
	if remote == "" {
		t.Skip("runs in two guests: go run ./conformance/vm/cmd/vmtest -pair -- ./conformance/vm/cm -run TwoHosts")
	}
	config.AckTimeout = cmp.Or(config.AckTimeout, testbed.PeerAckTimeout)
	all := testbed.GuestTime(t, 90*time.Second)
	if os.Getenv(wire.EnvHost) == "0" {
		l, err := listenConfig(config).Listen(context.Background(), addr.String())
		require.NoError(t, err)
		defer l.Close()
		c, err = l.AcceptRDMA(all)
		require.NoError(t, err)
		return c, true
	}
	for ; ; time.Sleep(100 * time.Millisecond) { // the other host may boot later
		ctx, cancel := context.WithTimeout(all, 5*time.Second)
		c, err := dialer(config).Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(remote), port).String())
		cancel()
		if err == nil {
			return c, false
		}
		require.NoError(t, all.Err(), "%v", err)
	}
}

// TestTwoHostsTransfer transfers 16 MiB in each direction and compares checksums.
func TestTwoHostsTransfer(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		c, _ := twoHosts(t, stream.Config{Protocol: protocol}, 7530+10*uint16(protocol))
		const size = 16 << 20
		data := make([]byte, size)
		rand.NewChaCha8([32]byte{3}).Read(data)
		sent := make(chan error, 1)
		start := time.Now()
		go func() {
			_, err := c.Write(data)
			sent <- errors.Join(err, c.CloseWrite())
		}()
		h := sha256.New()
		n, err := io.Copy(h, c)
		require.NoError(t, err)
		require.NoError(t, <-sent)
		assert.EqualValues(t, size, n)
		assert.Equal(t, sha256.Sum256(data), [32]byte(h.Sum(nil)))
		t.Log(size, "bytes each way in", time.Since(start))
		require.NoError(t, c.Close())
	})
}

// vanish sends this host's packets to an unused Ethernet address, so that none arrives at the other host. Setting the
// link down works only on Linux 6.1: on 6.12, packets in flight hold their queue pair until the link is up again, and
// ibv_destroy_qp waits for them in the kernel (rxe_destroy_qp, __rxe_cleanup).
func vanish(t *testing.T) {
	t.Helper()
	link, err := netlink.LinkByName(os.Getenv(wire.EnvNetdev))
	require.NoError(t, err)
	peer := netip.MustParseAddr(os.Getenv(wire.EnvPeer))
	wrong := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: peer.AsSlice(),
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	require.NoError(t, netlink.NeighSet(wrong))
	t.Cleanup(func() { assert.NoError(t, netlink.NeighDel(wrong)) })
}

// TestTwoHostsSeparate checks that when one host vanishes from the network during a transfer, a writer notices it, and
// a reader notices it through heartbeats. Both take seven times 1.1 s, so that a host that is not scheduled for a while
// is not taken for vanished.
func TestTwoHostsSeparate(t *testing.T) {
	eachProtocol(t, func(t *testing.T, protocol stream.Protocol) {
		config := stream.Config{Protocol: protocol, Heartbeat: 200 * time.Millisecond, AckTimeout: 18,
			Linger: time.Second}
		c, first := twoHosts(t, config, 7531+10*uint16(protocol))
		d, _ := twoHosts(t, config, 7532+10*uint16(protocol))
		e, _ := twoHosts(t, config, 7533+10*uint16(protocol))
		got := make([]byte, 1<<20)
		if !first { // this host vanishes
			_, err := io.ReadFull(c, got)
			require.NoError(t, err)
			vanish(t)
			_, err = io.Copy(io.Discard, d)
			assert.Error(t, err, "to this host, the other one has vanished as well")
			c.Close()
			d.Close()
			e.Close()
			return
		}
		type end struct {
			err error
			op  string
		}
		ends := make(chan end, 2)
		go func() {
			for {
				if _, err := c.Write(got); err != nil {
					ends <- end{err, "write"}
					return
				}
			}
		}()
		go func() {
			_, err := io.Copy(io.Discard, d)
			ends <- end{err, "read"}
		}()
		start := time.Now()
		notice := testbed.GuestTime(t, 60*time.Second)
		for range 2 {
			select {
			case e := <-ends:
				var op *net.OpError
				require.ErrorAs(t, e.err, &op)
				assert.Equal(t, e.op, op.Op)
				assert.True(t, errors.Is(e.err, syscall.ETIMEDOUT) || errors.Is(e.err, syscall.ECONNRESET), "%v", e.err)
				t.Log(e.op, "failed", time.Since(start), "after the start:", e.err)
			case <-notice.Done():
				require.Fail(t, "the other host does not notice")
			}
		}
		withTimeout := testbed.GuestTime(t, 5*time.Second)
		var lost *stream.UndeliveredError
		assert.ErrorAs(t, c.Close(), &lost)
		assert.NoError(t, d.Close(), "no data was written")
		assert.NoError(t, withTimeout.Err(), "closing both")
		_, err := e.Write(got[:200_000])
		if closed := e.Close(); err == nil {
			assert.ErrorAs(t, closed, &lost)
		}
		t.Log("the third connection:", err, lost)
	})
}
