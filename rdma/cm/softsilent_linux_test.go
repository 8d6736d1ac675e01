// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
)

func wireAt(t *testing.T, address string) *soft.Fabric {
	t.Helper()
	f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr(address), Wire: true}}})
	return keep(t, f, err)
}

// TestSoftSilentPeers accepts 400 streams whose peers send nothing, by the software wire: their rings of 2 MiB take no
// memory before something is written into them.
func TestSoftSilentPeers(t *testing.T) {
	here, there := wireAt(t, "127.0.83.1"), wireAt(t, "127.0.83.2")
	const peers = 400
	l, err := (&Config{Backend: here}).Listen(soon(t), "127.0.83.1:0")
	keep(t, l, err)
	var all []*Conn
	before := weigh(t)
	for range peers {
		c, err := (&Config{Backend: there, Buffer: 4 << 10}).Dial(soon(t), l.Addr().String())
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
