// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"bytes"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
)

// eachProtocol runs a test with each protocol.
func eachProtocol(t *testing.T, test func(t *testing.T, p Protocol)) {
	for name, p := range map[string]Protocol{"stream": Stream, "rsocket": RSocket} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// TestSoftStreamOverBadNetwork: a stream delivers all data over a lossy network.
func TestSoftStreamOverBadNetwork(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		f := newFabric(t,
			soft.Options{CMResponse: 100 * time.Millisecond,
				Faults: soft.Faults{Seed: 3, Drop: 0.02, Duplicate: 0.05, Delay: 0.05, Late: time.Millisecond}})
		config := Config{Backend: f, Protocol: p, Buffer: 64 << 10, AckTimeout: 10}
		l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
		keep(t, l, err)
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<15)
		sent := make(chan error, 1)
		go func() {
			c, err := dialer(config).Dial(soon(t), l.Addr().String())
			if err == nil {
				_, err = c.Write(data)
			}
			if err == nil {
				err = c.Close()
			}
			sent <- err
		}()
		c, err := l.AcceptRDMA(soon(t))
		require.NoError(t, err)
		got, err := io.ReadAll(c)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(data, got))
		require.NoError(t, <-sent)
		require.NoError(t, c.Close())
	})
}

// TestSoftStreamPeerVanishes: if a link goes down or a device is removed during a transfer, writes fail. With
// heartbeats, reads fail, too.
func TestSoftStreamPeerVanishes(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		for name, vanish := range map[string]func(*soft.Fabric){
			"link":   func(f *soft.Fabric) { f.SetLink("soft0", false) },
			"device": func(f *soft.Fabric) { f.RemoveDevice("soft0") },
		} {
			t.Run(name, func(t *testing.T) {
				f := newFabric(t, soft.Options{})
				config := Config{Backend: f, Protocol: p, Buffer: 64 << 10, AckTimeout: 8,
					Heartbeat: 20 * time.Millisecond, Linger: 50 * time.Millisecond}
				l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
				keep(t, l, err)
				wrote := make(chan error, 1)
				go func() {
					c, err := dialer(config).Dial(soon(t), l.Addr().String())
					for err == nil {
						_, err = c.Write(make([]byte, 10_000))
					}
					c.Close()
					wrote <- err
				}()
				c, err := l.AcceptRDMA(soon(t))
				require.NoError(t, err)
				_, err = io.CopyN(io.Discard, c, 1<<20)
				require.NoError(t, err)
				start := time.Now()
				vanish(f)
				_, err = io.Copy(io.Discard, c)
				assert.Error(t, err)
				assert.Error(t, <-wrote)
				assert.Less(t, time.Since(start), 20*time.Second)
				t.Log(err)
				c.Close()
			})
		}
	})
}

// TestSoftPeerVanishesWhileWriteWaits: a Write that waits for room detects a vanished peer without heartbeats, even if
// the peer has acknowledged all data sent so far.
func TestSoftPeerVanishesWhileWriteWaits(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		f := newFabric(t, soft.Options{})
		config := Config{Backend: f, Protocol: p, Buffer: 64 << 10, AckTimeout: 8, Linger: 50 * time.Millisecond}
		l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
		keep(t, l, err)
		c, err := dialer(config).Dial(soon(t), l.Addr().String())
		require.NoError(t, err)
		peer, err := l.AcceptRDMA(soon(t))
		keep(t, peer, err)
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, 1<<20))
			wrote <- err
		}()
		require.Never(t, func() bool { return len(wrote) > 0 }, 2*probeAfter+probeAfter/2, 100*time.Millisecond,
			"the peer's device answers even if its program does not read")
		f.SetLink("soft0", false)
		select {
		case err := <-wrote:
			assert.ErrorIs(t, err, syscall.ETIMEDOUT)
		case <-soon(t).Done():
			t.Error("Write did not return")
		}
		assert.ErrorIs(t, c.Close(), syscall.ETIMEDOUT)
	})
}

// TestSoftMemoryRunsOut: a failed allocation causes an error or no difference, and leaks nothing.
func TestSoftMemoryRunsOut(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		failed := 0
		for nth := 1; ; nth++ {
			f, err := soft.New(soft.Options{})
			require.NoError(t, err)
			f.SetFaults(soft.Faults{FailAllocation: nth})
			err = func() error {
				config := Config{Backend: f, Protocol: p, Buffer: 4 << 10, HandshakeTimeout: 500 * time.Millisecond,
					Linger: 50 * time.Millisecond}
				l, err := listening(config).Listen(soon(t), "127.0.0.1:0")
				if err != nil {
					return err
				}
				accepted := make(chan *Conn, 1)
				go func() {
					c, _ := l.AcceptRDMA(soon(t))
					accepted <- c
				}()
				c, err := dialer(config).Dial(soon(t), l.Addr().String())
				if err == nil {
					c.Close()
				}
				if err2 := l.Close(); err == nil {
					err = err2
				}
				if c := <-accepted; c != nil {
					c.Close()
				}
				return err
			}()
			assert.Empty(t, f.Resources(), "allocation %d: %v", nth, err)
			if err != nil {
				failed++
			}
			require.NoError(t, f.Close(), "allocation %d: %v", nth, err)
			if nth > 70 {
				break
			}
		}
		assert.Greater(t, failed, 15)
		t.Log(failed, "failed allocations caused errors")
	})
}
