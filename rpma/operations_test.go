// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// everyUsage has all usages of memory that is not persistent.
const everyUsage = ReadSrc | ReadDst | WriteSrc | WriteDst | FlushVisibility | SendSrc | RecvDst

// flushWays are ways to flush and to write atomically.
var flushWays = map[string]PeerOptions{"native": {}, "plain": {ReadFlush: true, PlainAtomicWrite: true},
	"read flush": {ReadFlush: true}}

// eachWay runs a test with each of flushWays.
func forEachProtocol(t *testing.T, test func(t *testing.T, r *pair)) {
	for name, variant := range flushWays {
		t.Run(name, func(t *testing.T) { test(t, connected(t, options{a: variant, b: variant})) })
	}
}

// TestEndToEnd writes to a peer's memory, flushes it, and reads it back.
func TestEndToEnd(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		remoteMR := r.b.memory(4096, ReadSrc|WriteDst|FlushVisibility)
		here := r.a.memory(4096, WriteSrc|ReadDst)
		to := remote(t, remoteMR)
		copy(here.Bytes(), "hello")
		require.NoError(t, r.a.conn.Write(to, 100, here, 0, 5, OnError, 1))
		require.NoError(t, r.a.conn.Flush(to, 100, 5, Visibility, Always, 2))
		r.a.done(2)
		assert.Equal(t, "hello", string(remoteMR.Bytes()[100:105]))
		require.NoError(t, r.a.conn.Read(here, 1000, to, 100, 5, Always, 3))
		r.a.done(3)
		assert.Equal(t, "hello", string(here.Bytes()[1000:1005]))
	})
}

func TestOpcodes(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		remoteMR, here := r.b.memory(64, everyUsage), r.a.memory(64, everyUsage)
		to, c := remote(t, remoteMR), r.a.conn
		atomic, flush := ibv.WC_RDMA_WRITE, ibv.WC_RDMA_READ
		if r.a.peer.NativeAtomicWrite() {
			atomic = ibv.WC_ATOMIC_WRITE
		}
		if r.a.peer.NativeFlush() {
			flush = ibv.WC_FLUSH
		}
		for range 3 {
			require.NoError(t, r.b.conn.Recv(remoteMR, 0, 64, 0))
		}
		for name, o := range map[string]struct {
			post func(id uint64) error
			want ibv.WCOpcode
		}{
			"read": {func(id uint64) error { return c.Read(here, 0, to, 0, 8, Always, id) },
				ibv.WC_RDMA_READ},
			"write": {func(id uint64) error { return c.Write(to, 0, here, 0, 8, Always, id) },
				ibv.WC_RDMA_WRITE},
			"atomic write": {func(id uint64) error { return c.AtomicWrite(to, 8, [8]byte{}, Always, id) }, atomic},
			"flush":        {func(id uint64) error { return c.Flush(to, 0, 64, Visibility, Always, id) }, flush},
			"send":         {func(id uint64) error { return c.Send(here, 0, 8, Always, id) }, ibv.WC_SEND},
			"send imm":     {func(id uint64) error { return c.SendWithImm(here, 0, 8, Always, 1, id) }, ibv.WC_SEND},
			"write imm": {func(id uint64) error { return c.WriteWithImm(to, 0, here, 0, 8, Always, 1, id) },
				ibv.WC_RDMA_WRITE},
		} {
			require.NoError(t, o.post(77), name)
			assert.Equal(t, o.want, r.a.done(77).Opcode, name)
		}
	})
}

