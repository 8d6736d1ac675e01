// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// TestDescriptor checks that a descriptor has 21 bytes in little-endian order, and that invalid descriptors are
// rejected.
func TestDescriptor(t *testing.T) {
	r := newPair(t, options{})
	m := r.a.memory(0x1234, ReadSrc|FlushVisibility)
	d := m.Descriptor()
	require.Len(t, d, 21)
	for i, want := range [][2]uint64{{m.Address(), 8}, {0x1234, 8}, {uint64(m.RDMA().RKey()), 4}, {0x11, 1}} {
		at := []int{0, 8, 16, 20}[i]
		for byteOf := range want[1] {
			assert.Equal(t, byte(want[0]>>(8*byteOf)), d[at+int(byteOf)])
		}
	}
	remoteMR, err := ParseRemoteMR(d[:])
	require.NoError(t, err)
	assert.Equal(t, RemoteMR{m.Address(), 0x1234, m.RDMA().RKey(), ReadSrc | FlushVisibility}, *remoteMR)
	assert.Equal(t, uint64(0x1234), remoteMR.Len())
	assert.Equal(t, FlushVisibility, remoteMR.FlushTypes())

	change := func(at int, b ...byte) []byte { return slices.Replace(slices.Clone(d[:]), at, at+len(b), b...) }
	for name, bad := range map[string][]byte{
		"empty":     {},
		"short":     d[:20],
		"long":      append(slices.Clone(d[:]), 0),
		"no usage":  change(20, 0),
		"no memory": change(8, make([]byte, 8)...),
		"past the end of the address space": slices.Concat(bytes.Repeat([]byte{0xff}, 8),
			[]byte{2, 0, 0, 0, 0, 0, 0, 0}, d[16:]),
		"all ones": bytes.Repeat([]byte{0xff}, 21),
	} {
		_, err := ParseRemoteMR(bad)
		assert.ErrorIs(t, err, ErrInvalid, name)
	}
	_, err = ParseRemoteMR(slices.Concat(bytes.Repeat([]byte{0xff}, 8), []byte{1, 0, 0, 0, 0, 0, 0, 0}, d[16:]))
	assert.NoError(t, err, "the last byte of the address space")
}

// FuzzDescriptors checks that no operation exceeds the range in a descriptor, for any descriptor.
func FuzzDescriptors(f *testing.F) {
	f.Add(bytes.Repeat([]byte{1}, 21), uint64(3), uint64(4))
	f.Fuzz(func(t *testing.T, d []byte, offset, length uint64) {
		ParsePeerConfig(d)
		m, err := ParseRemoteMR(d)
		if err != nil {
			return
		}
		within := func(at, length uint64) {
			if at < m.address || at-m.address > m.length || length > m.length-(at-m.address) || at+length < at &&
				at+length != 0 {
				t.Errorf("%d bytes at %d of %+v: %#x", length, offset, m, at)
			}
		}
		if inside(offset, length, m.length) {
			within(m.address+offset, length)
			at, n := new(sends).flushingRead(m, offset)
			within(at, n)
		}
	})
}

func TestPeerConfig(t *testing.T) {
	for _, pmem := range []bool{false, true} {
		d := PeerConfig{DirectWriteToPmem: pmem}.Descriptor()
		require.Len(t, d, 1)
		assert.Equal(t, pmem, d[0] == 1)
		back, err := ParsePeerConfig(d[:])
		require.NoError(t, err)
		assert.Equal(t, pmem, back.DirectWriteToPmem)
	}
	for _, bad := range [][]byte{nil, {}, {2}, {0xff}, {0, 0}, {1, 0}} {
		_, err := ParsePeerConfig(bad)
		assert.ErrorIs(t, err, ErrInvalid, bad)
	}
}

// TestRegister registers memory of every kind and checks that invalid registrations are rejected.
func TestRegister(t *testing.T) {
	r := newPair(t, options{})
	p := r.a.peer
	for _, usage := range []Usage{0} {
		_, err := p.RegMR(make([]byte, 8), usage)
		assert.ErrorIs(t, err, ErrInvalid)
	}
	_, err := p.RegMR(nil, ReadSrc)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = p.RegBuffer(nil, ReadSrc)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = p.RegAddress(0, 8, ReadSrc)
	assert.ErrorIs(t, err, ErrInvalid)
	b, err := rdma.NewBuffer(4096, rdma.MapOptions{})
	require.NoError(t, err)
	m, err := p.RegBuffer(b, everyUsage)
	require.NoError(t, err)
	assert.ErrorIs(t, b.Close(), rdma.ErrInUse)
	byAddress, err := p.RegAddress(uintptr(b.Address())+8, 16, everyUsage)
	require.NoError(t, err)
	assert.Equal(t, b.Address()+8, byAddress.Address())
	assert.Equal(t, uint64(16), byAddress.Len())
	assert.Nil(t, byAddress.Bytes())
	assert.Equal(t, everyUsage, m.Usage())
	assert.Len(t, m.Bytes(), 4096)
	require.NoError(t, byAddress.Close())
	require.NoError(t, m.Close())
	require.NoError(t, b.Close())
}

