// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
	"github.com/goverbs/goverbs/runtime"
)

// peer is the other end of a Conn. It does not implement the protocol, but sends the messages that a test chooses.
type peer struct {
	t  *testing.T
	id *cm.ID
	link
	lent place // memory that the Conn has granted
}

const peerBuffer = 1 << 20

func timeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// meet returns a Conn and its peer, which has received the Conn's first command.
func meet(t *testing.T, server bool, config Config) (*Conn, *peer) {
	t.Helper()
	config.Backend = rdmatest.NewFabric(t, soft.Options{})
	p := &peer{t: t}
	var c *Conn
	if server {
		c = p.dial(config)
	} else {
		c = p.accept(config)
	}
	t.Cleanup(p.close)
	t.Cleanup(func() { c.Close() })
	first := p.next()
	require.Equal(t, registerXferMemory, first.opcode)
	p.lent = first.place
	return c, p
}

// dial connects the peer to a server Conn.
func (p *peer) dial(config Config) *Conn {
	l, err := config.Listen(p.t.Context(), "127.0.0.1:0")
	require.NoError(p.t, err)
	defer func() { assert.NoError(p.t, l.Close()) }()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		assert.NoError(p.t, err)
		accepted <- c
	}()
	p.id, err = cm.CreateIDOn(config.Backend, rdmacm.PS_TCP)
	require.NoError(p.t, err)
	at := l.Addr().(stream.Addr).AddrPort
	require.NoError(p.t, p.id.ResolveAddr(timeout(p.t), netip.AddrPort{}, at, time.Second))
	require.NoError(p.t, p.id.ResolveRoute(timeout(p.t), time.Second))
	require.NoError(p.t, p.open(p.id, peerBuffer))
	require.NoError(p.t, p.id.Connect(timeout(p.t), connParam(), nil))
	return (<-accepted).(*Conn)
}

// accept connects the peer to a Conn that dials it, and accepts with valkey-server's parameters.
func (p *peer) accept(config Config) *Conn {
	listener := p.listener(config.Backend)
	defer func() { assert.NoError(p.t, listener.Close()) }()
	dialed := make(chan *Conn, 1)
	go func() {
		c, err := config.Dial(timeout(p.t), listener.LocalAddr().String())
		assert.NoError(p.t, err)
		dialed <- c
	}()
	var err error
	p.id, _, err = listener.GetRequest(timeout(p.t))
	require.NoError(p.t, err)
	require.NoError(p.t, p.open(p.id, peerBuffer))
	require.NoError(p.t, p.id.Accept(timeout(p.t), &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1,
		RetryCount: 5}, nil))
	return <-dialed
}

func (p *peer) listener(backend runtime.Backend) *cm.ID {
	listener, err := cm.CreateIDOn(backend, rdmacm.PS_TCP)
	require.NoError(p.t, err)
	require.NoError(p.t, listener.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	require.NoError(p.t, listener.Listen(1))
	return listener
}

func (p *peer) close() {
	_ = librdmacm.Disconnect(p.id.C())
	assert.NoError(p.t, p.link.close())
	assert.NoError(p.t, p.id.Close())
}

// receive waits for the next completion of a receive.
func (p *peer) receive() ibv.WC {
	wcs := make([]ibv.WC, 1)
	for {
		_, err := p.cq.Wait(timeout(p.t), wcs)
		require.NoError(p.t, err)
		require.Equal(p.t, ibv.WC_SUCCESS, wcs[0].Status)
		if wcs[0].WRID&recvBit != 0 {
			return wcs[0]
		}
	}
}

// receiveSend waits until a send has completed.
func (p *peer) receiveSend() {
	wcs := make([]ibv.WC, 1)
	for wcs[0].WRID = recvBit; wcs[0].WRID&recvBit != 0; {
		_, err := p.cq.Wait(timeout(p.t), wcs)
		require.NoError(p.t, err)
	}
}

// next waits for the next command.
func (p *peer) next() command {
	wc := p.receive()
	require.Equal(p.t, ibv.WC_RECV, wc.Opcode)
	name, err := parse(p.command(wc.WRID&^recvBit, wc.ByteLen))
	require.NoError(p.t, err)
	return name
}

// send sends bytes as a command.
func (p *peer) send(b []byte) {
	p.sends.Reset()
	p.sends.Send(0).Inline(b).Signaled()
	_, err := p.qp.PostSend(p.sends)
	require.NoError(p.t, err)
}

func (p *peer) sendCommand(cmd command) {
	b := cmd.marshal()
	p.send(b[:])
}

// write writes n bytes at an offset of the memory that the Conn has granted, and announces a number of bytes.
func (p *peer) write(offset, n, announced uint32) {
	p.sends.Reset()
	p.sends.WriteImm(0, p.lent.address+uint64(offset), p.lent.key, ibv.ToBE32(announced)).
		Add(p.ringMR.SGE(0, n)).Signaled()
	_, err := p.qp.PostSend(p.sends)
	require.NoError(p.t, err)
}

// lend grants the Conn memory.
func (p *peer) lend() {
	p.sendCommand(command{opcode: registerXferMemory,
		place: place{p.ringMR.Address(), uint32(p.ring.Len()), p.ringMR.RKey()}})
}
