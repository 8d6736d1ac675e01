// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// ends are the two ends of a connection, and what happened so far.
type ends struct {
	t               *testing.T
	ctx             context.Context
	channel         *cm.EventChannel
	to              netip.AddrPort
	listener        *cm.ID
	active, passive *cm.ID
	log             []string
}

func newEnds(t *testing.T, port uint16) *ends {
	backend, err := testbed.Backend()
	require.NoError(t, err)
	c := &ends{t: t, to: netip.AddrPortFrom(netip.MustParseAddr(os.Getenv(wire.EnvAddress)), port)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c.ctx = ctx
	c.channel, err = cm.CreateEventChannelOn(backend)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.channel.Close()) })
	return c
}

func (c *ends) id(space rdmacm.PortSpace) *cm.ID {
	id, err := c.channel.CreateID(space)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, id.Close()) })
	return id
}

func (c *ends) listen() {
	c.listener = c.id(rdmacm.PS_TCP)
	require.NoError(c.t, c.listener.Bind(c.to))
	require.NoError(c.t, c.listener.Listen(1))
}

// connect sends a request with private data.
func (c *ends) connect(private []byte) {
	c.active = c.id(rdmacm.PS_TCP)
	require.NoError(c.t, c.active.ResolveAddr(c.ctx, netip.AddrPort{}, c.to, 2*time.Second))
	c.events(1)
	require.NoError(c.t, c.active.ResolveRoute(c.ctx, 2*time.Second))
	c.events(1)
	c.queues(c.active)
	c.say("connect", c.active.Connect(c.ctx, nil, private))
}

func (c *ends) queues(id *cm.ID) {
	_, err := id.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
	require.NoError(c.t, err)
}

func (c *ends) accept(private []byte) {
	c.queues(c.passive)
	c.say("accept", c.passive.Accept(c.ctx, nil, private))
	c.events(2)
}

// connected establishes a connection and forgets its events.
func (c *ends) connected() {
	c.listen()
	c.connect(nil)
	c.events(1)
	c.accept(nil)
	c.log = nil
}

func (c *ends) say(name string, err error) { c.log = append(c.log, name+" "+errnoName(err)) }

// events records the next events, in the order of their ends, and fewer if no more come.
func (c *ends) events(n int) {
	var all []string
	for range n {
		ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
		e, err := c.channel.Event(ctx)
		cancel()
		if err != nil {
			break
		}
		side := "passive"
		switch {
		case e.Listener != nil:
			c.passive = e.ID
			c.t.Cleanup(func() { require.NoError(c.t, e.ID.Close()) })
		case e.ID == c.active:
			side = "active"
		}
		text := side + " " + strings.TrimPrefix(e.Type.String(), "RDMA_CM_EVENT_")
		if e.Status != 0 {
			text += fmt.Sprintf(" status %d", e.Status)
		}
		if e.PrivateData != nil {
			text += fmt.Sprintf(" %d bytes", len(e.PrivateData))
		}
		all = append(all, text)
	}
	slices.Sort(all)
	c.log = append(c.log, all...)
}

// drain drains the queue pair of an end.
func (c *ends) drain(id *cm.ID) {
	ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
	defer cancel()
	c.say("drain", id.QP().Drain(ctx))
}

// polled records the next completion of a queue.
func (c *ends) polled(name string, cq *rdma.CQ) {
	ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
	defer cancel()
	var wc [1]ibv.WC
	n, err := cq.Wait(ctx, wc[:])
	if err != nil || n == 0 {
		c.log = append(c.log, name+" none")
		return
	}
	c.log = append(c.log, name+" "+trim(wc[0].Status.String()))
}

// registered returns memory of an end.
func (c *ends) registered(id *cm.ID) *rdma.MR {
	mr, err := id.QP().RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_READ)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, mr.Close()) })
	return mr
}