func TestAdvise(t *testing.T) {
	r := newPair(t, options{})
	m := r.a.memory(4096, everyUsage)
	odp, err := ODPCapable(r.a.device.Device)
	require.NoError(t, err)
	assert.True(t, odp)
	const prefetch = ibv.IBUverbsAdviseMRAdvice(ibv.ADVISE_MR_ADVICE_PREFETCH_WRITE)
	assert.ErrorIs(t, m.Advise(4000, 200, prefetch, 0), ErrInvalid, "beyond the end")
	assert.ErrorIs(t, m.Advise(0, 4096, 99, 0), ErrNotSupported, "unknown advice")
	if err := m.Advise(0, 4096, prefetch, 0); err != nil { // not supported without on-demand paging
		assert.ErrorIs(t, err, ErrInvalid)
	}
}

// TestAnyOrder checks that Close fails while another object needs this one, and succeeds afterwards.
func TestAnyOrder(t *testing.T) {
	r := newPair(t, options{})
	device, err := FindDeviceOn(timeout(t), r.fabric, Remote, addressB)
	require.NoError(t, err)
	p, err := NewPeer(device, PeerOptions{})
	require.NoError(t, err)
	m, err := p.RegMR(make([]byte, 8), ReadSrc)
	require.NoError(t, err)
	srq, err := p.NewSRQ(SRQConfig{})
	require.NoError(t, err)
	c, err := p.NewConnRequest(timeout(t), r.ep.Addr().String(), &ConnConfig{SRQ: srq})
	require.NoError(t, err)
	for _, parent := range []interface{ Close() error }{p, srq} {
		err := parent.Close()
		assert.ErrorIs(t, err, rdma.ErrInUse)
	}
	require.NoError(t, c.Close())
	require.NoError(t, srq.Close())
	assert.ErrorIs(t, srq.Recv(nil, 0, 0, 0), rdma.ErrClosed)
	_, err = p.NewConnRequest(timeout(t), r.ep.Addr().String(), &ConnConfig{SRQ: srq})
	assert.ErrorIs(t, err, rdma.ErrClosed)
	assert.ErrorIs(t, p.Close(), rdma.ErrInUse)
	require.NoError(t, m.Close())
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.RegMR(make([]byte, 8), ReadSrc)
	assert.ErrorIs(t, err, rdma.ErrClosed)
	_, err = p.NewSRQ(SRQConfig{})
	assert.ErrorIs(t, err, rdma.ErrClosed)
	_, err = p.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	assert.ErrorIs(t, err, rdma.ErrClosed)
	require.NoError(t, device.Close())
	require.NoError(t, device.Close())
}

// TestClosedConnection checks that every method of a closed connection fails and none panics.
func TestClosedConnection(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to, c := remote(t, remoteMR), r.a.conn
		b, err := c.NewBatch(2)
		require.NoError(t, err)
		require.NoError(t, b.Write(to, 0, localMR, 0, 8, Always, 1))
		require.NoError(t, b.Flush(to, 0, 8, Visibility, Always, 1))
		require.NoError(t, c.Close())
		require.NoError(t, c.Close())
		_, postErr := b.Post()
		_, eventErr := c.NextEvent(timeout(t))
		_, pollErr := c.CQ().Poll(make([]ibv.WC, 1))
		_, waitErr := c.CQ().Wait(timeout(t), make([]ibv.WC, 1))
		_, asyncErr := c.NewAsync(1)
		for name, err := range map[string]error{
			"read": c.Read(localMR, 0, to, 0, 8, Always, 0), "write": c.Write(to, 0, localMR, 0, 8, Always, 0),
			"atomic write": c.AtomicWrite(to, 0, [8]byte{}, Always, 0),
			"flush":        c.Flush(to, 0, 8, Visibility, Always, 0),
			"send":         c.Send(localMR, 0, 8, Always, 0), "recv": c.Recv(localMR, 0, 8, 0),
			"disconnect": c.Disconnect(), "batch": postErr, "event": eventErr, "poll": pollErr, "wait": waitErr,
			"async": asyncErr,
		} {
			assert.ErrorIs(t, err, rdma.ErrClosed, name)
		}
		require.NoError(t, b.Close())
		require.NoError(t, b.Close())
		_, err = b.Post()
		assert.NoError(t, err, "nothing is left to post")
	})
}

