// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

func wireAt(t *testing.T, address string) *soft.Fabric {
	t.Helper()
	f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr(address), Wire: true}}})
	return keep(t, f, err)
}

// TestSoftSilentPeers accepts 400 streams over the software wire whose peers send nothing. Their 2 MiB rings use no
// memory until data is written into them.
func TestSoftSilentPeers(t *testing.T) {
	here, there := wireAt(t, "127.0.83.1"), wireAt(t, "127.0.83.2")
	const peers = 400
	l, err := listening(Config{Backend: here}).Listen(soon(t), "127.0.83.1:0")
	keep(t, l, err)
	var all []*Conn
	before := weigh(t)
	for range peers {
		c, err := dialer(Config{Backend: there, Buffer: 4 << 10}).Dial(soon(t), l.Addr().String())
		require.NoError(t, err)
		server, err := l.AcceptRDMA(soon(t))
		require.NoError(t, err)
		all = append(all, server, c)
	}
	grown := weigh(t).resident - before.resident
	t.Logf("%d bytes for each", grown/peers)
	assert.Less(t, grown, peers*512<<10)
	_, err = all[1].Write([]byte("a word"))
	require.NoError(t, err)
	word := make([]byte, 6)
	_, err = all[0].Read(word)
	require.NoError(t, err)
	assert.Equal(t, "a word", string(word))
	for _, c := range all {
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		select {
		case <-closed:
		case <-time.After(tooLong):
			t.Fatal("Close does not return")
		}
	}
}

// TestSoftForgedRequest: a listener accepts a request whose queue pair does not exist, and Accept never returns it.
func TestSoftForgedRequest(t *testing.T) {
	f := newFabric(t, soft.Options{})
	config := Config{Backend: f, AckTimeout: 8}
	l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
	keep(t, l, err)
	id, err := cm.CreateIDOn(f, rdmacm.PS_TCP)
	keep(t, id, err)
	require.NoError(t, id.ResolveAddr(soon(t), netip.AddrPort{}, l.Addr().(Addr).AddrPort, time.Second))
	require.NoError(t, id.ResolveRoute(soon(t), time.Second))
	param := cm.DefaultConnParam()
	param.QPNum = 0xabcdef
	_, err = id.ConnectEvent(soon(t), &param, protocol.StreamHello(protocol.MinBuffer))
	require.NoError(t, err)
	require.NoError(t, id.Establish())
	c, err := dialer(config).Dial(soon(t), l.Addr().String())
	keep(t, c, err)
	accepted, err := l.AcceptRDMA(soon(t))
	require.NoError(t, err)
	assert.Equal(t, c.LocalAddr(), accepted.RemoteAddr())
	assert.NoError(t, accepted.Close())
	e, err := id.Event(soon(t))
	require.NoError(t, err)
	assert.Equal(t, rdmacm.CM_EVENT_DISCONNECTED, e.Type, "the request is dropped")
	assert.Eventually(t, func() bool { return l.places.Taken() == 0 }, tooLong, time.Millisecond)
}
