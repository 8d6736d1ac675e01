// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHostilePeers checks that every protocol violation ends the connection with an error that describes it.
func TestHostilePeers(t *testing.T) {
	lend := func(address uint64, length uint32) func(p *peer) {
		return func(p *peer) { p.sendCommand(command{opcode: registerXferMemory, place: place{address, length, 1}}) }
	}
	bytes := func(b ...byte) func(p *peer) { return func(p *peer) { p.send(b) } }
	complete := func(opcode byte) func(p *peer) {
		return func(p *peer) { p.send(append([]byte{0, opcode}, make([]byte, commandSize-2)...)) }
	}
	piece := uint32(MinBuffer / pieces)
	both, clients, servers := []bool{false, true}, []bool{false}, []bool{true}
	for name, test := range map[string]struct {
		do   func(p *peer)
		to   []bool // roles of the Conn: server or client
		want string
	}{
		"an empty command":                {bytes(), both, "a command of 0 bytes"},
		"half a command":                  {bytes(0, 3), both, "a command of 2 bytes"},
		"an unknown opcode":               {complete(4), both, "unknown opcode 4"},
		"no memory":                       {lend(4096, 0), both, "lends 0 bytes"},
		"memory beyond the address space": {lend(^uint64(0), 64<<10), both, "at 0xffffffffffffffff"},
		"more than there is room for, announced": {func(p *peer) { p.write(0, 1, piece+1) }, both,
			"announced 4097 bytes, wrote 1"},
		"more than there is room for, in steps": {func(p *peer) {
			p.write(0, piece-1, piece-1)
			p.write(0, 2, 2) // the next piece has not been granted
		}, both, "wrote 2 bytes, has room for 1"},
		"less than announced":         {func(p *peer) { p.write(0, 10, 20) }, both, "announced 20 bytes, wrote 10"},
		"more than announced":         {func(p *peer) { p.write(0, 20, 10) }, both, "announced 10 bytes, wrote 20"},
		"an answer without a request": {complete(byte(getServerFeature)), clients, "answers no request"},
		"a server sets features":      {complete(byte(setClientFeature)), clients, "sets features 0x0"},
		"undefined features": {func(p *peer) { p.sendCommand(command{opcode: setClientFeature, features: 1}) },
			servers, "sets features 0x1"},
	} {
		for _, server := range test.to {
			t.Run(name+map[bool]string{false: ", to a client", true: ", to a server"}[server], func(t *testing.T) {
				c, p := meet(t, server, Config{Buffer: MinBuffer})
				test.do(p)
				require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
				_, err := io.ReadAll(c)
				assert.ErrorIs(t, err, ErrProtocol)
				assert.ErrorContains(t, err, test.want)
				_, err = c.Write(make([]byte, 1))
				assert.ErrorIs(t, err, ErrProtocol)
				assert.NoError(t, c.Close())
			})
		}
	}
}

// TestInvalidMemory tests a peer that grants memory that does not exist.
func TestInvalidMemory(t *testing.T) {
	c, p := meet(t, false, Config{})
	p.sendCommand(command{opcode: registerXferMemory, place: place{4096, ^uint32(0), p.ringMR.RKey()}})
	_, err := c.Write([]byte("a word"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	assert.ErrorContains(t, err, "IBV_WC_REM_ACCESS_ERR")
}

// TestPeerLendsNothing checks that Write waits until its deadline or until Close, and that Close does not wait for
// unsent data.
func TestPeerLendsNothing(t *testing.T) {
	c, _ := meet(t, false, Config{})
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
	n, err := c.Write([]byte("a word"))
	assert.Zero(t, n)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, c.SetWriteDeadline(time.Time{}))
	time.AfterFunc(20*time.Millisecond, func() { assert.NoError(t, c.Close()) })
	_, err = c.Write([]byte("a word"))
	assert.ErrorContains(t, err, "use of closed network connection")
}

// TestPeerDisconnects checks that data that the peer wrote before it disconnected can be read, followed by io.EOF.
func TestPeerDisconnects(t *testing.T) {
	c, p := meet(t, true, Config{})
	copy(p.ring.Bytes(), "farewell")
	p.write(0, 8, 8)
	p.receiveSend()
	require.NoError(t, p.id.Disconnect(timeout(t)))
	all, err := io.ReadAll(c)
	assert.NoError(t, err)
	assert.Equal(t, "farewell", string(all))
	_, err = c.Write([]byte("x"))
	assert.ErrorIs(t, err, syscall.EPIPE)
}
