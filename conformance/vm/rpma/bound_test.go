// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librpma"
	rpmatypes "github.com/goverbs/goverbs/generated/rpma"
)

// bound is one end of a connection of librpma, called through generated/librpma. It makes the calls of the script in
// rpmapeer.c and records the results.
type bound struct {
	t            *testing.T
	testbed      *testbed.Testbed
	out          strings.Builder
	peer         ibv.Ptr[rpmatypes.Peer]
	conn         ibv.Ptr[rpmatypes.Conn]
	cq           ibv.Ptr[rpmatypes.CQ]
	mr, msgsMR   ibv.Ptr[rpmatypes.MRLocal]
	remote       ibv.Ptr[rpmatypes.MRRemote]
	memory, msgs []byte
	wc           *ibv.WC
	kept         []ibv.WC
}

func (b *bound) must(err error) {
	b.t.Helper()
	require.NoError(b.t, err)
}

func (b *bound) print(format string, args ...any) { fmt.Fprintf(&b.out, format+"\n", args...) }

// result prints the code that C returned.
func (b *bound) result(name string, err error) {
	var code rpmatypes.Error
	errors.As(err, &code)
	b.print("%s: %d", name, int32(code))
}

func at(memory []byte) uintptr { return uintptr(unsafe.Pointer(&memory[0])) }

func newBound(t *testing.T, r *testbed.Testbed, address netip.AddrPort, side rpmatypes.UtilIBVContextType, size int,
	usage rpmatypes.MRUsage) *bound {
	t.Helper()
	b := &bound{t: t, testbed: r, memory: r.Memory(size), msgs: r.Memory(4096), wc: &testbed.Records[ibv.WC](r, 1)[0]}
	var device ibv.Ptr[ibv.Context]
	b.must(librpma.UtilsGetIBVContext(address.Addr().String(), side, &device))
	b.must(librpma.PeerNew(device.Deref(), &b.peer))
	err := librpma.MRReg(b.peer.Deref(), at(b.memory), uint64(size), usage, &b.mr)
	if err != nil && usage&rpmatypes.MR_USAGE_FLUSH_TYPE_PERSISTENT != 0 {
		usage &^= rpmatypes.MR_USAGE_FLUSH_TYPE_PERSISTENT
		err = librpma.MRReg(b.peer.Deref(), at(b.memory), uint64(size), usage, &b.mr)
	}
	b.must(err)
	b.must(librpma.MRReg(b.peer.Deref(), at(b.msgs), 4096, rpmatypes.MR_USAGE_SEND|rpmatypes.MR_USAGE_RECV, &b.msgsMR))
	return b
}

func (b *bound) config() (cfg ibv.Ptr[rpmatypes.ConnCfg]) {
	b.t.Helper()
	b.must(librpma.ConnCfgNew(&cfg))
	b.must(librpma.ConnCfgSetTimeout(cfg.Deref(), 5000))
	b.must(librpma.ConnCfgSetSQSize(cfg.Deref(), 16))
	b.must(librpma.ConnCfgSetRQSize(cfg.Deref(), 16))
	b.must(librpma.ConnCfgSetCQSize(cfg.Deref(), 32))
	return cfg
}

func (b *bound) event() {
	b.t.Helper()
	event := rpmatypes.CONN_UNDEFINED
	b.must(librpma.ConnNextEvent(b.conn.Deref(), &event))
	b.print("event %d", event)
}

// next returns the next completion of a send or a receive and keeps those of the other kind, like next in rpmapeer.c.
func (b *bound) next(receive bool) ibv.WC {
	b.t.Helper()
	for {
		for i, wc := range b.kept {
			if wc.Status != ibv.WC_SUCCESS || (wc.Opcode&ibv.WC_RECV != 0) == receive {
				b.kept = append(b.kept[:i], b.kept[i+1:]...)
				return wc
			}
		}
		var n int32
		err := librpma.CQGetWC(b.cq.Deref(), 1, b.wc, &n)
		if errors.Is(err, rpmatypes.E_NO_COMPLETION) {
			continue
		}
		b.must(err)
		b.kept = append(b.kept, *b.wc)
	}
}

func (b *bound) completion(receive bool) {
	b.t.Helper()
	wc := b.next(receive)
	text := fmt.Sprintf("completion: context %d status %d", wc.WRID, wc.Status)
	if wc.Status == ibv.WC_SUCCESS {
		text += fmt.Sprintf(" opcode %d", wc.Opcode)
		if receive {
			text += fmt.Sprintf(" bytes %d", wc.ByteLen)
			if wc.WCFlags&ibv.WC_WITH_IMM != 0 {
				text += fmt.Sprintf(" imm %08x", wc.ImmData().Host())
			}
		}
	}
	b.print("%s", text)
}