// TestCloseDuringUse checks that closing a connection ends the calls of other goroutines.
func TestCloseDuringUse(t *testing.T) {
	forEachProtocol(t, func(t *testing.T, r *pair) {
		localMR, remoteMR := r.a.memory(64, everyUsage), r.b.memory(64, everyUsage)
		to, c := remote(t, remoteMR), r.a.conn
		ctx := timeout(t)
		var all sync.WaitGroup
		for _, use := range []func() error{
			func() error { return c.Write(to, 0, localMR, 0, 8, Always, 0) },
			func() error { return c.Flush(to, 0, 8, Visibility, Always, 0) },
			func() error { return c.Recv(localMR, 0, 8, 0) },
			func() error { _, err := c.CQ().Wait(ctx, make([]ibv.WC, 1)); return err },
			func() error { _, err := c.NextEvent(ctx); return err },
		} {
			all.Go(func() {
				for {
					if err := use(); errors.Is(err, rdma.ErrClosed) {
						return
					}
				}
			})
		}
		require.NoError(t, c.Close())
		all.Wait()
	})
}

// TestSRQ checks that connections can share a receive queue, whose receives complete in the configured queue.
func TestSRQ(t *testing.T) {
	for name, c := range map[string]struct {
		config SRQConfig
		conn   ConnConfig
	}{
		"its own completion queue":        {},
		"completion queue of connections": {config: SRQConfig{RecvCQSize: -1}, conn: ConnConfig{RecvCQSize: 1}},
		"the only queue of connections":   {config: SRQConfig{RecvCQSize: -1}},
		"the shared channel of connections": {config: SRQConfig{RecvCQSize: -1},
			conn: ConnConfig{RecvCQSize: 1, SharedChannel: true}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPair(t, options{})
			srq, err := r.b.peer.NewSRQ(c.config)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, srq.Close()) })
			c.conn.SRQ = srq
			localMR, remote := r.a.memory(64, everyUsage), r.b.memory(1024, everyUsage)
			for i := range uint64(defaultSRQSize) {
				require.NoError(t, srq.Recv(remote, 8*i, 8, i))
			}
			err = srq.Recv(nil, 0, 0, 99)
			assert.ErrorContains(t, err, "SRQ.Recv", "the queue is full")
			assert.ErrorIs(t, srq.Recv(nil, 0, 1, 0), ErrInvalid)
			for i := range uint64(3) {
				a, b := r.connect(options{connB: &c.conn})
				assert.ErrorIs(t, b.Recv(remote, 0, 8, 0), ErrProvider, "receives come from the shared queue")
				require.NoError(t, a.SendWithImm(localMR, 0, 8, Always, uint32(i), 1))
				e := side{t: t, conn: a}
				e.done(1)
				q := b.RecvCQ()
				if c.config.RecvCQSize == 0 {
					assert.Same(t, srq.RecvCQ(), q)
				} else if assert.Nil(t, srq.RecvCQ()); c.conn.RecvCQSize == 0 {
					assert.Nil(t, q)
					q = b.CQ()
				}
				if c.conn.SharedChannel {
					got, recvs, err := b.Wait(timeout(t))
					require.NoError(t, err)
					require.True(t, recvs)
					require.Same(t, q, got)
				} else {
					_, _, err := b.Wait(timeout(t))
					assert.ErrorIs(t, err, ErrNotSharedChannel)
				}
				wcs := make([]ibv.WC, 1)
				for n := 0; n == 0; {
					n, err = q.Poll(wcs)
					require.NoError(t, err)
				}
				assert.Equal(t, i, wcs[0].WRID)
				assert.Equal(t, b.QPNum(), wcs[0].QPNum)
				imm, ok := Immediate(&wcs[0])
				assert.True(t, ok)
				assert.Equal(t, uint32(i), imm)
			}
		})
	}
}

