// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// TestOneAddress: two processes with the same address communicate like two with different addresses.
func TestOneAddress(t *testing.T) {
	f := fabricAt(t, "127.0.0.38")
	betweenProcesses(t, f, startPeer(t, "127.0.0.38"), 16<<20)
}

// TestOneAddressIPv6 is TestOneAddress over IPv6. Here the peer receives connection requests first.
func TestOneAddressIPv6(t *testing.T) {
	p := startPeer(t, "::1")
	betweenProcesses(t, fabricAt(t, "::1"), p, 4<<20)
}

// TestMembersJoinAndLeave: while two processes with one address communicate, others join, connect to both, accept
// connections, and leave or are killed, without disturbing the two. A port belongs to one process, and is free once
// that process has ended.
func TestMembersJoinAndLeave(t *testing.T) {
	const at = "127.0.0.39"
	first := startPeer(t, at) // it receives connection requests
	f := fabricAt(t, at)
	stays, err := dialer(config(f)).Dial(timeout(t), first.at(echoPort))
	require.NoError(t, err)
	defer stays.Close()
	l, err := listening(config(f)).Listen(timeout(t), at+":7472")
	require.NoError(t, err)
	defer l.Close()
	for round := range 4 {
		third := newPeer(t, at, asEcho+"=7473")
		third.start()
		c, err := dialer(config(f)).Dial(timeout(t), at+":7473")
		require.NoError(t, err)
		echoed(t, c, random(1<<16, byte(round)))
		in := called(t, l, third)
		_, err = io.CopyN(io.Discard, in, 1<<16)
		require.NoError(t, err)
		require.Equal(t, "connected", third.ask("send "+first.at(echoPort))) // neither end is this process
		require.Equal(t, "connected", first.ask("send "+third.at("7473")))
		_, err = listening(config(f)).Listen(timeout(t), at+":7473")
		require.ErrorIs(t, err, syscall.EADDRINUSE)
		require.ErrorContains(t, err, fmt.Sprintf(`process %d ("soft.test"), which shares the address, uses it`,
			third.command.Process.Pid))
		echoed(t, stays, random(1<<16, byte(round)))
		if round%2 == 0 {
			third.kill()
		} else {
			require.NoError(t, third.in.Close())
			require.NoError(t, third.command.Wait())
		}
		for _, c := range []net.Conn{c, in} {
			require.NoError(t, c.SetDeadline(time.Now().Add(bound)))
			_, err = io.Copy(io.Discard, c)
			require.False(t, os.IsTimeout(err), "the end of the other process is not noticed")
			c.Close()
		}
		again, err := listening(config(f)).Listen(timeout(t), at+":7473")
		require.NoError(t, err)
		require.NoError(t, again.Close())
		echoed(t, stays, random(1<<16, byte(round)))
	}
	first.kill()
	fourth := startPeer(t, at)
	c, err := dialer(config(f)).Dial(timeout(t), fourth.at(echoPort))
	require.NoError(t, err)
	echoed(t, c, random(1<<20, 9))
	require.NoError(t, c.Close())
	c = dialedBy(t, l, fourth)
	require.NoError(t, c.Close())
}

// dialedBy returns a connection that a peer dials.
func dialedBy(t *testing.T, l *stream.Listener, p *peer) *stream.Conn {
	c := called(t, l, p)
	_, err := io.CopyN(io.Discard, c, 1<<16)
	require.NoError(t, err)
	return c.(*stream.Conn)
}

