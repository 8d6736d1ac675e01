// SPDX-License-Identifier: BSD-2-Clause

package device_test

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	softcm "github.com/goverbs/goverbs/rdma/soft/internal/cm"
	"github.com/goverbs/goverbs/rdma/soft/internal/device"
)

// side is a fabric with its own address, and an event channel on it.
type side struct {
	t       *testing.T
	fabric  *device.Fabric
	channel *cm.EventChannel
}

func newSide(t *testing.T, address netip.Addr) *side {
	f, err := device.New(device.Options{Devices: []device.DeviceOptions{
		{Name: "soft0", Address: address, Wire: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	f.Manage(softcm.New(f, 0))
	ch, err := cm.CreateEventChannelOn(f)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ch.Close()) })
	return &side{t, f, ch}
}

func (s *side) soon() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *side) expect(want rdmacm.CMEventType) cm.Event {
	s.t.Helper()
	e, err := s.channel.Event(s.soon())
	require.NoError(s.t, err)
	require.Equal(s.t, want, e.Type)
	return e
}

func (s *side) keep(id *cm.ID) *cm.ID {
	s.t.Cleanup(func() { assert.NoError(s.t, id.Close()) })
	return id
}

// connection is one that is on its way, with the IDs of both sides.
type connection struct {
	asks, answers *side
	id, other     *cm.ID
}

var param = &rdmacm.ConnParam{QPNum: 99} // of a queue pair that does not exist

func newConnection(t *testing.T) *connection {
	pid := os.Getpid() // other processes run these tests at the same time
	own := netip.AddrFrom4([4]byte{127, 64 + byte(pid>>16)%64, byte(pid >> 8), byte(pid)})
	other := netip.AddrFrom4([4]byte{127, 128 + byte(pid>>16)%64, byte(pid >> 8), byte(pid)})
	c := &connection{asks: newSide(t, own), answers: newSide(t, other)}
	l, err := c.answers.channel.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	at := netip.AddrPortFrom(other, 7471)
	require.NoError(t, c.answers.keep(l).Bind(at))
	require.NoError(t, l.Listen(1))
	id, err := c.asks.channel.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	c.id = c.asks.keep(id)
	require.NoError(t, id.ResolveAddr(c.asks.soon(), netip.AddrPort{}, at, time.Second))
	c.asks.expect(rdmacm.CM_EVENT_ADDR_RESOLVED)
	require.NoError(t, id.ResolveRoute(c.asks.soon(), time.Second))
	c.asks.expect(rdmacm.CM_EVENT_ROUTE_RESOLVED)
	require.NoError(t, id.Connect(c.asks.soon(), param, nil))
	c.other = c.answers.keep(c.answers.expect(rdmacm.CM_EVENT_CONNECT_REQUEST).ID)
	return c
}

func (c *connection) answer() {
	require.NoError(c.asks.t, c.other.Accept(c.answers.soon(), param, nil))
	c.asks.expect(rdmacm.CM_EVENT_CONNECT_RESPONSE)
}

func (c *connection) establish() {
	c.answer()
	require.NoError(c.asks.t, c.id.Establish())
	c.answers.expect(rdmacm.CM_EVENT_ESTABLISHED)
}

// TestSaidIsSent: the message of a call is on the wire when the call returns, even if another goroutine is sending and
// does not look for more: the program may exit next.
func TestSaidIsSent(t *testing.T) {
	for name, call := range map[string]func(c *connection) (by *side, say func() error){
		"reject": func(c *connection) (*side, func() error) {
			return c.answers, func() error { return c.other.Reject(nil) }
		},
		"accept": func(c *connection) (*side, func() error) {
			return c.answers, func() error { return c.other.Accept(c.answers.soon(), param, nil) }
		},
		"establish": func(c *connection) (*side, func() error) {
			c.answer()
			return c.asks, c.id.Establish
		},
		"disconnect": func(c *connection) (*side, func() error) {
			c.establish()
			return c.asks, func() error { return c.id.Disconnect(c.asks.soon()) }
		},
		"disconnect after the other side": func(c *connection) (*side, func() error) {
			c.establish()
			require.NoError(t, c.id.Disconnect(c.asks.soon()))
			c.answers.expect(rdmacm.CM_EVENT_DISCONNECTED)
			return c.answers, func() error { return c.other.Disconnect(c.answers.soon()) }
		},
		"destroy_id": func(c *connection) (*side, func() error) {
			c.establish()
			return c.asks, c.id.Close
		},
		"destroy_id of a request": func(c *connection) (*side, func() error) { return c.answers, c.other.Close },
	} {
		t.Run(name, func(t *testing.T) {
			by, say := call(newConnection(t))
			sent := func() uint64 { return by.fabric.HWCounters("soft0")["sent_pkts"] }
			release := device.Hold(by.fabric)
			before := sent()
			time.AfterFunc(20*time.Millisecond, release)
			require.NoError(t, say())
			assert.Greater(t, sent(), before)
		})
	}
}
