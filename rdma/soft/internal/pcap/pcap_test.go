// SPDX-License-Identifier: BSD-2-Clause

package pcap

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
)

// disk accepts some writes, then is full.
type disk struct {
	mu           sync.Mutex
	writes, room int
	packets      int // number of packets written
	partial      bool
}

var errFull = errors.New("disk full")

func (d *disk) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writes++; d.writes > d.room {
		return 0, errFull
	}
	if d.writes == 1 {
		return len(b), nil
	}
	n := len(b)
	for len(b) >= header {
		d.packets++
		b = b[min(header+int(order.Uint32(b[8:])), len(b)):]
	}
	d.partial = d.partial || len(b) > 0
	return n, nil
}

var noEndpoint packet.Endpoint

func put(c *Capture, n int) {
	for range n {
		c.Packet(time.Time{}, make([]byte, packet.MaxSize), &noEndpoint, &noEndpoint, 0)
	}
}

// TestCaptureWritesAll: Close waits for all packets. Each write contains complete packets, so that the file of a killed
// program is readable.
func TestCaptureWritesAll(t *testing.T) {
	var all Captures
	d := &disk{room: 1 << 20}
	c, err := all.Start(d)
	require.NoError(t, err)
	var many sync.WaitGroup
	for range 4 {
		many.Go(func() { put(c, 100) })
	}
	many.Wait()
	require.NoError(t, c.Close())
	written, lost := c.Counts()
	assert.EqualValues(t, 400, written)
	assert.Zero(t, lost)
	assert.Equal(t, 400, d.packets)
	assert.False(t, d.partial)
	assert.Nil(t, all.All())
	put(c, 1)
	require.NoError(t, c.Close(), "second Close")
	written, lost = c.Counts()
	assert.EqualValues(t, 400, written+lost)
}

// TestCaptureFails: Start or Close returns the error of the file, and unwritten packets are counted.
func TestCaptureFails(t *testing.T) {
	var all Captures
	_, err := all.Start(&disk{})
	require.ErrorIs(t, err, errFull)
	assert.Nil(t, all.All())
	c, err := all.Start(&disk{room: 1})
	require.NoError(t, err)
	put(c, 1)
	<-c.done
	put(c, 2)
	require.ErrorIs(t, c.Close(), errFull)
	written, lost := c.Counts()
	assert.Zero(t, written)
	assert.EqualValues(t, 3, lost)
}

// TestCaptureBlocks: a blocked file blocks neither senders nor other captures.
func TestCaptureBlocks(t *testing.T) {
	var all Captures
	r, w := io.Pipe()
	go io.ReadFull(r, make([]byte, 24))
	slow, err := all.Start(w)
	require.NoError(t, err)
	var b bytes.Buffer
	fast, err := all.Start(&b)
	require.NoError(t, err)
	require.Len(t, all.All(), 2)
	const size = header + packet.HeadersSize + packet.MaxSize
	n := 3 * room / size
	for i := range n {
		for _, c := range all.All() {
			put(c, 1)
		}
		if i%100 == 0 { // lets the fast capture keep up
			for fast.queued() > 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}
	require.NoError(t, fast.Close())
	written, lost := fast.Counts()
	assert.EqualValues(t, n, written)
	assert.Zero(t, lost)
	assert.Equal(t, []*Capture{slow}, all.All())
	_, lost = slow.Counts()
	assert.GreaterOrEqual(t, int(lost), n-2*room/size)
	require.NoError(t, r.CloseWithError(errFull))
	require.ErrorIs(t, slow.Close(), errFull)
	_, lost = slow.Counts()
	assert.EqualValues(t, n, lost)
}

// queued returns the number of queued packets.
func (c *Capture) queued() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets
}

// TestCaptureDoesNotAllocate: packets do not allocate, with or without a capture.
func TestCaptureDoesNotAllocate(t *testing.T) {
	var all Captures
	p := make([]byte, packet.MaxSize)
	run := func() {
		for _, c := range all.All() {
			c.Packet(time.Time{}, p, &noEndpoint, &noEndpoint, 0)
		}
	}
	assert.Zero(t, testing.AllocsPerRun(100, run))
	c, err := all.Start(io.Discard)
	require.NoError(t, err)
	defer c.Close()
	assert.Zero(t, testing.AllocsPerRun(100, run))
}

// TestCreate: two captures cannot share a file, a name may include the process ID, and only the owner can read the
// file.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.pcap")
	require.NoError(t, os.WriteFile(name, []byte("old contents"), 0o600))
	f, err := Create(name)
	require.NoError(t, err)
	info, err := f.Stat()
	require.NoError(t, err)
	assert.Zero(t, info.Size())
	if runtime.GOOS == "linux" {
		_, err := Create(name)
		require.ErrorIs(t, err, errShared)
		assert.ErrorContains(t, err, name)
	}
	require.NoError(t, f.Close())
	f, err = Create(name)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	f, err = Create(filepath.Join(dir, "%p"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	info, err = os.Stat(filepath.Join(dir, strconv.Itoa(os.Getpid())))
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	_, err = Create(filepath.Join(dir, "none", "a"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestChecksums verifies checksums like a receiver: all 16-bit words, including the checksum, sum to ones. Malformed
// packets may have odd length.
func TestChecksums(t *testing.T) {
	adds := func(parts ...[]byte) uint16 {
		s := uint32(0)
		for _, b := range parts {
			for i, v := range b {
				s += uint32(v) << (8 * (1 - i%2))
				s = s>>16 + s&0xffff
			}
		}
		return uint16(s)
	}
	from, to := packet.Endpoint{Port: 4791}, packet.Endpoint{Port: 4791}
	for i := range from.GID {
		from.GID[i], to.GID[i] = byte(0xf0+i), byte(0x90-i)
	}
	for n := range 70 {
		b := appendPacket(nil, time.Time{}, bytes.Repeat([]byte{0xfe, 0xff, 0xfd}, 70)[:n], &from, &to, 7)[header:]
		length := b[ipv6Size+udpLength:][:2]
		assert.EqualValues(t, 0xffff, adds(b[ipv6Source:ipv6Size], length, []byte{0, udp}, b[ipv6Size:]), "%d bytes", n)
	}
	from.GID, to.GID = [16]byte{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}, [16]byte{10: 0xff, 11: 0xff, 12: 255}
	b := appendPacket(nil, time.Time{}, make([]byte, 16), &from, &to, 0xfedc)[header:]
	assert.EqualValues(t, 0xffff, adds(b[:ipv4Size]))
}

func BenchmarkPacket(b *testing.B) {
	from, to := packet.Endpoint{GID: [16]byte{1}}, packet.Endpoint{GID: [16]byte{2}}
	p, file := make([]byte, 4136), []byte(nil)
	for b.Loop() {
		file = appendPacket(file[:0], time.Time{}, p, &from, &to, 0)
	}
}
