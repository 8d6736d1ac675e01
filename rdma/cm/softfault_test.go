// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftFaults: messages of the connection manager are lost, late, and come twice. Each side sees each event once, in
// order, all the same; only the order of RTU and DREQ at the accepting side is open.
func TestSoftFaults(t *testing.T) {
	for seed := range uint64(150) {
		for name, faults := range map[string]soft.Faults{
			"drop": {Drop: 0.4}, "duplicate": {Duplicate: 0.8}, "delay": {Delay: 0.5, Late: 10 * time.Second},
			"all": {Drop: 0.3, Duplicate: 0.4, Delay: 0.4, Late: 3 * time.Second},
		} {
			faults.Seed = seed
			t.Run(fmt.Sprint(name, seed), func(t *testing.T) {
				s := newStage(t, rdmacm.PS_TCP)
				s.listen(1)
				id := s.withQP(s.resolved())
				s.f.SetFaults(faults)
				require.NoError(t, id.Connect(soon(t), nil, []byte("hello")))
				other := s.taken()
				require.NoError(t, other.Accept(soon(t), nil, []byte("welcome")))
				s.fine(s.here, rdmacm.CM_EVENT_ESTABLISHED)
				s.fine(s.there, rdmacm.CM_EVENT_ESTABLISHED)
				require.NoError(t, id.Disconnect(soon(t)))
				s.fine(s.there, rdmacm.CM_EVENT_DISCONNECTED)
				require.NoError(t, other.Disconnect(soon(t)))
				s.fine(s.here, rdmacm.CM_EVENT_DISCONNECTED)
				s.fine(s.there, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
				s.fine(s.here, rdmacm.CM_EVENT_TIMEWAIT_EXIT)
			})
			if t.Failed() {
				return
			}
		}
	}
}

// TestSoftLookupFaults is the same of datagrams.
func TestSoftLookupFaults(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newStage(t, rdmacm.PS_UDP)
			s.listen(1)
			id := s.withQP(s.resolved())
			s.f.SetFaults(soft.Faults{Seed: seed, Drop: 0.3, Duplicate: 0.4, Delay: 0.4, Late: 3 * time.Second})
			require.NoError(t, id.Connect(soon(t), nil, nil))
			other := s.taken()
			require.NoError(t, other.Accept(soon(t), &rdmacm.ConnParam{QPNum: other.QP().Num()}, []byte("here")))
			e := s.event(s.here, rdmacm.CM_EVENT_ESTABLISHED)
			assert.Equal(t, other.QP().Num(), e.UD.QPNum)
			assert.Equal(t, append([]byte("here"), make([]byte, 132)...), e.PrivateData)
		})
	}
}

// eachProtocol runs a test of streams on every protocol that they speak.
func eachProtocol(t *testing.T, test func(t *testing.T, p Protocol)) {
	for name, p := range map[string]Protocol{"stream": Stream, "rsocket": RSocket} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, p)
		})
	}
}

