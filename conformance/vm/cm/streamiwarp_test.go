// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/stream"
)

// onIWARP skips the test on other transports, and returns the ends of connections on the guest's device.
func onIWARP(t *testing.T) ends {
	t.Helper()
	inGuest(t, "it needs Soft-iWARP")
	list, err := getDevices()
	require.NoError(t, err)
	defer list.Close()
	if list.Devices[0].Info().Transport != ibv.TRANSPORT_IWARP {
		t.Skip("the device has another transport; make vm WHAT=siw runs this")
	}
	ip := netip.MustParseAddr(os.Getenv(wire.EnvAddress))
	return ends{backend: backend(), own: ip, theirs: ip}
}

// TestStreamOnIWARP sends data both ways between two streams, in pieces that are sent inline, staged and offered.
func TestStreamOnIWARP(t *testing.T) {
	e := onIWARP(t)
	for name, protocol := range map[string]stream.Protocol{"stream": stream.Stream, "rsocket": stream.RSocket} {
		t.Run(name, func(t *testing.T) {
			config := stream.Config{Backend: e.backend, Protocol: protocol, HandshakeTimeout: opTimeout}
			l, err := listenConfig(config).Listen(withTimeout(t), netip.AddrPortFrom(e.own, 0).String())
			keep(t, l, err)
			served := make(chan error, 1)
			go func() {
				conn, err := l.AcceptRDMA(withTimeout(t))
				if err != nil {
					served <- err
					return
				}
				_ = conn.SetDeadline(time.Now().Add(opTimeout))
				_, err = io.Copy(conn, conn)
				if closed := conn.Close(); err == nil {
					err = closed
				}
				served <- err
			}()
			conn, err := dialer(config).Dial(withTimeout(t), l.Addr().String())
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
			for _, n := range []int{1, 64, 65, 1000, 1 << 16, 1 << 20} {
				sent, got := bytes.Repeat([]byte{byte(n), 2, 3, 5, 7}, n/5+1)[:n], make([]byte, n)
				wrote := make(chan error, 1)
				go func() {
					_, err := conn.Write(sent)
					wrote <- err
				}()
				_, err := io.ReadFull(conn, got)
				require.NoError(t, err, "%d bytes", n)
				require.NoError(t, <-wrote)
				require.True(t, bytes.Equal(sent, got), "%d bytes", n)
			}
			require.NoError(t, conn.CloseWrite())
			_, err = conn.Read(make([]byte, 1))
			assert.ErrorIs(t, err, io.EOF)
			assert.NoError(t, conn.Close())
			assert.NoError(t, <-served)
		})
	}
}

// TestRSocketOnIWARP: C's rstream exchanges data with streams, as a client and as a server.
func TestRSocketOnIWARP(t *testing.T) {
	e := onIWARP(t)
	l, err := listenConfig(rsocketOn(e)).Listen(withTimeout(t), netip.AddrPortFrom(e.own, 7501).String())
	keep(t, l, err)
	for i, s := range []streamTest{{"b", 64, 10, 1}, {"b", 1000, 2, 50}, {"b", 1 << 16, 1, 5}} {
		c := run(t, "rstream", s.args("7501", "-s", e.own.String(), "-k", "1")...)
		conn, err := l.AcceptRDMA(withTimeout(t))
		require.NoError(t, err, "%s", &c.out)
		require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
		require.NoError(t, s.run(conn, false), "%+v: %s", s, &c.out)
		assert.NoError(t, conn.Close())
		c.ended(t)

		port := strconv.Itoa(7502 + i)
		c = run(t, "rstream", s.args(port, "-b", e.theirs.String())...)
		conn = retry(t, func() (*stream.Conn, error) {
			return dialer(rsocketOn(e)).Dial(withTimeout(t), net.JoinHostPort(e.theirs.String(), port))
		})
		require.NoError(t, conn.SetDeadline(time.Now().Add(opTimeout)))
		require.NoError(t, s.run(conn, true), "%+v: %s", s, &c.out)
		assert.NoError(t, conn.Close())
		c.ended(t)
	}
}