// TestMessages checks that messages and their immediate data arrive.
func TestMessages(t *testing.T) {
	r := connected(t, options{connB: &ConnConfig{RecvCQSize: 10}})
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	to := remote(t, remoteMR)
	copy(localMR.Bytes(), "a message")
	for _, imm := range []uint32{0, 1, 0x01020304, 0xfffffffe} {
		for name, post := range map[string]func() error{
			"send":  func() error { return r.a.conn.SendWithImm(localMR, 2, 7, Always, imm, 5) },
			"write": func() error { return r.a.conn.WriteWithImm(to, 32, localMR, 2, 7, Always, imm, 5) },
		} {
			clear(remoteMR.Bytes())
			require.NoError(t, r.b.conn.Recv(remoteMR, 16, 16, 9))
			require.NoError(t, post())
			r.a.done(5)
			wc := completion(t, r.b.conn.RecvCQ())
			assert.Equal(t, uint64(9), wc.WRID)
			got, ok := Immediate(&wc)
			assert.True(t, ok, name)
			assert.Equal(t, imm, got, name)
			// C programs see network order and call ntohl.
			var wire [4]byte
			binary.NativeEndian.PutUint32(wire[:], uint32(*wc.ImmData()))
			assert.Equal(t, imm, binary.BigEndian.Uint32(wire[:]))
			if name == "send" {
				assert.Equal(t, uint32(7), wc.ByteLen)
				assert.Equal(t, "message", string(remoteMR.Bytes()[16:23]))
			} else {
				assert.Equal(t, "message", string(remoteMR.Bytes()[32:39]))
			}
		}
	}
	require.NoError(t, r.b.conn.Recv(nil, 0, 0, 10))
	require.NoError(t, r.a.conn.Send(nil, 0, 0, Always, 11))
	r.a.done(11)
	wc := completion(t, r.b.conn.RecvCQ())
	_, ok := Immediate(&wc)
	assert.False(t, ok)
	assert.Equal(t, uint32(0), wc.ByteLen)
}

// TestEmptyOperations checks that operations without data need no region.
func TestEmptyOperations(t *testing.T) {
	r := connected(t, options{})
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	for i := range localMR.Bytes() {
		localMR.Bytes()[i] = 1
	}
	to, c := remote(t, remoteMR), r.a.conn
	require.NoError(t, c.Read(nil, 0, nil, 0, 0, Always, 1))
	r.a.done(1)
	require.NoError(t, c.Write(nil, 0, nil, 0, 0, Always, 2))
	r.a.done(2)
	require.NoError(t, c.Read(localMR, 64, to, 64, 0, Always, 3))
	r.a.done(3)
	require.NoError(t, c.Write(to, 3, localMR, 5, 0, Always, 4))
	r.a.done(4)
	assert.Equal(t, make([]byte, 64), remoteMR.Bytes())
}

// TestFlags checks that with OnError, only a failure causes a completion.
func TestFlags(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to, c := remote(t, remoteMR), r.a.conn
		require.NoError(t, c.Write(to, 0, localMR, 0, 8, OnError, 1))
		require.NoError(t, c.Read(localMR, 0, to, 0, 8, OnError, 2))
		require.NoError(t, c.AtomicWrite(to, 0, [8]byte{}, OnError, 3))
		require.NoError(t, c.Flush(to, 0, 8, Visibility, OnError, 4))
		require.NoError(t, c.Write(to, 0, localMR, 0, 8, Always, 5))
		r.a.done(5)
		wcs := make([]ibv.WC, 10)
		n, err := c.CQ().Poll(wcs)
		require.NoError(t, err)
		assert.Zero(t, n)
		wrong := *to
		wrong.rkey++
		require.NoError(t, c.Write(&wrong, 0, localMR, 0, 8, OnError, 6))
		wc := completion(t, c.CQ())
		assert.Equal(t, ibv.WC_REM_ACCESS_ERR, wc.Status)
		assert.Equal(t, uint64(6), wc.WRID)
		err = c.CompletionErr(&wc)
		assert.ErrorIs(t, err, ErrProvider)
		assert.ErrorIs(t, err, &rdma.CompletionError{Status: ibv.WC_REM_ACCESS_ERR})
		assert.NotContains(t, err.Error(), "flush")
	})
}

