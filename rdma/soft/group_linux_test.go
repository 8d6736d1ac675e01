// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// member is a UD queue pair.
type member struct {
	t *testing.T

	qp *rdma.QP
	mr *rdma.MR
}

const memberSize = 256

func newMember(t *testing.T, f *soft.Fabric) *member {
	all, err := rdma.DevicesOf(f)
	require.NoError(t, err)
	d, err := all[0].Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	m := &member{t: t}
	m.qp, err = d.NewUD(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.qp.Close()) })
	m.mr, err = m.qp.RegMR(make([]byte, 9*memberSize), ibv.ACCESS_LOCAL_WRITE)
	require.NoError(t, err)
	recvs, err := rdma.NewRecvBatch(8, 1)
	require.NoError(t, err)
	defer recvs.Close()
	for i := range uint64(8) {
		recvs.Recv(i).Add(m.mr.SGE(i*memberSize, memberSize))
	}
	_, err = m.qp.PostRecv(recvs)
	require.NoError(t, err)
	return m
}

// got returns the texts received until there are n, or until a timeout.
func (m *member) got(n int, within time.Duration) (texts []string) {
	ctx, cancel := context.WithTimeout(m.t.Context(), within)
	defer cancel()
	wcs := make([]ibv.WC, 1)
	for len(texts) < n {
		if _, err := m.qp.RecvCQ().Wait(ctx, wcs); err != nil {
			return texts
		}
		if wc := &wcs[0]; wc.WRID < 8 {
			require.NoError(m.t, rdma.CompletionErr(wc))
			at := int(wc.WRID) * memberSize
			texts = append(texts, string(m.mr.Bytes()[at+rdma.GRHBytes:at+int(wc.ByteLen)]))
		}
	}
	return texts
}

// send sends a text to a group.
func (m *member) send(group ibv.GID, text string) { m.sendTo(group, 0xffffff, text) }

// sendTo sends a text to a queue pair or a group.
func (m *member) sendTo(group ibv.GID, qpn uint32, text string) {
	ah, err := m.qp.PD().CreateAH(&ibv.AHAttr{PortNum: 1, IsGlobal: 1,
		GRH: ibv.GlobalRoute{DGID: group, HopLimit: 1}})
	require.NoError(m.t, err)
	defer ah.Close()
	sends, err := rdma.NewSendBatch(1, 1, 0)
	require.NoError(m.t, err)
	defer sends.Close()
	copy(m.mr.Bytes()[8*memberSize:], text)
	sends.Send(100).UD(ah.Ptr(), qpn, rdma.DefaultQKey).Add(m.mr.SGE(8*memberSize, uint32(len(text)))).Signaled()
	_, err = m.qp.PostSend(sends)
	require.NoError(m.t, err)
	wcs := make([]ibv.WC, 1)
	_, err = m.qp.SendCQ().WaitBusy(m.t.Context(), wcs)
	require.NoError(m.t, err)
	require.NoError(m.t, rdma.CompletionErr(&wcs[0]))
}

// groupPlace is a group and two addresses of one interface.
type groupPlace struct{ group, first, second string }

// groupPlaceIPv6 finds an interface with two IPv6 addresses.
func groupPlaceIPv6(t *testing.T) (p groupPlace, ok bool) {
	all, err := net.Interfaces()
	require.NoError(t, err)
	for _, i := range all {
		own, err := i.Addrs()
		require.NoError(t, err)
		var found []string
		for _, a := range own {
			ip, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
			switch ip = ip.Unmap(); {
			case ip.Is6() && ip.IsLinkLocalUnicast():
				found = append(found, ip.WithZone(i.Name).String())
			case ip.Is6():
				found = append(found, ip.String())
			}
		}
		if up := net.FlagUp | net.FlagMulticast; len(found) > 1 && i.Flags&up == up {
			return groupPlace{"ff0e::77", found[0], found[1]}, true
		}
	}
	return p, false
}

// TestGroupsOverTheWire: each member of a multicast group, on the sender's fabric and on others, receives a datagram
// once, and none after leaving.
func TestGroupsOverTheWire(t *testing.T) {
	places := []groupPlace{{"224.0.1.77", "127.0.0.52", "127.0.0.53"}}
	if where, ok := groupPlaceIPv6(t); ok {
		places = append(places, where)
	} else {
		t.Log("IPv4 only: no interface of this machine has two IPv6 addresses")
	}
	for _, where := range places {
		a, b := fabricAt(t, where.first), fabricAt(t, where.second)
		var group ibv.GID
		*group.Raw() = netip.MustParseAddr(where.group).As16()
		sender, local, remote, farther := newMember(t, a), newMember(t, a), newMember(t, b), newMember(t, b)
		all := []*member{sender, local, remote, farther}
		for _, m := range all {
			require.NoError(t, m.qp.AttachMcast(group, 0))
		}
		for i := range 3 {
			sender.send(group, fmt.Sprint("message ", i))
		}
		want := []string{"message 0", "message 1", "message 2"}
		for i, m := range all[1:] {
			require.Equal(t, want, m.got(3, bound), "member %d of %v", i, where)
		}
		require.NoError(t, remote.qp.DetachMcast(group, 0))
		sender.send(group, "later")
		require.Equal(t, []string{"later"}, farther.got(1, bound))
		require.NoError(t, farther.qp.DetachMcast(group, 0))
		sender.send(group, "last")
		require.Equal(t, []string{"later", "last"}, local.got(2, bound))
		require.Empty(t, remote.got(1, 50*time.Millisecond))
		require.Empty(t, farther.got(1, time.Millisecond))
	}
}