// TestConnectionsOnIWARP measures connections, their ends and failures: the calls that fail, the events of both ends,
// and completions.
func TestConnectionsOnIWARP(t *testing.T) {
	onlyIWARP(t)
	testbed.Open(t)
	table := results.Table{Columns: []string{"case", "answer"}, Keys: 1}
	port := uint16(30000)
	for _, one := range []struct {
		name string
		do   func(*ends)
	}{
		{"no listener", func(c *ends) {
			c.connect(nil)
			c.events(1)
		}},
		{"accept", func(c *ends) {
			c.listen()
			c.connect([]byte("hello"))
			c.events(1)
			c.accept([]byte("welcome"))
		}},
		{"reject", func(c *ends) {
			c.listen()
			c.connect(nil)
			c.events(1)
			c.say("reject", c.passive.Reject([]byte("no")))
			c.events(1)
		}},
		{"255 bytes of private data", func(c *ends) {
			c.listen()
			c.connect(bytes.Repeat([]byte{1}, 255))
			if c.events(1); c.passive != nil {
				c.accept(bytes.Repeat([]byte{2}, 255))
			}
		}},
		{"disconnect, then the peer", func(c *ends) {
			c.connected()
			mr := c.registered(c.passive)
			require.NoError(c.t, c.passive.PostRecv(1, mr.Bytes(), mr))
			c.say("disconnect", c.active.Disconnect(c.ctx))
			c.events(2)
			c.polled("receive", c.passive.QP().RecvCQ())
			c.say("disconnect", c.passive.Disconnect(c.ctx))
			c.events(1)
		}},
		{"queue pair moved to ERR", func(c *ends) {
			c.connected()
			c.say("modify", c.active.QP().Modify(&ibv.QPAttr{QPState: ibv.QPS_ERR}, ibv.QP_STATE))
			c.events(2)
		}},
		{"drain", func(c *ends) {
			c.connected()
			mr, to := c.registered(c.active), c.registered(c.passive)
			require.NoError(c.t, c.active.PostRecv(1, mr.Bytes(), mr))
			for range 5 { // without a completion
				require.NoError(c.t, c.active.PostWrite(2, mr.Bytes(), mr, 0, to.Address(), to.RKey()))
			}
			c.drain(c.active)
			c.polled("receive", c.active.QP().RecvCQ())
			c.events(2)
			c.drain(c.passive)
		}},
		{"drain a queue pair that is not connected", func(c *ends) {
			c.listen()
			c.connect(nil)
			c.events(1)
			c.queues(c.passive)
			mr := c.registered(c.passive)
			require.NoError(c.t, c.passive.PostRecv(1, mr.Bytes(), mr))
			c.drain(c.passive)
			c.polled("receive", c.passive.QP().RecvCQ())
		}},
		{"send without a receive", func(c *ends) {
			c.connected()
			mr := c.registered(c.active)
			c.say("post", c.active.PostSend(1, mr.Bytes()[:8], mr, ibv.SEND_SIGNALED))
			c.polled("send", c.active.QP().SendCQ())
			c.events(2)
		}},
		{"receive too short", func(c *ends) {
			c.connected()
			mr, to := c.registered(c.active), c.registered(c.passive)
			require.NoError(c.t, c.passive.PostRecv(1, to.Bytes()[:4], to))
			c.say("post", c.active.PostSend(1, mr.Bytes()[:8], mr, ibv.SEND_SIGNALED))
			c.polled("send", c.active.QP().SendCQ())
			c.polled("receive", c.passive.QP().RecvCQ())
			c.events(2)
		}},
		{"write with a wrong key", func(c *ends) {
			c.connected()
			mr, to := c.registered(c.active), c.registered(c.passive)
			c.say("post", c.active.PostWrite(1, mr.Bytes()[:8], mr, ibv.SEND_SIGNALED, to.Address(), to.RKey()^1))
			c.polled("write", c.active.QP().SendCQ())
			c.events(2)
		}},
		{"read with a wrong key", func(c *ends) {
			c.connected()
			mr, to := c.registered(c.active), c.registered(c.passive)
			c.say("post", c.active.PostRead(1, mr.Bytes()[:8], mr, ibv.SEND_SIGNALED, to.Address(), to.RKey()^1))
			c.polled("read", c.active.QP().SendCQ())
			c.events(2)
		}},
		{"datagrams", func(c *ends) {
			id := c.id(rdmacm.PS_UDP)
			c.say("resolve", id.ResolveAddr(c.ctx, netip.AddrPort{}, c.to, 2*time.Second))
			c.events(1)
			_, err := id.CreateQP(nil, &ibv.QPInitAttr{}, rdma.QueueOptions{})
			c.say("queue pair", err)
		}},
	} {
		port++
		t.Run(one.name, func(t *testing.T) {
			c := newEnds(t, port)
			one.do(c)
			log := slices.DeleteFunc(c.log, func(s string) bool { return strings.HasSuffix(s, "_RESOLVED") })
			table.Rows = append(table.Rows, []string{one.name, strings.Join(log, "; ")})
		})
	}
	check(t, "connection", table)
}