func (b *bound) sent(err error) {
	b.t.Helper()
	b.must(err)
	b.completion(false)
}

func (b *bound) receives(q ibv.Ptr[rpmatypes.ConnReq], n int) {
	b.t.Helper()
	for i := range n {
		b.must(librpma.ConnReqRecv(q.Deref(), b.msgsMR.Deref(), uint64(i*slot), slot, uintptr(100+i)))
	}
}

// private returns private data outside the Go heap, since C follows a pointer in it. Without data, C stores its own
// data there.
func (b *bound) private(data []byte) *rpmatypes.ConnPrivateData {
	p := &testbed.Records[rpmatypes.ConnPrivateData](b.testbed, 1)[0]
	if len(data) > 0 {
		memory := b.testbed.Memory(len(data))
		copy(memory, data)
		p.Ptr, p.Len = at(memory), uint8(len(data))
	}
	return p
}

func (b *bound) connect(address netip.AddrPort, receives int) {
	b.t.Helper()
	cfg := b.config()
	var q ibv.Ptr[rpmatypes.ConnReq]
	host, port := address.Addr().String(), strconv.Itoa(int(address.Port()))
	b.must(librpma.ConnReqNew(b.peer.Deref(), host, port, cfg.Deref(), &q))
	b.receives(q, receives)
	b.must(librpma.ConnReqConnect(&q, b.private([]byte("from x\x00")), &b.conn))
	b.event()
	b.must(librpma.ConnCfgDelete(&cfg))
	b.must(librpma.ConnGetCQ(b.conn.Deref(), &b.cq))
	data := b.private(nil)
	b.must(librpma.ConnGetPrivateData(b.conn.Deref(), data))
	b.must(librpma.MRRemoteFromDescriptor(data.Ptr, desc, &b.remote))
	var size uint64
	var flush int32
	b.must(librpma.MRRemoteGetSize(b.remote.Deref(), &size))
	b.must(librpma.MRRemoteGetFlushType(b.remote.Deref(), &flush))
	b.print("remote: size %d flush %d", size, flush)
	b.result("persistent flush before the peer's configuration", librpma.Flush(b.conn.Deref(), b.remote.Deref(), 0, 8,
		rpmatypes.FLUSH_TYPE_PERSISTENT, rpmatypes.F_COMPLETION_ALWAYS, 99))
	var pcfg ibv.Ptr[rpmatypes.PeerCfg]
	b.must(librpma.PeerCfgFromDescriptor(data.Ptr+desc, 1, &pcfg))
	var direct bool
	b.must(librpma.PeerCfgGetDirectWriteToPMem(pcfg.Deref(), &direct))
	b.print("peer: direct write to pmem %d", map[bool]int{true: 1}[direct])
	b.must(librpma.ConnApplyRemotePeerCfg(b.conn.Deref(), pcfg.Deref()))
	b.must(librpma.PeerCfgDelete(&pcfg))
}

func (b *bound) accept(address netip.AddrPort, receives int, ready func()) {
	b.t.Helper()
	buffer := b.testbed.Memory(desc + 1)
	var pcfg ibv.Ptr[rpmatypes.PeerCfg]
	b.must(librpma.PeerCfgNew(&pcfg))
	b.must(librpma.PeerCfgSetDirectWriteToPMem(pcfg.Deref(), true))
	b.must(librpma.MRGetDescriptor(b.mr.Deref(), at(buffer)))
	b.must(librpma.PeerCfgGetDescriptor(pcfg.Deref(), at(buffer[desc:])))
	b.must(librpma.PeerCfgDelete(&pcfg))
	var ep ibv.Ptr[rpmatypes.EP]
	b.must(librpma.EPListen(b.peer.Deref(), address.Addr().String(), strconv.Itoa(int(address.Port())), &ep))
	ready()
	cfg := b.config()
	var q ibv.Ptr[rpmatypes.ConnReq]
	b.must(librpma.EPNextConnReq(ep.Deref(), cfg.Deref(), &q))
	data := b.private(nil)
	b.must(librpma.ConnReqGetPrivateData(q.Deref(), data))
	b.print("private data %s", unsafe.Slice(ibv.Ptr[byte](data.Ptr).Deref(), 6))
	b.receives(q, receives)
	b.must(librpma.ConnReqConnect(&q, b.private(buffer), &b.conn))
	b.must(librpma.ConnCfgDelete(&cfg))
	b.event()
	b.must(librpma.ConnGetCQ(b.conn.Deref(), &b.cq))
	b.must(librpma.EPShutdown(&ep))
}

