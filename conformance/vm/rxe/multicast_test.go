// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestMulticast checks that a datagram to a group arrives exactly once at each attached queue pair, and at no other.
func TestMulticast(t *testing.T) {
	r := testbed.Open(t)
	group := multicast(r)
	join(t, net.IP(group.Raw()[12:]))
	cq := r.CQ(16)
	from := r.QP(ibv.QPT_UD, cq, cq)
	r.Bring(from, ibv.QPS_RTS)
	to := make([]*member, 4)
	for i := range to {
		to[i] = newMember(r)
	}
	in := to[:3]
	for _, m := range in {
		require.NoError(t, verbs.AttachMcast(m.qp, group, 0))
	}
	require.NoError(t, verbs.AttachMcast(in[0].qp, group, 0), "attaching twice has no effect")
	attr := r.AH()
	attr.GRH.DGID = *group
	ah, err := verbs.CreateAH(r.PD, &attr)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyAH(ah)) })

	datagram(r, from, cq, ah, groupNumber)
	for i, m := range in {
		assert.True(t, m.received(r), "member %d", i)
	}
	for i, m := range to {
		assert.False(t, m.received(r), "queue pair %d received too many messages", i)
	}
	require.NoError(t, verbs.DetachMcast(in[0].qp, group, 0))
	datagram(r, from, cq, ah, groupNumber)
	assert.True(t, in[1].received(r))
	assert.True(t, in[2].received(r))
	assert.False(t, in[0].received(r), "the queue pair was detached")
	require.NoError(t, verbs.DetachMcast(in[1].qp, group, 0))
	require.NoError(t, verbs.DetachMcast(in[2].qp, group, 0))
}

// groupNumber is the destination queue pair number of datagrams to a group.
const groupNumber = 0xffffff

// member is a queue pair with posted receives.
type member struct {
	qp *ibv.QP
	cq *ibv.CQ
	to *testbed.Buffer
}

func newMember(r *testbed.Testbed) *member {
	m := &member{cq: r.CQ(16), to: r.Buffer(256, local)}
	m.qp = r.QP(ibv.QPT_UD, m.cq, m.cq)
	r.Bring(m.qp, ibv.QPS_RTS)
	for range 4 {
		r.Recv(m.qp, 7, m.to.SGE(0, 256))
	}
	return m
}

// received reports whether another datagram arrived with the right data.
func (m *member) received(r *testbed.Testbed) bool {
	wc, received, err := testbed.Poll(m.cq, 2*nothingMore)
	r.Check(err)
	if !received {
		return false
	}
	r.Check(status(wc))
	ok := wc.ByteLen == grh+moved && string(m.to.Bytes[grh:grh+moved]) == string(pattern())
	clear(m.to.Bytes)
	return ok
}

// join makes the network device join a group, so that datagrams to it are looped back.
func join(t *testing.T, group net.IP) {
	t.Helper()
	if testbed.Kernel(t) == testbed.Soft { // the software device has no network device
		return
	}
	netdev, err := net.InterfaceByName(os.Getenv(wire.EnvNetdev))
	require.NoError(t, err)
	c, err := net.ListenMulticastUDP("udp", netdev, &net.UDPAddr{IP: group, Port: 9})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	time.Sleep(10 * time.Millisecond)
}
