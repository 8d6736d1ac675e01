// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rpma"
)

// Sizes, as in the C peer.
const (
	size  = 4096
	large = 1 << 20
	slot  = 256 // per message
	desc  = rpma.MRDescriptorSize
)

const (
	localUsage  = rpma.ReadDst | rpma.WriteSrc
	remoteUsage = rpma.ReadSrc | rpma.WriteDst | rpma.FlushVisibility | rpma.FlushPersistent
)

// role is one end of a connection, with its observations in the format of rpmapeer.c.
type role struct {
	t        *testing.T
	ctx      context.Context
	at       netip.AddrPort
	out      strings.Builder
	device   *rpma.Device
	peer     *rpma.Peer
	conn     *rpma.Conn
	mr, msgs *rpma.MR
	remote   *rpma.RemoteMR
	recvs    *rpma.CQ // for receives, if separate
	kept     []ibv.WC // completions that were received out of order
}

func (r *role) must(err error) {
	r.t.Helper()
	require.NoError(r.t, err)
}

func (r *role) print(format string, args ...any) { fmt.Fprintf(&r.out, format+"\n", args...) }

// result prints the code that librpma would return.
func (r *role) result(name string, err error) { r.print("%s: %d", name, rpma.CodeOf(err)) }

func (r *role) event() {
	r.t.Helper()
	e, err := r.conn.NextEvent(r.ctx)
	r.must(err)
	r.print("event %d", e)
}

// next waits for the next completion of a receive, or of anything else; their relative order is undefined.
func (r *role) next(receive bool) (wc ibv.WC) {
	r.t.Helper()
	fits := func(wc ibv.WC) bool {
		return wc.Status != ibv.WC_SUCCESS || (wc.Opcode&ibv.WC_RECV != 0) == receive
	}
	for {
		if i := slices.IndexFunc(r.kept, fits); i >= 0 {
			wc = r.kept[i]
			r.kept = slices.Delete(r.kept, i, i+1)
			return wc
		}
		var one [1]ibv.WC
		q := r.conn.CQ()
		if receive && r.recvs != nil {
			q = r.recvs
		}
		n, err := q.Poll(one[:])
		r.must(err)
		r.kept = append(r.kept, one[:n]...)
		r.must(r.ctx.Err())
	}
}

func (r *role) completion(receive bool) {
	r.t.Helper()
	wc := r.next(receive)
	text := fmt.Sprintf("completion: context %d status %d", wc.WRID, wc.Status)
	if wc.Status == ibv.WC_SUCCESS {
		text += fmt.Sprintf(" opcode %d", wc.Opcode)
		if receive {
			text += fmt.Sprintf(" bytes %d", wc.ByteLen)
			if imm, ok := rpma.Immediate(&wc); ok {
				text += fmt.Sprintf(" imm %08x", imm)
			}
		}
	}
	r.print("%s", text)
}

func (r *role) sent()     { r.t.Helper(); r.completion(false) }
func (r *role) received() { r.t.Helper(); r.completion(true) }

func newRole(t *testing.T, at netip.AddrPort, side rpma.Side) *role {
	t.Helper()
	return newRoleWith(t, at, side, rpma.PeerOptions{})
}

func newRoleWith(t *testing.T, at netip.AddrPort, side rpma.Side, o rpma.PeerOptions) *role {
	t.Helper()
	backend, err := testbed.Backend()
	require.NoError(t, err)
	r := &role{t: t, ctx: timeout(t), at: at}
	r.device, err = rpma.FindDeviceOn(r.ctx, backend, side, at.Addr().String())
	r.must(err)
	r.peer, err = rpma.NewPeer(r.device, o)
	r.must(err)
	return r
}

// regions registers memory. A device that flushes to persistent memory accepts no other memory for such a flush.
func (r *role) regions(size int, usage rpma.Usage) {
	r.t.Helper()
	memory := make([]byte, size)
	var err error
	if r.mr, err = r.peer.RegMR(memory, usage); err != nil && usage&rpma.FlushPersistent != 0 {
		r.mr, err = r.peer.RegMR(memory, usage&^rpma.FlushPersistent)
	}
	r.must(err)
	r.msgs, err = r.peer.RegMR(make([]byte, 4096), rpma.SendSrc|rpma.RecvDst)
	r.must(err)
}

var config = rpma.ConnConfig{Timeout: 5 * time.Second, SQSize: 16, RQSize: 16, CQSize: 32}

func (r *role) receives(q *rpma.ConnRequest, n int) {
	r.t.Helper()
	for i := range uint64(n) {
		r.must(q.Recv(r.msgs, i*slot, slot, 100+i))
	}
}