// TestNoListener: a connection request for a port that no process of the address listens on is rejected at once.
func TestNoListener(t *testing.T) {
	a, b := fabricAt(t, "127.0.0.40"), fabricAt(t, "127.0.0.40")
	otherFabric := fabricAt(t, "127.0.0.41")
	id, err := cm.CreateIDOn(b, rdmacm.PS_TCP) // bound, but not listening
	require.NoError(t, err)
	defer id.Close()
	require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.40:7475")))
	id, err = cm.CreateIDOn(a, rdmacm.PS_TCP)
	require.NoError(t, err)
	defer id.Close()
	require.ErrorIs(t, id.Bind(netip.MustParseAddrPort("127.0.0.40:7475")), syscall.EADDRINUSE)
	for _, f := range []*soft.Fabric{a, b, otherFabric} {
		for _, port := range []string{"7474", "7475"} {
			start := time.Now()
			_, err := dialer(config(f)).Dial(timeout(t), "127.0.0.40:"+port)
			require.ErrorIs(t, err, syscall.ECONNREFUSED)
			require.Less(t, time.Since(start), 10*time.Second)
		}
	}
}

// TestDatagramsAtOneAddress: a datagram arrives only at its queue pair, in whichever process, and one to a group once
// at each member.
func TestDatagramsAtOneAddress(t *testing.T) {
	var group, own ibv.GID
	*group.Raw(), *own.Raw() = netip.MustParseAddr("239.7.7.8").As16(), netip.MustParseAddr("127.0.0.42").As16()
	var senders, members []*member
	for range 3 {
		f := fabricAt(t, "127.0.0.42")
		senders = append(senders, newMember(t, f))
		for range 2 {
			m := newMember(t, f)
			require.NoError(t, m.qp.AttachMcast(group, 0))
			members = append(members, m)
		}
	}
	for i, from := range senders {
		text := fmt.Sprintf("from %d", i)
		from.send(group, text)
		for _, m := range members {
			require.Equal(t, []string{text}, m.got(1, bound))
		}
		for j, to := range members {
			text := fmt.Sprintf("from %d to %d", i, j)
			from.sendTo(own, to.qp.Num(), text)
			require.Equal(t, []string{text}, to.got(1, bound))
		}
	}
	for _, m := range members {
		require.Empty(t, m.got(1, 20*time.Millisecond), "the message arrived twice")
	}
}

// TestUnprivilegedShare: processes of an unprivileged user share an address, and other users cannot use it.
func TestUnprivilegedShare(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to switch users")
	}
	const at, nobody = "127.0.0.43", 65534
	start := func(env ...string) *peer {
		program, err := os.Open("/proc/self/exe")
		require.NoError(t, err)
		t.Cleanup(func() { program.Close() })
		p := newPeer(t, at, env...)
		p.command.Path, p.command.ExtraFiles, p.command.Dir = "/proc/self/fd/3", []*os.File{program}, "/"
		p.command.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		p.start()
		return p
	}
	first, second := start(), start(asEcho+"=7473")
	require.Equal(t, "connected", first.ask("send "+second.at("7473")))
	require.Equal(t, "connected", second.ask("send "+first.at(echoPort)))
	_, err := rdma.Open("soft@" + at)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.Regexp(t, fmt.Sprintf(`process (%d|%d) \(`, first.command.Process.Pid, second.command.Process.Pid),
		err.Error(), "one of them: whichever has the lesser number")
	require.ErrorContains(t, err, "belongs to user 65534")
}

// TestOwnQueuePairs: queue pairs of one process at a shared address communicate without packets.
func TestOwnQueuePairs(t *testing.T) {
	f := fabricAt(t, "127.0.0.44")
	all, err := rdma.DevicesOf(f)
	require.NoError(t, err)
	device, err := all[0].Open()
	require.NoError(t, err)
	defer device.Close()
	a, fromA, err := newVerbsEnd(device)
	require.NoError(t, err)
	defer a.close()
	b, fromB, err := newVerbsEnd(device)
	require.NoError(t, err)
	defer b.close()
	require.NoError(t, a.qp.Connect(fromB.Endpoint))
	require.NoError(t, b.qp.Connect(fromA.Endpoint))
	_, err = a.do(context.Background(), func(s *rdma.SendBatch) rdma.SendRequest {
		return s.Write(1, fromB.Address, fromB.RKey).Add(a.mr.SGE(0, 1<<20))
	})
	require.NoError(t, err)
	assert.Zero(t, f.HWCounters("soft0")["sent_pkts"])
}
