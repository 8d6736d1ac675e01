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

// endpoint is a fabric with its own address, and an event channel on it.
type endpoint struct {
	t       *testing.T
	fabric  *device.Fabric
	channel *cm.EventChannel
}

func newEndpoint(t *testing.T, address netip.Addr) *endpoint {
	f, err := device.New(device.Options{Devices: []device.DeviceOptions{
		{Name: "soft0", Address: address, Wire: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, f.Close()) })
	f.Manage(softcm.New(f, 0))
	ch, err := cm.CreateEventChannelOn(f)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ch.Close()) })
	return &endpoint{t, f, ch}
}

func (s *endpoint) timeout() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *endpoint) expect(want rdmacm.CMEventType) cm.Event {
	s.t.Helper()
	e, err := s.channel.Event(s.timeout())
	require.NoError(s.t, err)
	require.Equal(s.t, want, e.Type)
	return e
}

func (s *endpoint) keep(id *cm.ID) *cm.ID {
	s.t.Cleanup(func() { assert.NoError(s.t, id.Close()) })
	return id
}

// connection is a connection that is being established, with the IDs of both sides.
type connection struct {
	active, passive *endpoint
	id, other       *cm.ID
}

var param = &rdmacm.ConnParam{QPNum: 99} // of a queue pair that does not exist

func newConnection(t *testing.T) *connection {
	pid := os.Getpid() // tests of other processes may run concurrently
	own := netip.AddrFrom4([4]byte{127, 64 + byte(pid>>16)%64, byte(pid >> 8), byte(pid)})
	other := netip.AddrFrom4([4]byte{127, 128 + byte(pid>>16)%64, byte(pid >> 8), byte(pid)})
	c := &connection{active: newEndpoint(t, own), passive: newEndpoint(t, other)}
	l, err := c.passive.channel.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	at := netip.AddrPortFrom(other, 7471)
	require.NoError(t, c.passive.keep(l).Bind(at))
	require.NoError(t, l.Listen(1))
	id, err := c.active.channel.CreateID(rdmacm.PS_TCP)
	require.NoError(t, err)
	c.id = c.active.keep(id)
	require.NoError(t, id.ResolveAddr(c.active.timeout(), netip.AddrPort{}, at, time.Second))
	c.active.expect(rdmacm.CM_EVENT_ADDR_RESOLVED)
	require.NoError(t, id.ResolveRoute(c.active.timeout(), time.Second))
	c.active.expect(rdmacm.CM_EVENT_ROUTE_RESOLVED)
	require.NoError(t, id.Connect(c.active.timeout(), param, nil))
	c.other = c.passive.keep(c.passive.expect(rdmacm.CM_EVENT_CONNECT_REQUEST).ID)
	return c
}

func (c *connection) answer() {
	require.NoError(c.active.t, c.other.Accept(c.passive.timeout(), param, nil))
	c.active.expect(rdmacm.CM_EVENT_CONNECT_RESPONSE)
}

func (c *connection) establish() {
	c.answer()
	require.NoError(c.active.t, c.id.Establish())
	c.passive.expect(rdmacm.CM_EVENT_ESTABLISHED)
}

// TestMessagesAreSentBeforeReturn: when a call returns, its message is on the wire, even if another goroutine is
// sending, because the program may exit next.
func TestMessagesAreSentBeforeReturn(t *testing.T) {
	for name, call := range map[string]func(c *connection) (by *endpoint, send func() error){
		"reject": func(c *connection) (*endpoint, func() error) {
			return c.passive, func() error { return c.other.Reject(nil) }
		},
		"accept": func(c *connection) (*endpoint, func() error) {
			return c.passive, func() error { return c.other.Accept(c.passive.timeout(), param, nil) }
		},
		"establish": func(c *connection) (*endpoint, func() error) {
			c.answer()
			return c.active, c.id.Establish
		},
		"disconnect": func(c *connection) (*endpoint, func() error) {
			c.establish()
			return c.active, func() error { return c.id.Disconnect(c.active.timeout()) }
		},
		"disconnect after the peer": func(c *connection) (*endpoint, func() error) {
			c.establish()
			require.NoError(t, c.id.Disconnect(c.active.timeout()))
			c.passive.expect(rdmacm.CM_EVENT_DISCONNECTED)
			return c.passive, func() error { return c.other.Disconnect(c.passive.timeout()) }
		},
		"destroy_id": func(c *connection) (*endpoint, func() error) {
			c.establish()
			return c.active, c.id.Close
		},
		"destroy_id of a request": func(c *connection) (*endpoint, func() error) { return c.passive, c.other.Close },
	} {
		t.Run(name, func(t *testing.T) {
			by, send := call(newConnection(t))
			sent := func() uint64 { return by.fabric.HWCounters("soft0")["sent_pkts"] }
			release := device.Hold(by.fabric)
			before := sent()
			time.AfterFunc(20*time.Millisecond, release)
			require.NoError(t, send())
			assert.Greater(t, sent(), before)
		})
	}
}