// TestConnConfig checks defaults and invalid configurations.
func TestConnConfig(t *testing.T) {
	full, err := (*ConnConfig)(nil).complete("")
	require.NoError(t, err)
	assert.Equal(t, ConnConfig{Timeout: defaultTimeout, SQSize: 10, RQSize: 10, CQSize: 20}, full)
	full, err = (&ConnConfig{SQSize: 7, RQSize: 3, CQSize: 50, RecvCQSize: 1}).complete("")
	require.NoError(t, err)
	assert.Equal(t, ConnConfig{Timeout: defaultTimeout, SQSize: 7, RQSize: 3, CQSize: 50, RecvCQSize: 3}, full)
	for _, bad := range []ConnConfig{{Timeout: -1}, {SQSize: -1}, {RQSize: -1}, {CQSize: -1}, {RecvCQSize: -1}} {
		_, err := bad.complete("")
		assert.ErrorIs(t, err, ErrInvalid)
	}
	r := newPair(t, options{})
	srq, err := r.a.peer.NewSRQ(SRQConfig{RQSize: 3, RecvCQSize: 30})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	_, err = r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), &ConnConfig{SRQ: srq, SharedChannel: true})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = r.a.peer.NewSRQ(SRQConfig{RQSize: -1})
	assert.ErrorIs(t, err, ErrInvalid)
}

// TestReceiveBeforeConnection checks that a receive posted to a request gets the connection's first message.
func TestReceiveBeforeConnection(t *testing.T) {
	r := newPair(t, options{})
	localMR, remote := r.a.memory(8, everyUsage), r.b.memory(8, everyUsage)
	copy(localMR.Bytes(), "first")
	out, err := r.a.peer.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	require.NoError(t, err)
	a, err := out.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	in, err := r.ep.NextConnRequest(timeout(t), nil)
	require.NoError(t, err)
	require.NoError(t, in.Recv(remote, 0, 8, 42))
	b, err := in.Connect(nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	assert.ErrorIs(t, in.Recv(remote, 0, 8, 0), rdma.ErrClosed)
	require.NoError(t, a.WaitEstablished(timeout(t)))
	require.NoError(t, a.Send(localMR, 0, 5, Always, 1))
	wc := completion(t, b.CQ())
	assert.Equal(t, uint64(42), wc.WRID)
	assert.Equal(t, "first", string(remote.Bytes()[:5]))
}

// TestFindDevice finds devices by their own and by remote addresses, and checks that invalid addresses are rejected.
func TestFindDevice(t *testing.T) {
	r := newPair(t, options{})
	assert.Equal(t, "soft0", r.a.device.Name())
	for host, name := range map[string]string{addressB: "soft1", "soft1": "soft1"} {
		d, err := FindDeviceOn(timeout(t), r.fabric, Remote, host)
		require.NoError(t, err)
		assert.Equal(t, name, d.Name())
		require.NoError(t, d.Close())
	}
	for _, side := range []Side{Local, Remote} {
		for _, host := range []string{"127.0.0.77", "nobody", "::"} {
			_, err := FindDeviceOn(timeout(t), r.fabric, side, host)
			assert.Error(t, err, host)
		}
	}
	_, err := FindDeviceOn(timeout(t), r.fabric, 7, addressA)
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = NewPeer(nil, PeerOptions{})
	assert.ErrorIs(t, err, ErrInvalid)
	_, err = ODPCapable(nil)
	assert.ErrorIs(t, err, ErrInvalid)
}

// TestOtherDevice checks that a peer connects only over its own device.
func TestOtherDevice(t *testing.T) {
	r := newPair(t, options{})
	device, err := FindDeviceOn(timeout(t), r.fabric, Remote, addressA) // without a source address
	require.NoError(t, err)
	p, err := NewPeer(device, PeerOptions{})
	require.NoError(t, err)
	_, err = p.NewConnRequest(timeout(t), r.ep.Addr().String(), nil)
	assert.ErrorIs(t, err, ErrInvalid)
	assert.ErrorContains(t, err, "soft1")
	require.NoError(t, p.Close())
	require.NoError(t, device.Close())
}

// TestLogger checks that events are logged with the queue pair's number.
func TestLogger(t *testing.T) {
	var text bytes.Buffer
	SetLogger(slog.New(slog.NewTextHandler(&text, nil)))
	defer SetLogger(nil)
	connected(t, options{})
	assert.Contains(t, text.String(), "connection established")
}

// TestRemoteMRPrints checks that String omits the key.
func TestRemoteMRPrints(t *testing.T) {
	m := &RemoteMR{address: 0x1000, length: 4096, rkey: 0xabcde, usage: WriteDst | FlushVisibility}
	assert.Equal(t, "remote MR of 4096 bytes at 0x1000 (WriteDst|FlushVisibility)", fmt.Sprint(m))
}