func (r *role) connect(receives int) {
	r.t.Helper()
	q, err := r.peer.NewConnRequest(r.ctx, r.at.String(), &config)
	r.must(err)
	r.receives(q, receives)
	r.conn, err = q.Connect([]byte("from x\x00"))
	r.must(err)
	r.event()
	data := r.conn.PrivateData()
	r.remote, err = rpma.ParseRemoteMR(data[:desc])
	r.must(err)
	r.print("remote: size %d flush %d", r.remote.Len(), r.remote.FlushTypes())
	r.result("persistent flush before the peer's configuration",
		r.conn.Flush(r.remote, 0, 8, rpma.Persistent, rpma.Always, 99))
	config, err := rpma.ParsePeerConfig(data[desc : desc+1])
	r.must(err)
	direct := 0
	if config.DirectWriteToPmem {
		direct = 1
	}
	r.print("peer: direct write to pmem %d", direct)
	r.conn.ApplyRemotePeerConfig(config)
}

func (r *role) accept(receives int, ready func()) {
	r.t.Helper()
	descriptor := r.mr.Descriptor()
	pmem := rpma.PeerConfig{DirectWriteToPmem: true}.Descriptor()
	e, err := r.peer.Listen(r.ctx, r.at.String())
	r.must(err)
	ready()
	q, err := e.NextConnRequest(r.ctx, &config)
	r.must(err)
	r.print("private data %s", q.PrivateData()[:6])
	r.receives(q, receives)
	r.conn, err = q.Connect(append(descriptor[:], pmem[:]...))
	r.must(err)
	r.event()
	r.must(e.Close())
}

func (r *role) end() string {
	r.t.Helper()
	r.must(r.conn.Close())
	r.must(r.mr.Close())
	r.must(r.msgs.Close())
	r.must(r.peer.Close())
	r.must(r.device.Close())
	return r.out.String()
}

// x is the active side.
func x(t *testing.T, at netip.AddrPort) string {
	r := newRole(t, at, rpma.Remote)
	r.regions(size, localUsage)
	r.connect(2)
	m, msgs := r.mr.Bytes(), r.msgs.Bytes()
	copy(m, "written by x\x00")
	r.must(r.conn.Write(r.remote, 64, r.mr, 0, 13, rpma.Always, 1))
	r.sent()
	r.must(r.conn.Flush(r.remote, 64, 13, rpma.Visibility, rpma.Always, 2))
	r.sent()
	r.must(r.conn.Write(r.remote, 128, r.mr, 0, 12, rpma.OnError, 3))
	err := r.conn.Flush(r.remote, 128, 12, rpma.Persistent, rpma.Always, 4)
	if r.result("persistent flush", err); err == nil {
		r.sent()
	}
	r.must(r.conn.AtomicWrite(r.remote, 256, [8]byte([]byte("8 bytes!")), rpma.Always, 5))
	r.sent()
	r.must(r.conn.Read(r.mr, 1024, r.remote, 64, 256, rpma.Always, 6))
	r.sent()
	r.print("read %s, %s, %s", m[1024:1036], m[1088:1100], m[1216:1224])
	r.must(r.conn.WriteWithImm(r.remote, 512, r.mr, 0, 7, rpma.Always, 0x01020304, 7))
	r.sent()
	r.must(r.conn.WriteWithImm(nil, 0, nil, 0, 0, rpma.Always, 0xfedcba98, 8))
	r.sent()
	r.must(r.conn.Read(nil, 0, nil, 0, 0, rpma.Always, 12))
	r.sent()
	r.must(r.conn.Write(nil, 0, nil, 0, 0, rpma.Always, 13))
	r.sent()
	copy(msgs[1024:], "a message")
	r.must(r.conn.Send(r.msgs, 1024, 9, rpma.Always, 9))
	r.sent()
	r.must(r.conn.SendWithImm(r.msgs, 1026, 7, rpma.Always, 0xa1b2c3d4, 10))
	r.sent()
	r.must(r.conn.SendWithImm(nil, 0, 0, rpma.Always, 5, 11))
	r.sent()
	r.received() // replies of y
	r.received()
	r.print("received %s, %s", msgs[:9], msgs[slot:slot+7])
	r.event() // y disconnects
	r.must(r.conn.Disconnect())
	return r.end()
}

// y is the passive side.
func y(t *testing.T, at netip.AddrPort, ready func()) string {
	r := newRole(t, at, rpma.Local)
	r.regions(size, remoteUsage)
	r.accept(5, ready)
	for range 5 {
		r.received()
	}
	m, msgs := r.mr.Bytes(), r.msgs.Bytes()
	r.print("written %s, %s, %s, %s", m[64:76], m[128:140], m[256:264], m[512:519])
	r.print("received %s, %s", msgs[2*slot:2*slot+9], msgs[3*slot:3*slot+7])
	copy(msgs[2048:], "an answer")
	r.must(r.conn.Send(r.msgs, 2048, 9, rpma.Always, 1))
	r.sent()
	r.must(r.conn.SendWithImm(r.msgs, 2050, 7, rpma.Always, 77, 2))
	r.sent()
	r.must(r.conn.Disconnect())
	r.event()
	return r.end()
}