// TestSoftStreamOverABadNetwork: a stream delivers all the same.
func TestSoftStreamOverABadNetwork(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		f := newFabric(t,
			soft.Options{CMResponse: 100 * time.Millisecond,
				Faults: soft.Faults{Seed: 3, Drop: 0.02, Duplicate: 0.05, Delay: 0.05, Late: time.Millisecond}})
		config := &Config{Backend: f, Protocol: p, Buffer: 64 << 10, AckTimeout: 10}
		l, err := config.Listen(soon(t), "127.0.0.1:0")
		keep(t, l, err)
		data := bytes.Repeat([]byte("0123456789abcdef"), 1<<15)
		sent := make(chan error, 1)
		go func() {
			c, err := config.Dial(soon(t), l.Addr().String())
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

// TestSoftProgramsThatNeverAnswer: with a clock that goes on, they are waited for as long as all attempts together
// take.
func TestSoftProgramsThatNeverAnswer(t *testing.T) {
	s := newStageOn(t, rdmacm.PS_TCP, soft.Options{CMResponse: 5 * time.Millisecond})
	s.listen(1)
	s.asked()
	start := time.Now()
	other := s.taken()
	s.event(s.here, rdmacm.CM_EVENT_UNREACHABLE)
	assert.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
	require.NoError(t, other.Close())

	// this program answers, within 17 of those
	s = newStageOn(t, rdmacm.PS_TCP, soft.Options{CMResponse: 100 * time.Millisecond})
	s.listen(1)
	s.connect()
	require.NoError(t, s.client.Disconnect(soon(t)))
	s.event(s.there, rdmacm.CM_EVENT_DISCONNECTED)
	assert.Negative(t, s.event(s.here, rdmacm.CM_EVENT_DISCONNECTED).Status)
}

// TestSoftStreamPeerVanishes: a link that goes down, or a device that is taken away, in the middle of a transfer is an
// error of writes, and with a heartbeat of reads.
func TestSoftStreamPeerVanishes(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		for name, vanish := range map[string]func(*soft.Fabric){
			"link":   func(f *soft.Fabric) { f.SetLink("soft0", false) },
			"device": func(f *soft.Fabric) { f.RemoveDevice("soft0") },
		} {
			t.Run(name, func(t *testing.T) {
				f := newFabric(t, soft.Options{})
				config := &Config{Backend: f, Protocol: p, Buffer: 64 << 10, AckTimeout: 8,
					Heartbeat: 20 * time.Millisecond, Linger: 50 * time.Millisecond}
				l, err := config.Listen(soon(t), "127.0.0.1:0")
				keep(t, l, err)
				wrote := make(chan error, 1)
				go func() {
					c, err := config.Dial(soon(t), l.Addr().String())
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
				assert.Less(t, time.Since(start), 5*time.Second)
				t.Log(err)
				c.Close()
			})
		}
	})
}

// TestSoftPeerVanishesWhileWriteWaits: a Write that waits for room notices it too, without heartbeats, though all that
// was sent has arrived.
func TestSoftPeerVanishesWhileWriteWaits(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		f := newFabric(t, soft.Options{})
		config := &Config{Backend: f, Protocol: p, Buffer: 64 << 10, AckTimeout: 8, Linger: 50 * time.Millisecond}
		l, err := config.Listen(soon(t), "127.0.0.1:0")
		keep(t, l, err)
		c, err := config.Dial(soon(t), l.Addr().String())
		require.NoError(t, err)
		peer, err := l.AcceptRDMA(soon(t))
		keep(t, peer, err)
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(make([]byte, 1<<20))
			wrote <- err
		}()
		require.Never(t, func() bool { return len(wrote) > 0 }, 2*probeAfter+probeAfter/2, 100*time.Millisecond,
			"the peer answers, though nobody reads")
		f.SetLink("soft0", false)
		select {
		case err := <-wrote:
			assert.ErrorIs(t, err, verberr.ETIMEDOUT)
		case <-soon(t).Done():
			t.Error("Write did not return")
		}
		assert.ErrorIs(t, c.Close(), verberr.ETIMEDOUT)
	})
}

// TestSoftMemoryRunsOut: whichever allocation fails, it is an error or the same as ever, and nothing is left.
func TestSoftMemoryRunsOut(t *testing.T) {
	eachProtocol(t, func(t *testing.T, p Protocol) {
		failed := 0
		for nth := 1; ; nth++ {
			f, err := soft.New(soft.Options{})
			require.NoError(t, err)
			f.SetFaults(soft.Faults{FailAllocation: nth})
			err = func() error {
				config := &Config{Backend: f, Protocol: p, Buffer: 4 << 10, HandshakeTimeout: 500 * time.Millisecond,
					Linger: 50 * time.Millisecond}
				l, err := config.Listen(soon(t), "127.0.0.1:0")
				if err != nil {
					return err
				}
				accepted := make(chan *Conn, 1)
				go func() {
					c, _ := l.AcceptRDMA(soon(t))
					accepted <- c
				}()
				c, err := config.Dial(soon(t), l.Addr().String())
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
		t.Log(failed, "allocations are errors")
	})
}
