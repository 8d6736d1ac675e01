// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rpma"
)

// attempt requests a connection whose queues share a channel, and records the result.
func (r *role) attempt() {
	r.t.Helper()
	c := config
	c.RecvCQSize, c.SharedChannel = 8, true
	q, err := r.peer.NewConnRequest(r.ctx, r.at.String(), &c)
	r.must(err)
	r.receives(q, 1)
	r.conn, err = q.Connect([]byte("from s\x00"))
	r.must(err)
	r.event()
}

// s is rejected and connects again. Its two sends and its receive complete in queues that share a channel.
func s(t *testing.T, at netip.AddrPort) string {
	r := newRole(t, at, rpma.Remote)
	r.regions(size, localUsage)
	r.attempt()
	r.must(r.conn.Close())
	r.attempt()
	data := r.conn.PrivateData()
	r.print("private data %s of %d bytes", data[:4], len(data))
	_, err := r.conn.CQ().Wait(r.ctx, make([]ibv.WC, 1))
	r.result("wait of a queue that shares its channel", err)
	msgs := r.msgs.Bytes()
	copy(msgs[1024:], "a message")
	r.must(r.conn.Send(r.msgs, 1024, 9, rpma.Always, 1))
	r.must(r.conn.SendWithImm(r.msgs, 1026, 7, rpma.Always, 0x01020304, 2))
	left := map[bool]int{false: 2, true: 1}
	for left[false] > 0 || left[true] > 0 {
		q, receive, err := r.conn.Wait(r.ctx)
		r.must(err)
		var wcs [8]ibv.WC
		n, err := q.Poll(wcs[:])
		r.must(err)
		for _, wc := range wcs[:n] {
			require.Equal(t, ibv.WC_SUCCESS, wc.Status)
			require.Equal(t, receive, wc.Opcode&ibv.WC_RECV != 0)
		}
		left[receive] -= n
	}
	r.print("received %s", msgs[:9])
	r.event() // r disconnects
	r.must(r.conn.Disconnect())
	return r.end()
}

// r rejects a request, accepts the next one, and receives in a shared receive queue with a separate completion queue.
func r(t *testing.T, at netip.AddrPort, ready func()) string {
	r := newRole(t, at, rpma.Local)
	r.regions(size, remoteUsage)
	e, err := r.peer.Listen(r.ctx, at.String())
	r.must(err)
	ready()
	q, err := e.NextConnRequest(r.ctx, &config)
	r.must(err)
	r.print("private data %s of %d bytes", q.PrivateData()[:6], len(q.PrivateData()))
	r.must(q.Close())
	srq, err := r.peer.NewSRQ(rpma.SRQConfig{RQSize: 8, RecvCQSize: 8})
	r.must(err)
	for i := range uint64(2) {
		r.must(srq.Recv(r.msgs, i*slot, slot, 100+i))
	}
	c := config
	c.SRQ = srq
	q, err = e.NextConnRequest(r.ctx, &c)
	r.must(err)
	r.conn, err = q.Connect([]byte("to s\x00"))
	r.must(err)
	r.event()
	r.recvs = srq.RecvCQ()
	r.received()
	r.received()
	msgs := r.msgs.Bytes()
	r.print("received %s, %s", msgs[:9], msgs[slot:slot+7])
	copy(msgs[2048:], "an answer")
	r.must(r.conn.Send(r.msgs, 2048, 9, rpma.Always, 1))
	r.sent()
	r.must(r.conn.Disconnect())
	r.event()
	r.must(e.Close())
	r.must(r.conn.Close())
	r.must(srq.Close())
	return r.end()
}

// TestQueuesAndRejection runs package rpma against librpma's C program with a shared receive queue and a shared
// completion channel, after a rejected request, and checks that each observes the same as C against C.
func TestQueuesAndRejection(t *testing.T) {
	gs, gr := play(t, 7640, s, r)
	assert.Contains(t, gs, "event 3\nevent 0\nprivate data to s of 196 bytes\n"+
		"wait of a queue that shares its channel: -100008\nreceived an answer\nevent 1\n")
	assert.Contains(t, gr, "private data from s of 56 bytes\n")
	assert.Contains(t, gr, "imm 01020304\nreceived a message, message\n")
	inC(t)
	cs, cr := play(t, 7641, activeInC("s"), passiveInC("r"))
	assert.Equal(t, cs, gs)
	assert.Equal(t, cr, gr)
	mixedS, mixedR := play(t, 7642, s, passiveInC("r"))
	assert.Equal(t, []string{cs, cr}, []string{mixedS, mixedR})
	mixedS, mixedR = play(t, 7643, activeInC("s"), r)
	assert.Equal(t, []string{cs, cr}, []string{mixedS, mixedR})
}
