// SPDX-License-Identifier: BSD-2-Clause

package promises

import (
	"context"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// connection is a pair of connected IDs of the connection manager, with memory at both ends.
type connection struct {
	t          *testing.T
	ctx        context.Context
	bufA, bufB *cm.ID
	from, to   *rdma.MR
}

// newConnection returns a connection without posted receives.
func newConnection(t *testing.T) *connection {
	c := newUnconnected(t)
	c.connect()
	return c
}

var listener *cm.ID

func newUnconnected(t *testing.T) *connection {
	backend, err := testbed.Backend()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c := &connection{t: t, ctx: ctx}
	at := netip.AddrPortFrom(netip.MustParseAddr(os.Getenv(wire.EnvAddress)), 0)
	listener, err = cm.CreateIDOn(backend, rdmacm.PS_TCP)
	c.keep(listener, err)
	require.NoError(t, listener.Bind(at))
	require.NoError(t, listener.Listen(1))
	c.bufA, err = cm.CreateIDOn(backend, rdmacm.PS_TCP)
	c.keep(c.bufA, err)
	require.NoError(t, c.bufA.ResolveAddr(ctx, netip.AddrPort{}, listener.LocalAddr(), 10*time.Second))
	require.NoError(t, c.bufA.ResolveRoute(ctx, 10*time.Second))
	_, err = c.bufA.CreateQP(nil, &ibv.QPInitAttr{QPType: ibv.QPT_RC, Cap: testbed.Caps, SQSigAll: 1}, rdma.QueueOptions{})
	require.NoError(t, err)
	c.from, err = c.bufA.RegMsgs(make([]byte, 256))
	require.NoError(t, err)
	t.Cleanup(func() { c.from.Close() })
	return c
}

func (c *connection) keep(id *cm.ID, err error) {
	c.t.Helper()
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, id.Close()) })
}

func (c *connection) connect() {
	accepted := make(chan error, 1)
	go func() {
		accepted <- func() (err error) {
			if c.bufB, _, err = listener.GetRequest(c.ctx); err != nil {
				return err
			}
			attr := ibv.QPInitAttr{QPType: ibv.QPT_RC, Cap: testbed.Caps, SQSigAll: 1}
			if _, err = c.bufB.CreateQP(nil, &attr, rdma.QueueOptions{}); err != nil {
				return err
			}
			if c.to, err = c.bufB.RegMsgs(make([]byte, 1024)); err != nil {
				return err
			}
			return c.bufB.Accept(c.ctx, nil, nil)
		}()
	}()
	_, err := c.bufA.ConnectEvent(c.ctx, nil, nil)
	require.NoError(c.t, err)
	require.NoError(c.t, <-accepted)
	c.t.Cleanup(func() { require.NoError(c.t, c.bufB.Close()) })
	c.t.Cleanup(func() { c.to.Close() })
}

func (c *connection) recv(id uint64, at int) {
	c.t.Helper()
	require.NoError(c.t, c.bufB.PostRecv(id, c.to.Bytes()[at:at+64], c.to))
}

func (c *connection) completions(sent, received uint64, length int) {
	c.t.Helper()
	wc, err := c.bufA.GetSendComp(c.ctx)
	require.NoError(c.t, err)
	assert.Equal(c.t, ibv.WC_SUCCESS, wc.Status)
	assert.Equal(c.t, sent, wc.WRID)
	wc, err = c.bufB.GetRecvComp(c.ctx)
	require.NoError(c.t, err)
	assert.Equal(c.t, ibv.WC_SUCCESS, wc.Status)
	assert.Equal(c.t, received, wc.WRID)
	assert.EqualValues(c.t, length, wc.ByteLen)
}

// TestRDMAPostSend tests the promises of rdma_post_send(3). Subtests have the names in promises.txt.
func TestRDMAPostSend(t *testing.T) {
	t.Run("message", func(t *testing.T) {
		c := newConnection(t)
		for i, text := range []string{"the contents", "of each buffer", ""} {
			c.recv(uint64(50+i), 64*i)
			n := copy(c.from.Bytes()[100:], text)
			require.NoError(t, c.bufA.PostSend(uint64(i), c.from.Bytes()[100:100+n], c.from, 0))
			c.completions(uint64(i), uint64(50+i), n)
			assert.Equal(t, text, string(c.to.Bytes()[64*i:64*i+n]))
		}
	})
	t.Run("context", func(t *testing.T) {
		c := newConnection(t)
		for _, id := range []uint64{0, 1<<64 - 1, 0xfeed_0000_0000_beef} {
			c.recv(^id, 0)
			require.NoError(t, c.bufA.PostSend(id, c.from.Bytes()[:8], c.from, 0))
			c.completions(id, ^id, 8)
		}
	})
	t.Run("inline without a region", func(t *testing.T) {
		c := newConnection(t)
		c.recv(2, 0)
		text := []byte("from memory that is not registered")
		require.NoError(t, c.bufA.PostSend(1, text, nil, ibv.SEND_INLINE))
		clear(text)
		c.completions(1, 2, len(text))
		assert.Equal(t, "from memory that is not registered", string(c.to.Bytes()[:len(text)]))
	})
	t.Run("no region", func(t *testing.T) {
		c := newConnection(t)
		c.recv(2, 0)
		err := c.bufA.PostSend(1, make([]byte, 16), nil, 0)
		require.Error(t, err, "memory that is not registered cannot be sent but inline")
	})
	t.Run("solicited", func(t *testing.T) {
		c := newConnection(t)
		c.recv(2, 0)
		require.NoError(t, c.bufA.PostSend(1, c.from.Bytes()[:8], c.from, ibv.SEND_SOLICITED|ibv.SEND_FENCE))
		c.completions(1, 2, 8)
	})
	t.Run("before the connection", func(t *testing.T) {
		c := newUnconnected(t)
		err := c.bufA.PostSend(1, c.from.Bytes()[:8], c.from, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
	})
	t.Run("errno on failure", func(t *testing.T) {
		c := newConnection(t)
		err := c.bufA.PostSend(1, c.from.Bytes()[:128], c.from, ibv.SEND_INLINE)
		require.ErrorIs(t, err, syscall.EINVAL, "more inline data than the queue pair supports")
	})
	t.Run("receive that comes late", func(t *testing.T) {
		c := newConnection(t)
		copy(c.from.Bytes(), "waits for a receive")
		require.NoError(t, c.bufA.PostSend(1, c.from.Bytes()[:19], c.from, 0))
		time.Sleep(20 * time.Millisecond)
		c.recv(2, 0)
		c.completions(1, 2, 19)
		assert.Equal(t, "waits for a receive", string(c.to.Bytes()[:19]))
	})
	t.Run("buffer after its completion", func(t *testing.T) {
		c := newConnection(t)
		for i := range 8 {
			c.recv(uint64(i), 64*i)
			c.from.Bytes()[0] = byte(i + 1)
			require.NoError(t, c.bufA.PostSend(uint64(i), c.from.Bytes()[:1], c.from, 0))
			c.completions(uint64(i), uint64(i), 1)
		}
		for i := range 8 {
			assert.EqualValues(t, i+1, c.to.Bytes()[64*i])
		}
	})
}
