// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

func fabricAt(t *testing.T, address string) *soft.Fabric {
	t.Helper()
	f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: netip.MustParseAddr(address), Wire: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// TestStreamBetweenFabrics: a stream between fabrics uses UDP.
func TestStreamBetweenFabrics(t *testing.T) {
	a, b := fabricAt(t, "127.0.0.2"), fabricAt(t, "127.0.0.3")
	l, err := listening(stream.Config{Backend: b}).Listen(t.Context(), "127.0.0.3:7001")
	require.NoError(t, err)
	defer l.Close()
	const size = 3 << 20
	got := make(chan []byte, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- nil
			return
		}
		all, _ := io.ReadAll(c)
		c.Close()
		got <- all
	}()
	c, err := dialer(stream.Config{Backend: a}).Dial(t.Context(), "127.0.0.3:7001")
	require.NoError(t, err)
	want := bytes.Repeat([]byte("goverbs "), size/8)
	start := time.Now()
	_, err = c.Write(want)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.True(t, bytes.Equal(want, <-got))
	t.Log(time.Since(start), b.Counters())
}

// TestWireAddress: an address of another machine is rejected with an explanation, and nothing is leaked.
func TestWireAddress(t *testing.T) {
	other := soft.DeviceOptions{Address: netip.MustParseAddr("192.0.2.1"), Wire: true}
	_, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{other}})
	require.ErrorContains(t, err, "192.0.2.1")
	require.ErrorContains(t, err, "none of this machine's addresses")
	f := fabricAt(t, "127.0.0.4")
	require.ErrorContains(t, f.AddDevice(other), "192.0.2.1")
	require.NoError(t, f.AddDevice(soft.DeviceOptions{Address: netip.MustParseAddr("127.0.0.5"), Wire: true}))
}

// pair is two connected queue pairs of two fabrics, with memory of the peer to write and read.
type pair struct {
	a, b   *rdma.QP
	here   *rdma.MR
	there  *rdma.MR
	sends  *rdma.SendBatch
	recvs  *rdma.RecvBatch
	wcs    []ibv.WC
	fabric [2]*soft.Fabric
	memory [2][]byte // registered memory and surroundings
}

// around is the number of unregistered bytes before and after registered memory.
const around = 1 << 12