// serve accepts one connection, and closes it when the peer does.
func serve(t *testing.T, at netip.AddrPort, ready func()) string {
	return newRole(t, at, rpma.Local).serve(remoteUsage, ready)
}

func (r *role) serve(usage rpma.Usage, ready func()) string {
	r.t.Helper()
	r.regions(large, usage)
	r.accept(0, ready)
	r.event()
	r.must(r.conn.Disconnect())
	return r.end()
}

// mistakes makes the calls that fail.
func mistakes(t *testing.T, at netip.AddrPort) string {
	r := newRole(t, at, rpma.Remote)
	r.regions(size, localUsage)
	_, err := r.peer.RegMR(r.mr.Bytes(), 0)
	r.result("register without a usage", err)
	_, err = r.peer.RegMR(nil, localUsage)
	r.result("register nothing", err)
	_, err = rpma.ParseRemoteMR(make([]byte, desc))
	r.result("descriptor of no usage", err)
	_, err = rpma.ParseRemoteMR(make([]byte, desc-1))
	r.result("short descriptor", err)
	_, err = rpma.ParsePeerConfig(nil)
	r.result("short configuration", err)
	r.connect(0)
	canceled, cancel := context.WithCancel(r.ctx)
	cancel()
	_, err = r.conn.CQ().Wait(canceled, make([]ibv.WC, 1))
	r.result("no completion", err)
	_, _, err = r.conn.Wait(r.ctx)
	r.result("wait of a shared channel", err)
	_, err = r.conn.NextEvent(canceled)
	r.result("no event", err)
	c, value := r.conn, [8]byte([]byte("8 bytes!"))
	for _, call := range []struct {
		name string
		err  error
	}{
		{"write without flags", c.Write(r.remote, 0, r.mr, 0, 8, 0, 0)},
		{"read without flags", c.Read(r.mr, 0, r.remote, 0, 8, 0, 0)},
		{"send without flags", c.Send(r.msgs, 0, 8, 0, 0)},
		{"send with immediate data without flags", c.SendWithImm(r.msgs, 0, 8, 0, 1, 0)},
		{"write with immediate data without flags", c.WriteWithImm(r.remote, 0, r.mr, 0, 8, 0, 1, 0)},
		{"atomic write without flags", c.AtomicWrite(r.remote, 0, value, 0, 0)},
		{"flush without flags", c.Flush(r.remote, 0, 8, rpma.Visibility, 0, 0)},
		{"atomic write to an odd place", c.AtomicWrite(r.remote, 4, value, rpma.Always, 0)},
		{"write of no region", c.Write(r.remote, 0, nil, 0, 8, rpma.Always, 0)},
		{"write to no region", c.Write(nil, 0, r.mr, 0, 8, rpma.Always, 0)},
		{"read into no region", c.Read(nil, 0, r.remote, 0, 8, rpma.Always, 0)},
		{"send of no region", c.Send(nil, 0, 8, rpma.Always, 0)},
		{"send of no region at an offset", c.Send(nil, 8, 0, rpma.Always, 0)},
		{"send with immediate data of no region", c.SendWithImm(nil, 0, 8, rpma.Always, 1, 0)},
		{"receive into no region", c.Recv(nil, 0, 8, 0)},
	} {
		r.result(call.name, call.err)
	}
	wrong := slices.Clone(c.PrivateData()[:desc])
	wrong[17] ^= 0xff // a byte of the key
	none, err := rpma.ParseRemoteMR(wrong)
	r.must(err)
	r.must(c.Write(none, 0, r.mr, 0, 8, rpma.OnError, 1))
	r.sent()
	r.must(r.conn.Disconnect())
	return r.end()
}

// full fills the queues: sends wait for receives, which a "serve" never posts, until the connection ends. C's queues
// have the capacity of the device, ours the requested one.
func full(t *testing.T, at netip.AddrPort) string {
	r := newRole(t, at, rpma.Remote)
	r.regions(size, localUsage)
	r.connect(0)
	fill := func(post func(id uint64) error) (n uint64, err error) {
		for err == nil {
			if err = post(n); err == nil {
				n++
			}
		}
		return n, err
	}
	sends, err := fill(func(id uint64) error { return r.conn.Send(r.msgs, 0, slot, rpma.Always, id) })
	r.print("room for 16 sends: %d, then %d", min(sends/16, 1), rpma.CodeOf(err))
	receives, err := fill(func(id uint64) error { return r.conn.Recv(r.msgs, slot, slot, 100+id) })
	r.print("room for 16 receives: %d, then %d", min(receives/16, 1), rpma.CodeOf(err))
	r.must(r.conn.Disconnect())
	for range sends + receives {
		wc := r.next(false) // the opcode of a failed completion is undefined
		require.Equal(t, ibv.WC_WR_FLUSH_ERR, wc.Status)
	}
	r.print("all have ended")
	return r.end()
}
