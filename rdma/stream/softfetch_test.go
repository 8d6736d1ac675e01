// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// apart returns a stream from soft0 to soft1. Its sides have separate completion queues.
func apart(t *testing.T, config Config, before ...func(f *soft.Fabric)) (f *soft.Fabric, client, server *Conn) {
	t.Helper()
	f = newFabric(t, soft.Options{})
	config.Backend = f
	for _, do := range before {
		do(f)
	}
	l, err := listening(config).Listen(soon(t), "127.0.0.2:0")
	keep(t, l, err)
	dialled := make(chan *Conn, 1)
	go func() {
		d := Dialer{Config: config, LocalAddr: netip.MustParseAddrPort("127.0.0.1:0")}
		c, err := d.Dial(soon(t), l.Addr().String())
		assert.NoError(t, err)
		dialled <- c
	}()
	server, err = l.AcceptRDMA(soon(t))
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	client = <-dialled
	require.NotNil(t, client)
	t.Cleanup(func() { client.Close() })
	return f, client, server
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{3}).Read(b)
	return b
}

// fetched returns the number of pieces that a side has read from the other's memory.
func (c *Conn) fetched() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.protocol.(*protocol.Stream).Fetched
}

// TestSoftDevicesWithoutReads: streams fetch only if the devices of both ends support reads.
func TestSoftDevicesWithoutReads(t *testing.T) {
	sent := randomBytes(1 << 20)
	for ours := range uint8(2) {
		for theirs := range uint8(2) {
			t.Run(fmt.Sprint(ours, theirs), func(t *testing.T) {
				_, client, server := apart(t, Config{}, func(f *soft.Fabric) {
					id, err := cm.CreateIDOn(f, rdmacm.PS_TCP)
					keep(t, id, err)
					require.NoError(t, id.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
					s, err := share(id)
					require.NoError(t, err)
					s.reads = &protocol.Reads{Ours: ours, Theirs: theirs}
					t.Cleanup(func() { assert.NoError(t, s.leave()) })
				})
				var both sync.WaitGroup
				for _, c := range []*Conn{client, server} {
					both.Go(func() {
						_, err := c.Write(sent)
						assert.NoError(t, err)
						assert.NoError(t, c.CloseWrite())
					})
					both.Go(func() {
						got, err := io.ReadAll(struct{ io.Reader }{c})
						assert.NoError(t, err)
						assert.True(t, bytes.Equal(sent, got))
					})
				}
				both.Wait()
				assert.Equal(t, ours > 0, client.fetched() > 0)
				assert.Equal(t, theirs > 0, server.fetched() > 0)
				assert.Equal(t, ours > 0,
					len(client.protocol.Hello()) > len(protocol.StreamHello(protocol.MinBuffer)),
					"announces that it reads")
				attr, _, err := client.link.QP.Query(ibv.QP_MAX_QP_RD_ATOMIC | ibv.QP_MAX_DEST_RD_ATOMIC)
				require.NoError(t, err)
				assert.Equal(t, [2]uint8{ours, theirs}, [2]uint8{attr.MaxRdAtomic, attr.MaxDestRdAtomic})
			})
		}
	}
}

// TestSoftCloseWaitsForFetches: Close waits while the peer may still read this side's memory, even if the peer ended
// its writes long before.
func TestSoftCloseWaitsForFetches(t *testing.T) {
	_, client, server := apart(t, Config{Linger: time.Minute})
	require.NoError(t, server.CloseWrite())
	_, err := client.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	sent := randomBytes(200 << 10)
	server.mu.Lock() // stops handling of messages
	_, err = client.Write(sent)
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- client.Close() }()
	select {
	case err = <-closed:
		t.Errorf("closed (%v) before the peer fetched all offers", err)
	case <-time.After(100 * time.Millisecond):
	}
	server.mu.Unlock()
	got, err := io.ReadAll(struct{ io.Reader }{server})
	require.NoError(t, err)
	assert.True(t, bytes.Equal(sent, got))
	assert.NotZero(t, server.fetched())
	if !t.Failed() {
		require.NoError(t, <-closed)
	}
}

// TestSoftPeersWithoutFetches: if a peer does not fetch, a Write waits until its deadline, as if the peer did not read.
// When the peer vanishes, Write fails, and all memory is released, including memory that the peer may have been
// reading.
func TestSoftPeersWithoutFetches(t *testing.T) {
	f, client, server := apart(t, Config{AckTimeout: 13, Linger: 10 * time.Millisecond})
	server.mu.Lock()
	defer server.mu.Unlock()
	_, err := client.Write(make([]byte, 200<<10)) // fits
	require.NoError(t, err)
	require.NoError(t, client.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	n, err := client.Write(make([]byte, 16<<20))
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.Less(t, n, 16<<20)
	client.mu.Lock()
	assert.True(t, client.link.Offered())
	client.mu.Unlock()
	require.NoError(t, client.SetWriteDeadline(time.Time{}))
	f.SetLink("soft1", false)
	_, err = client.Write(make([]byte, 1<<20))
	assert.Error(t, err)
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	var lost *UndeliveredError
	assert.ErrorAs(t, client.Close(), &lost)
	assert.NotZero(t, lost.Bytes)
}

// TestSoftPeersVanishDuringReads: if the peer vanishes during a fetch, Read returns the data that arrived before, and
// then an error.
func TestSoftPeersVanishDuringReads(t *testing.T) {
	f, client, server := apart(t, Config{AckTimeout: 13, Linger: 10 * time.Millisecond})
	sent := randomBytes(200 << 10)
	server.mu.Lock() // stops handling of messages
	_, err := client.Write(sent)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		client.mu.Lock()
		defer client.mu.Unlock()
		return client.link.Completed > 0 // the offer, the first message, has arrived
	}, time.Minute, time.Millisecond)
	f.SetLink("soft0", false)
	server.mu.Unlock()
	got, err := io.ReadAll(struct{ io.Reader }{server})
	assert.ErrorIs(t, err, syscall.ETIMEDOUT)
	assert.Less(t, len(got), len(sent))
	assert.True(t, bytes.HasPrefix(sent, got))
	assert.NoError(t, server.Close())
}