// TestAtomicWriteFence checks that an atomic write waits for earlier flushes, with a fence unless both are native.
func TestAtomicWriteFence(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		fenced := !(r.a.peer.NativeFlush() && r.a.peer.NativeAtomicWrite())
		to := remote(t, r.b.memory(64, everyUsage))
		assert.Equal(t, fenced, r.a.conn.sends.fence == ibv.SEND_FENCE)
		if !r.a.peer.NativeAtomicWrite() {
			require.NoError(t, r.a.conn.AtomicWrite(to, 8, [8]byte{}, Always, 0))
			r.a.done(0)
			assert.NotZero(t, ibv.SendFlags(r.a.conn.sends.batch.WR(0).SendFlags)&ibv.SEND_FENCE)
		}
		b, err := r.a.conn.NewBatch(1)
		require.NoError(t, err)
		defer b.Close()
		require.NoError(t, b.AtomicWrite(to, 8, [8]byte{}, Always, 1))
		assert.Equal(t, fenced, b.ops[0].flags&ibv.SEND_FENCE != 0)
	})
}

// TestAtomicWrite checks that an atomic write writes all 8 bytes and no others.
func TestAtomicWrite(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		remoteMR := r.b.memory(24, everyUsage)
		to := remote(t, remoteMR)
		value := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
		for i := range 3 { // reuses the request
			value[0] = byte(i)
			require.NoError(t, r.a.conn.AtomicWrite(to, 8, value, Always, uint64(i)))
			r.a.done(uint64(i))
			assert.Equal(t, value[:], remoteMR.Bytes()[8:16])
		}
		assert.Equal(t, make([]byte, 8), remoteMR.Bytes()[:8])
		assert.Equal(t, make([]byte, 8), remoteMR.Bytes()[16:])
	})
}

// TestArguments checks that invalid arguments are rejected before posting, with librpma's codes.
func TestArguments(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to, c := remote(t, remoteMR), r.a.conn
		const far = ^uint64(0)
		for name, err := range map[string]error{
			"read without flags":            c.Read(localMR, 0, to, 0, 8, 0, 0),
			"write without flags":           c.Write(to, 0, localMR, 0, 8, 0, 0),
			"write imm without flags":       c.WriteWithImm(to, 0, localMR, 0, 8, 0, 1, 0),
			"atomic write without flags":    c.AtomicWrite(to, 0, [8]byte{}, 0, 0),
			"flush without flags":           c.Flush(to, 0, 8, Visibility, 0, 0),
			"send without flags":            c.Send(localMR, 0, 8, 0, 0),
			"send imm without flags":        c.SendWithImm(localMR, 0, 8, 0, 1, 0),
			"unknown flags":                 c.Send(localMR, 0, 8, 4, 0),
			"read from nothing":             c.Read(localMR, 0, nil, 0, 0, Always, 0),
			"read to nothing":               c.Read(nil, 0, to, 0, 0, Always, 0),
			"read nothing at an offset":     c.Read(nil, 0, nil, 1, 0, Always, 0),
			"read bytes of nothing":         c.Read(nil, 0, nil, 0, 1, Always, 0),
			"write to nothing":              c.Write(nil, 0, localMR, 0, 0, Always, 0),
			"write nothing at an offset":    c.Write(nil, 1, nil, 0, 0, Always, 0),
			"send bytes of nothing":         c.Send(nil, 0, 1, Always, 0),
			"receive bytes into nothing":    c.Recv(nil, 0, 1, 0),
			"atomic write to nothing":       c.AtomicWrite(nil, 0, [8]byte{}, Always, 0),
			"atomic write at 4":             c.AtomicWrite(to, 4, [8]byte{}, Always, 0),
			"atomic write beyond the end":   c.AtomicWrite(to, 64, [8]byte{}, Always, 0),
			"flush nothing":                 c.Flush(nil, 0, 0, Visibility, Always, 0),
			"flush of an unknown type":      c.Flush(to, 0, 8, 2, Always, 0),
			"flush beyond the end":          c.Flush(to, 60, 8, Visibility, Always, 0),
			"read beyond the peer's end":    c.Read(localMR, 0, to, 60, 8, Always, 0),
			"read beyond this side's end":   c.Read(localMR, 60, to, 0, 8, Always, 0),
			"read far away":                 c.Read(localMR, 0, to, far, 8, Always, 0),
			"read too much":                 c.Read(localMR, 0, to, 0, far, Always, 0),
			"write that wraps":              c.Write(to, far-3, localMR, 0, 8, Always, 0),
			"receive beyond the end":        c.Recv(localMR, 60, 8, 0),
			"more than a message can carry": c.Send(localMR, 0, maxMessage+1, Always, 0),
		} {
			assert.ErrorIs(t, err, ErrInvalid, name)
			assert.ErrorIs(t, err, syscall.EINVAL, name)
			assert.Equal(t, ErrInvalid, CodeOf(err), name)
		}
	})
}

