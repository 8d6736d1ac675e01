// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"bytes"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestCloseReportsLostData breaks the connection in different ways before written data has arrived. Close returns an
// error for every way of writing.
func TestCloseReportsLostData(t *testing.T) {
	breaks := map[string]func(t *testing.T, f *soft.Fabric, c, peer *Conn){
		"link down":        func(_ *testing.T, f *soft.Fabric, _, _ *Conn) { f.SetLink("soft0", false) },
		"all packets lost": func(_ *testing.T, f *soft.Fabric, _, _ *Conn) { f.SetFaults(soft.Faults{Drop: 1}) },
		"device removed":   func(_ *testing.T, f *soft.Fabric, _, _ *Conn) { f.RemoveDevice("soft0") },
		"peer's queue pair destroyed": func(t *testing.T, _ *soft.Fabric, _, peer *Conn) {
			require.NoError(t, peer.link.QP.Close())
		},
		"own queue pair in error": func(t *testing.T, _ *soft.Fabric, c, _ *Conn) {
			require.NoError(t, c.link.QP.Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
		},
		"own queue pair destroyed": func(t *testing.T, _ *soft.Fabric, c, _ *Conn) {
			require.NoError(t, c.link.QP.Close())
		},
	}
	data := bytes.Repeat([]byte("0123456789"), 20_000)
	ways := map[string]func(c *Conn) error{
		"Write":     func(c *Conn) error { _, err := c.Write(data); return err },
		"WriteLent": func(c *Conn) error { _, err := c.WriteLent(data); return err },
		"ReadFrom":  func(c *Conn) error { _, err := c.ReadFrom(bytes.NewReader(data)); return err },
		"a word":    func(c *Conn) error { _, err := c.Write(data[:10]); return err },
		"CloseWrite": func(c *Conn) error {
			if _, err := c.Write(data[:10]); err != nil {
				return err
			}
			return c.CloseWrite()
		},
	}
	eachProtocol(t, func(t *testing.T, p Protocol) {
		for breaking, broken := range breaks {
			for way, write := range ways {
				t.Run(breaking+"/"+way, func(t *testing.T) {
					f := newFabric(t, soft.Options{})
					// everything fits into the send buffer
					config := Config{Backend: f, Protocol: p, Buffer: 1 << 20, AckTimeout: 8,
						Linger: 100 * time.Millisecond}
					l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
					require.NoError(t, err)
					defer l.Close()
					c, err := dialer(config).Dial(soon(t), l.Addr().String())
					require.NoError(t, err)
					peer, err := l.AcceptRDMA(soon(t))
					require.NoError(t, err)
					defer peer.Close()
					_, err = c.Write([]byte("ok"))
					require.NoError(t, err)
					_, err = io.ReadFull(peer, make([]byte, 2))
					require.NoError(t, err)
					broken(t, f, c, peer)
					failed := write(c)
					var lost *UndeliveredError
					require.ErrorAs(t, c.Close(), &lost)
					if failed == nil {
						assert.Contains(t, []uint64{10, 10 + 2, 200_000, 200_000 + 2}, lost.Bytes, "%v", lost)
					}
					if lent := way == "WriteLent" || way == "ReadFrom"; lent {
						assert.Error(t, failed, "lent writes wait for the device")
					}
				})
			}
		}
	})
}

// TestCloseOnLossyNetwork: whenever Close returns nil, the peer has read everything and io.EOF.
func TestCloseOnLossyNetwork(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		failed := 0
		for seed := range uint64(40) {
			f := newFabric(t, soft.Options{Faults: soft.Faults{Seed: seed}})
			config := Config{Backend: f, Protocol: p, Buffer: 1 << 20, AckTimeout: 12, Linger: 100 * time.Millisecond,
				Heartbeat: 50 * time.Millisecond} // for the reader
			l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
			require.NoError(t, err)
			c, err := dialer(config).Dial(soon(t), l.Addr().String())
			require.NoError(t, err)
			peer, err := l.AcceptRDMA(soon(t))
			require.NoError(t, err)
			data := make([]byte, 200_000)
			closed := make(chan error, 1)
			f.SetFaults(soft.Faults{Seed: seed, Drop: 0.03 + float64(seed%10)/20})
			go func() {
				_, err := c.Write(data)
				if ended := c.Close(); err == nil {
					err = ended
				}
				closed <- err
			}()
			n, read := io.Copy(io.Discard, peer)
			if err := <-closed; err == nil {
				assert.NoError(t, read, "seed %d", seed)
				assert.EqualValues(t, len(data), n, "seed %d", seed)
			} else {
				failed++
			}
			f.SetFaults(soft.Faults{})
			peer.Close()
			require.NoError(t, l.Close())
		}
		t.Log(failed, "of 40 connections lost data")
	})
}

// TestCloseOfUnreadData: Close fails if the peer closed before reading everything, and reports how much is missing.
func TestCloseOfUnreadData(t *testing.T) {
	clients, servers := softPairs(t, Config{}, 1)
	_, err := clients[0].Write(make([]byte, 100))
	require.NoError(t, err)
	_, err = io.ReadFull(servers[0], make([]byte, 60))
	require.NoError(t, err)
	var lost *UndeliveredError
	closed := make(chan error, 1)
	go func() { closed <- servers[0].Close() }()
	_, err = clients[0].Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	require.ErrorAs(t, clients[0].CloseWrite(), &lost)
	assert.EqualValues(t, 40, lost.Bytes)
	require.ErrorAs(t, clients[0].Close(), &lost)
	assert.EqualValues(t, 40, lost.Bytes)
	assert.ErrorIs(t, lost, syscall.EPIPE)
	assert.NoError(t, <-closed)
}

// TestCloseAtOnce: both sides close in any order after they have read everything, and neither reports a loss.
func TestCloseAtOnce(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		clients, servers := softPairs(t, Config{Protocol: p, Buffer: 64 << 10}, 100)
		for i := range clients {
			var both sync.WaitGroup
			for _, c := range []*Conn{clients[i], servers[i]} {
				both.Go(func() {
					_, err := c.Write(make([]byte, 100*(1+i%3)))
					assert.NoError(t, err)
					_, err = io.ReadFull(c, make([]byte, 100*(1+i%3)))
					assert.NoError(t, err)
					assert.NoError(t, c.Close())
				})
			}
			both.Wait()
		}
	})
}
