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

// TestHostilePeers: every protocol violation ends the connection with an error that describes it.
func TestHostilePeers(t *testing.T) {
	lend := func(address uint64, length uint32) func(p *peer) {
		return func(p *peer) { p.say(command{opcode: registerXferMemory, place: place{address, length, 1}}) }
	}
	bytes := func(b ...byte) func(p *peer) { return func(p *peer) { p.send(b) } }
	whole := func(opcode byte) func(p *peer) {
		return func(p *peer) { p.send(append([]byte{0, opcode}, make([]byte, commandSize-2)...)) }
	}
	piece := uint32(MinBuffer / pieces)
	both, clients, servers := []bool{false, true}, []bool{false}, []bool{true}
	for name, test := range map[string]struct {
		does  func(p *peer)
		to    []bool // whether the Conn serves
		wants string
	}{
		"an empty command":         {bytes(), both, "a command of 0 bytes"},
		"half a command":           {bytes(0, 3), both, "a command of 2 bytes"},
		"an unknown opcode":        {whole(4), both, "unknown opcode 4"},
		"no memory":                {lend(4096, 0), both, "it lends 0 bytes"},
		"memory beyond all memory": {lend(^uint64(0), 64<<10), both, "at 0xffffffffffffffff"},
		"more than there is room for, said": {func(p *peer) { p.write(0, 1, piece+1) }, both,
			"it says 4097 bytes, and has written 1"},
		"more than there is room for, in steps": {func(p *peer) {
			p.write(0, piece-1, piece-1)
			p.write(0, 2, 2) // the next piece is not lent yet
		}, both, "2 bytes, and there is room for 1"},
		"less than it says":      {func(p *peer) { p.write(0, 10, 20) }, both, "it says 20 bytes, and has written 10"},
		"more than it says":      {func(p *peer) { p.write(0, 20, 10) }, both, "it says 10 bytes, and has written 20"},
		"an answer to nothing":   {whole(byte(getServerFeature)), clients, "answers what was not asked"},
		"a server sets features": {whole(byte(setClientFeature)), clients, "sets features 0x0"},
		"features that are not there": {func(p *peer) { p.say(command{opcode: setClientFeature, features: 1}) },
			servers, "sets features 0x1"},
	} {
		for _, server := range test.to {
			t.Run(name+map[bool]string{false: ", to a client", true: ", to a server"}[server], func(t *testing.T) {
				c, p := meet(t, server, Config{Buffer: MinBuffer})
				test.does(p)
				require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
				_, err := io.ReadAll(c)
				assert.ErrorIs(t, err, ErrProtocol)
				assert.ErrorContains(t, err, test.wants)
				_, err = c.Write(make([]byte, 1))
				assert.ErrorIs(t, err, ErrProtocol)
				assert.NoError(t, c.Close())
			})
		}
	}
}

// TestMemoryThatIsNotThere: a peer lends memory that does not exist.
func TestMemoryThatIsNotThere(t *testing.T) {
	c, p := meet(t, false, Config{})
	p.say(command{opcode: registerXferMemory, place: place{4096, ^uint32(0), p.ringMR.RKey()}})
	_, err := c.Write([]byte("a word"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	assert.ErrorIs(t, err, syscall.ECONNRESET)
	assert.ErrorContains(t, err, "IBV_WC_REM_ACCESS_ERR")
}

// TestPeerLendsNothing: Write waits, until its deadline or a Close, and Close does not wait for unsent data.
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

// TestPeerWritesAndLeaves: data written before it disconnected is read, then the end.
func TestPeerWritesAndLeaves(t *testing.T) {
	c, p := meet(t, true, Config{})
	copy(p.ring.Bytes(), "farewell")
	p.write(0, 8, 8)
	p.receiveSend()
	require.NoError(t, p.id.Disconnect(soon(t)))
	all, err := io.ReadAll(c)
	assert.NoError(t, err)
	assert.Equal(t, "farewell", string(all))
	_, err = c.Write([]byte("x"))
	assert.ErrorIs(t, err, syscall.EPIPE)
}