func newPair(t testing.TB, first, second string, size int) *pair {
	p := &pair{wcs: make([]ibv.WC, 16)}
	open := func(i int, address string) (*rdma.QP, *rdma.MR) {
		local := soft.DeviceOptions{Address: netip.MustParseAddr(address), Wire: true}
		f, err := soft.New(soft.Options{Devices: []soft.DeviceOptions{local}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		d, err := rdma.OpenOn(f, "soft0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		q, err := d.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, q.Close()) })
		p.memory[i] = make([]byte, size+2*around)
		mr, err := q.RegMR(p.memory[i][around:][:size],
			ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_READ|ibv.ACCESS_REMOTE_ATOMIC)
		require.NoError(t, err)
		p.fabric[i] = f
		return q, mr
	}
	p.a, p.here = open(0, first)
	p.b, p.there = open(1, second)
	ends := [2]rdma.Endpoint{}
	for i, q := range []*rdma.QP{p.a, p.b} {
		var err error
		ends[i], err = q.Endpoint()
		require.NoError(t, err)
	}
	var err error
	for i, q := range []*rdma.QP{p.a, p.b} {
		attr, err := q.ConnectAttr(ends[1-i])
		require.NoError(t, err)
		attr.Timeout = 18 // a second per try, for busy machines
		require.NoError(t, q.ConnectWith(attr))
	}
	p.sends, err = rdma.NewSendBatch(1, 1, 0)
	require.NoError(t, err)
	t.Cleanup(func() { p.sends.Close() })
	p.recvs, err = rdma.NewRecvBatch(1, 1)
	require.NoError(t, err)
	t.Cleanup(func() { p.recvs.Close() })
	return p
}

// run posts the request and waits for its completion.
func (p *pair) run(t testing.TB) {
	_, err := p.a.PostSend(p.sends)
	require.NoError(t, err)
	for {
		n, err := p.a.SendCQ().Poll(p.wcs)
		require.NoError(t, err)
		if n > 0 {
			require.Equal(t, ibv.WC_SUCCESS, p.wcs[0].Status)
			return
		}
		p.b.SendCQ().Poll(p.wcs) // receives the peer's packets
	}
}

// TestWindow: at most 128 KiB are in flight. A larger window is slower because the kernel's buffers then exceed the
// caches.
func TestWindow(t *testing.T) {
	p := newPair(t, "127.0.0.2", "127.0.0.3", 1<<20)
	p.sends.Write(1, p.there.Address(), p.there.RKey()).Add(p.here.SGE(0, 1<<20)).Signaled()
	for range 20 {
		p.run(t)
	}
	const most = 128 << 10 / 4096
	c := p.fabric[0].Connections()
	require.Len(t, c, 1)
	assert.LessOrEqual(t, c[0].Window, uint32(most))
	if p.fabric[0].HWCounters("soft0")["completer_retry_err"] == 0 { // no loss on a busy machine
		assert.EqualValues(t, most, c[0].Window)
	}
}

// TestWireDoesNotAllocate: sending and receiving packets does not allocate, with or without a capture.
func TestWireDoesNotAllocate(t *testing.T) {
	for _, captures := range []bool{false, true} {
		t.Run(fmt.Sprintf("captured %v", captures), func(t *testing.T) { wireDoesNotAllocate(t, captures) })
	}
}

func wireDoesNotAllocate(t *testing.T, captures bool) {
	const size = 100_000
	p := newPair(t, "127.0.0.6", "127.0.0.7", size)
	if captures {
		p.capture(t)
	}
	remote, rkey := uint64(p.there.SGE(0, 1).Addr), p.there.RKey()
	type adds func(b *rdma.SendBatch) rdma.SendRequest
	all, word := p.here.SGE(0, size), p.here.SGE(0, 8)
	for name, add := range map[string]adds{
		"write":  func(b *rdma.SendBatch) rdma.SendRequest { return b.Write(1, remote, rkey).Add(all) },
		"read":   func(b *rdma.SendBatch) rdma.SendRequest { return b.Read(1, remote, rkey).Add(all) },
		"atomic": func(b *rdma.SendBatch) rdma.SendRequest { return b.FetchAdd(1, remote, rkey, 1).Add(word) },
	} {
		p.sends.Reset()
		add(p.sends).Signaled()
		for range 20 {
			p.run(t)
		}
		assert.Zero(t, testing.AllocsPerRun(200, func() { p.run(t) }), name)
	}
}

// capture captures the packets of both fabrics to a discarding writer until the test ends.
func (p *pair) capture(t testing.TB) {
	for _, f := range p.fabric {
		c, err := f.Capture(io.Discard)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, c.Close()) })
	}
}

// BenchmarkWire measures writes of 1 MiB and of 64 bytes, without and with a capture on either side, and while another
// goroutine reads the counters.
func BenchmarkWire(b *testing.B) {
	for _, size := range []int{64, 1 << 20} {
		for _, with := range []string{"nothing", "captures", "counters"} {
			b.Run(fmt.Sprintf("%d/%s", size, with), func(b *testing.B) {
				p := newPair(b, "127.0.0.6", "127.0.0.7", size)
				p.sends.Reset()
				p.sends.Write(1, p.there.Address(), p.there.RKey()).Add(p.here.SGE(0, uint32(size))).Signaled()
				switch with {
				case "captures":
					p.capture(b)
				case "counters":
					done := make(chan struct{})
					b.Cleanup(func() { close(done) })
					go func() {
						for every := time.NewTicker(time.Millisecond); ; {
							select {
							case <-every.C:
								p.fabric[1].HWCounters("soft0")
							case <-done:
								return
							}
						}
					}()
				}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					p.run(b)
				}
			})
		}
	}
}