func (b *bound) end() string {
	b.t.Helper()
	b.must(librpma.ConnDelete(&b.conn))
	if b.remote != 0 {
		b.must(librpma.MRRemoteDelete(&b.remote))
	}
	b.must(librpma.MRDereg(&b.mr))
	b.must(librpma.MRDereg(&b.msgsMR))
	b.must(librpma.PeerDelete(&b.peer))
	return b.out.String()
}

// boundX and boundY are the roles x and y.
func boundX(r *testbed.Testbed) active {
	return func(t *testing.T, address netip.AddrPort) string {
		const always = rpmatypes.F_COMPLETION_ALWAYS
		b := newBound(t, r, address, rpmatypes.UTIL_IBV_CONTEXT_REMOTE, size,
			rpmatypes.MR_USAGE_READ_DST|rpmatypes.MR_USAGE_WRITE_SRC)
		b.connect(address, 2)
		c, to, mr, msgs, m := b.conn.Deref(), b.remote.Deref(), b.mr.Deref(), b.msgsMR.Deref(), b.memory
		copy(m, "written by x\x00")
		b.sent(librpma.Write(c, to, 64, mr, 0, 13, always, 1))
		b.sent(librpma.Flush(c, to, 64, 13, rpmatypes.FLUSH_TYPE_VISIBILITY, always, 2))
		b.must(librpma.Write(c, to, 128, mr, 0, 12, rpmatypes.F_COMPLETION_ON_ERROR, 3))
		err := librpma.Flush(c, to, 128, 12, rpmatypes.FLUSH_TYPE_PERSISTENT, always, 4)
		if b.result("persistent flush", err); err == nil {
			b.completion(false)
		}
		value := [8]byte([]byte("8 bytes!"))
		b.sent(librpma.AtomicWrite(c, to, 256, &value, always, 5))
		b.sent(librpma.Read(c, mr, 1024, to, 64, 256, always, 6))
		b.print("read %s, %s, %s", m[1024:1036], m[1088:1100], m[1216:1224])
		b.sent(librpma.WriteWithImm(c, to, 512, mr, 0, 7, always, 0x01020304, 7))
		b.sent(librpma.WriteWithImm(c, nil, 0, nil, 0, 0, always, 0xfedcba98, 8))
		b.sent(librpma.Read(c, nil, 0, nil, 0, 0, always, 12))
		b.sent(librpma.Write(c, nil, 0, nil, 0, 0, always, 13))
		copy(b.msgs[1024:], "a message")
		b.sent(librpma.Send(c, msgs, 1024, 9, always, 9))
		b.sent(librpma.SendWithImm(c, msgs, 1026, 7, always, 0xa1b2c3d4, 10))
		b.sent(librpma.SendWithImm(c, nil, 0, 0, always, 5, 11))
		b.completion(true) // replies of y
		b.completion(true)
		b.print("received %s, %s", b.msgs[:9], b.msgs[slot:slot+7])
		b.event() // y disconnects
		b.must(librpma.ConnDisconnect(c))
		return b.end()
	}
}

func boundY(r *testbed.Testbed) passive {
	return func(t *testing.T, address netip.AddrPort, ready func()) string {
		const always = rpmatypes.F_COMPLETION_ALWAYS
		b := newBound(t, r, address, rpmatypes.UTIL_IBV_CONTEXT_LOCAL, size,
			rpmatypes.MR_USAGE_READ_SRC|rpmatypes.MR_USAGE_WRITE_DST|
				rpmatypes.MR_USAGE_FLUSH_TYPE_VISIBILITY|rpmatypes.MR_USAGE_FLUSH_TYPE_PERSISTENT)
		b.accept(address, 5, ready)
		for range 5 {
			b.completion(true)
		}
		m, msgs, c := b.memory, b.msgs, b.conn.Deref()
		b.print("written %s, %s, %s, %s", m[64:76], m[128:140], m[256:264], m[512:519])
		b.print("received %s, %s", msgs[2*slot:2*slot+9], msgs[3*slot:3*slot+7])
		copy(msgs[2048:], "an answer")
		b.sent(librpma.Send(c, b.msgsMR.Deref(), 2048, 9, always, 1))
		b.sent(librpma.SendWithImm(c, b.msgsMR.Deref(), 2050, 7, always, 77, 2))
		b.must(librpma.ConnDisconnect(c))
		b.event()
		return b.end()
	}
}

// TestBoundPeers runs librpma, called from Go without cgo, against package rpma in both roles, and compares its
// observations with those of the C program.
func TestBoundPeers(t *testing.T) {
	inC(t)
	r := testbed.Open(t)
	cx, cy := play(t, 7630, activeInC("x"), passiveInC("y"))
	bx, gy := play(t, 7631, boundX(r), y)
	gx, by := play(t, 7632, x, boundY(r))
	assert.Equal(t, []string{cx, cy, cx, cy}, []string{bx, gy, gx, by})
}