// TestFullQueue checks that a full queue rejects operations without losing any, and that polling completions frees it.
func TestFullQueue(t *testing.T) {
	r := connected(t, options{})
	localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
	to := remote(t, remoteMR)
	posted := uint64(0)
	var err error
	for ; err == nil; posted++ {
		err = r.a.conn.Write(to, 0, localMR, 0, 8, Always, posted)
	}
	posted--
	assert.Equal(t, uint64(defaultQueueSize), posted)
	assert.ErrorIs(t, err, ErrProvider)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	assert.Contains(t, err.Error(), "Conn.Write")
	for id := range posted {
		r.a.done(id)
	}
	require.NoError(t, r.a.conn.Write(to, 0, localMR, 0, 8, Always, 100))
	r.a.done(100)
	for err, posted = nil, 0; err == nil; posted++ {
		err = r.b.conn.Recv(remoteMR, 0, 8, posted)
	}
	assert.Equal(t, uint64(defaultQueueSize)+1, posted)
	assert.ErrorIs(t, err, syscall.ENOMEM)
	for i := range uint64(defaultQueueSize) {
		require.NoError(t, r.a.conn.Send(localMR, 0, 8, Always, i))
		r.a.done(i)
		wc := completion(t, r.b.conn.CQ())
		assert.Equal(t, i, wc.WRID)
	}
}

// TestClosedRegion checks that an operation with a closed region is rejected.
func TestClosedRegion(t *testing.T) {
	r := connected(t, options{})
	m, err := r.a.peer.RegMR(make([]byte, 8), SendSrc)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	err = r.a.conn.Send(m, 0, 8, Always, 0)
	assert.ErrorIs(t, err, rdma.ErrClosed)
	assert.Equal(t, ErrInvalid, CodeOf(err))
}

// TestErrors compares codes and their texts with librpma's.
func TestErrors(t *testing.T) {
	for code, number := range map[Code]int{ErrUnknown: -100000, ErrNotSupported: -100001, ErrProvider: -100002,
		ErrNoMemory: -100003, ErrInvalid: -100004, ErrNoCompletion: -100005, ErrNoEvent: -100006, ErrAgain: -100007,
		ErrSharedChannel: -100008, ErrNotSharedChannel: -100009} {
		assert.Equal(t, number, int(code))
		assert.NotContains(t, code.Error(), "100")
	}
	assert.Contains(t, Code(-5).Error(), "-5")
	assert.Contains(t, Code(-100010).Error(), "-100010")
	assert.Equal(t, Code(0), CodeOf(nil))
	assert.Equal(t, ErrProvider, CodeOf(errors.New("other")))
	assert.Equal(t, ErrAgain, CodeOf(ErrAgain))
	assert.ErrorIs(t, unsupported("x", "y"), errors.ErrUnsupported)
	assert.ErrorIs(t, unsupported("x", "y"), rdma.ErrNotSupported)
	assert.Equal(t, "ReadSrc|FlushPersistent", (ReadSrc | FlushPersistent).String())
	assert.Equal(t, []string{"undefined", "established", "closed", "lost", "rejected", "unreachable", "Event(5)"},
		[]string{Undefined.String(), Established.String(), Closed.String(), Lost.String(), Rejected.String(),
			Unreachable.String(), Event(5).String()})
	assert.Equal(t, []int8{-1, 0, 1, 2, 3, 4}, []int8{int8(Undefined), int8(Established), int8(Closed), int8(Lost),
		int8(Rejected), int8(Unreachable)})
}
