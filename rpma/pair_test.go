// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

// side is one side of a test: a peer on a device, with an optional connection.
type side struct {
	t      testing.TB
	device *Device
	peer   *Peer
	conn   *Conn
}

// pair has a connecting side on soft0 and a listening side on soft1.
type pair struct {
	t      testing.TB
	fabric *soft.Fabric
	a, b   *side
	ep     *Endpoint
}

// options configure a pair. The zero value means the defaults.
type options struct {
	soft         soft.Options
	a, b         PeerOptions
	connA, connB *ConnConfig
	private      string // private data of the request
	answer       string
}

const (
	addressA = "127.0.0.1"
	addressB = "127.0.0.2"
)

// newPair creates the two sides, without a connection.
func newPair(t testing.TB, o options) *pair {
	t.Helper()
	o.soft.Virtual = true
	if o.soft.Devices == nil {
		o.soft.Devices = []soft.DeviceOptions{{Persistent: true}, {Persistent: true}}
	}
	r := &pair{t: t, fabric: rdmatest.NewFabric(t, o.soft)}
	r.a, r.b = r.newSide(addressA, o.a), r.newSide(addressB, o.b)
	var err error
	r.ep, err = r.b.peer.Listen(timeout(t), addressB+":0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.ep.Close()) })
	return r
}

func (r *pair) newSide(address string, o PeerOptions) *side {
	e := &side{t: r.t}
	var err error
	e.device, err = FindDeviceOn(timeout(r.t), r.fabric, Local, address)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, e.device.Close()) })
	e.peer, err = NewPeer(e.device, o)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, e.peer.Close()) })
	return e
}

// connected creates the two sides and a connection.
func connected(t testing.TB, o options) *pair {
	t.Helper()
	r := newPair(t, o)
	r.a.conn, r.b.conn = r.connect(o)
	return r
}

// connect creates a connection that is closed when the test ends.
func (r *pair) connect(o options) (a, b *Conn) {
	r.t.Helper()
	a, b = r.handshake(o)
	require.Equal(r.t, Established, r.event(a))
	require.Equal(r.t, Established, r.event(b))
	return a, b
}

// handshake connects from a to b.
func (r *pair) handshake(o options) (a, b *Conn) {
	r.t.Helper()
	out, err := r.a.peer.NewConnRequest(timeout(r.t), r.ep.Addr().String(), o.connA)
	require.NoError(r.t, err)
	a, err = out.Connect([]byte(o.private))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, a.Close()) })
	in, err := r.ep.NextConnRequest(timeout(r.t), o.connB)
	require.NoError(r.t, err)
	b, err = in.Connect([]byte(o.answer))
	require.NoError(r.t, err)
	r.t.Cleanup(func() { require.NoError(r.t, b.Close()) })
	return a, b
}

// event returns the next event of a connection.
func (r *pair) event(c *Conn) Event {
	r.t.Helper()
	e, err := c.NextEvent(timeout(r.t))
	require.NoError(r.t, err)
	return e
}

// memory registers memory that is closed when the test ends.
func (e *side) memory(size int, usage Usage) *MR {
	e.t.Helper()
	m, err := e.peer.RegMR(make([]byte, size), usage)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { require.NoError(e.t, m.Close()) })
	return m
}

// remote parses a region's descriptor as a peer does.
func remote(t testing.TB, m *MR) *RemoteMR {
	t.Helper()
	d := m.Descriptor()
	r, err := ParseRemoteMR(d[:])
	require.NoError(t, err)
	return r
}

// completion waits for a completion.
func completion(t testing.TB, q *CQ) ibv.WC {
	t.Helper()
	wcs := make([]ibv.WC, 1)
	n, err := q.Wait(timeout(t), wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	return wcs[0]
}

// done waits for a successful completion with an id.
func (e *side) done(id uint64) ibv.WC {
	e.t.Helper()
	wc := completion(e.t, e.conn.CQ())
	require.NoError(e.t, e.conn.CompletionErr(&wc))
	require.Equal(e.t, id, wc.WRID)
	return wc
}

// timeout returns a context whose timeout suffices on a busy machine.
func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
