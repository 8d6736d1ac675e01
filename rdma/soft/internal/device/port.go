// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"net/netip"
	"slices"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/message"
	"github.com/goverbs/goverbs/runtime"
)

// Request takes a request that is for one of the device's queue pairs, or for a group of them, and answers it. The
// caller holds Fabric.mu.
func (d *device) Request(m *message.Request) *message.Answer {
	f := d.fabric
	switch {
	case f.bySender() && m.Transport != ibv.QPT_UD: // the requester of this process has made it whole
		return d.carry(m)
	case !m.IsWhole():
		d.count(counters.BadLength)
		f.lose(m)
	case m.Transport == ibv.QPT_UD:
		d.datagrams(m)
	default:
		return d.guarded(m, d)
	}
	return nil
}

// guarded executes a request, and repeats it if memory of this side turns out to be gone. If the memory of the message
// is gone, the panic passes to its sender, if that is in the middle of sending; other messages are lost.
func (d *device) guarded(m *message.Request, by carrier) *message.Answer {
	f := d.fabric
	a, gone := d.try(m, by)
	if gone == nil {
		return a
	}
	defer func(before bool) { f.careful = before }(f.careful)
	for range attempts {
		if !mem.TouchAll(m.Payload) {
			break
		}
		f.careful = true
		if a, gone = d.try(m, by); gone == nil {
			return a
		}
	}
	if f.guarded {
		panic(gone)
	}
	f.lose(m)
	return nil
}

// carrier is the receiver of a request: a device for connections, a queue pair for datagrams.
type carrier interface {
	// carry carries the request out, and returns the answer. The caller holds Fabric.mu.
	carry(m *message.Request) *message.Answer
}

// try executes a request. It returns a panic caused by missing memory. If no caller further up recovers, it reads the
// data of the answer itself.
func (d *device) try(m *message.Request, by carrier) (a *message.Answer, gone any) {
	f := d.fabric
	done, before := false, f.guard()
	defer func() {
		f.unguard(before)
		if !done {
			gone = f.fault(recover())
		}
	}()
	if a = by.carry(m); a != nil && a.Data != nil && !before.guarded {
		a = a.Clone()
	}
	done = true
	return a, nil
}

// carry takes a request of a connection. The caller holds Fabric.mu.
func (d *device) carry(m *message.Request) *message.Answer {
	q := d.fabric.qpOf(m.DestQP)
	if q == nil || q.device != d {
		d.drop(m, counters.UnknownQP)
		return nil
	}
	if q.sender != nil { // a packet does not name its source queue pair
		m.SourceQP = q.attr.DestQPNum
	}
	switch {
	case d.down:
		d.drop(m, counters.WhileDown)
	case q.out.To.Link != m.From.Link || q.attr.DestQPNum != m.SourceQP:
		d.drop(m, counters.StrangePeer)
	case !q.receives():
		d.drop(m, counters.WrongState)
		return q.refuseAgain(m)
	case m.Transport != q.expectsOf:
		d.drop(m, counters.WrongKind)
	case !q.inPartition(m.PKey): // which counts it
		d.fabric.lose(m)
	case q.reliable && !q.inStep(m):
		d.drop(m, counters.BehindGaps)
	default:
		return q.arrives(m)
	}
	return nil
}

// drop counts an unanswered request of a connection.
func (d *device) drop(m *message.Request, why counters.Counter) {
	d.count(why)
	d.fabric.lose(m)
}

// Answer takes an answer to a request of one of the device's queue pairs that did not come at once. An answer that does
// not fit is dropped. The caller holds Fabric.mu.
func (d *device) Answer(a *message.Answer) {
	q := d.fabric.qpOf(a.DestQP)
	switch {
	case q == nil || q.device != d:
		d.count(counters.UnknownQP)
		return
	case d.down:
		d.count(counters.WhileDown)
		return
	case a.From.Link != q.out.To.Link:
		d.count(counters.StrangePeer)
		return
	case a.Life != q.out.Life && a.Life != 0:
		d.count(counters.LateAnswers)
		return
	case q.sender != nil && a.Transport != q.kind: // UC gets no answers
		d.count(counters.WrongKind)
		return
	case q.sender != nil && !q.inPartition(a.PKey): // which counts it
		return
	}
	if q.answered(a); !q.moving {
		q.progress()
	}
}

// datagrams takes a datagram that is for one of the device's queue pairs, or for a group.
func (d *device) datagrams(m *message.Request) {
	f := d.fabric
	if d.down {
		d.count(counters.WhileDown)
		return
	}
	if !m.To.IsGroup() {
		switch q := f.qpOf(m.DestQP); {
		case q == nil || q.device != d:
			d.count(counters.UnknownQP)
		case q.kind != ibv.QPT_UD:
			d.count(counters.WrongKind)
		case f.bySender():
			q.carry(m)
		default:
			d.guarded(m, q)
		}
		return
	}
	if m.DestQP != multicastQPN {
		d.count(counters.UnknownQP)
		return
	}
	if len(f.groups[m.To.GID]) == 0 { // the last one has left
		d.count(counters.UnknownQP)
	}
	for _, q := range f.groups[m.To.GID] { // each by itself: others have the message already when memory of one is gone
		own := q.unheard && m.SourceQP == q.number && slices.Contains(d.gids, m.From.GID)
		if q.device == d && !own {
			d.guarded(m, q)
		}
	}
}

// port returns the attributes of the port.
func (d *device) port() ibv.PortAttr {
	a := ibv.PortAttr{
		State: ibv.PORT_ACTIVE, MaxMTU: ibv.MTU_4096, ActiveMTU: d.mtu, GIDTblLen: gidEntries,
		PortCapFlags: ibv.PORT_CM_SUP | ibv.PORT_IP_BASED_GIDS,
		MaxMsgSz:     maxMessage, BadPKeyCntr: uint32(d.counts[counters.BadPKey]),
		QKeyViolCntr: uint32(d.counts[counters.BadQKey]),
		PKeyTblLen:   uint16(len(d.pkeys)),
		MaxVLNum:     1,
		ActiveWidth:  ibv.IB_WIDTH_4X, ActiveSpeed: ibv.IB_SPEED_EDR, PhysState: ibv.IB_PORT_PHYS_STATE_LINK_UP,
		LinkLayer: ibv.LINK_LAYER_ETHERNET,
		Flags:     ibv.QPF_GRH_REQUIRED,
	}
	if d.down {
		a.State, a.PhysState = ibv.PORT_DOWN, ibv.IB_PORT_PHYS_STATE_DISABLED
	}
	return a
}

// queryPort is ibv_query_port, with the size of the caller's record: the record of the old symbol lacks the newer
// fields.
func queryPort(c *context, port uint8, record, size uint64) runtime.Errno {
	if port != portNum || record == 0 {
		return syscall.EINVAL
	}
	if c.isGone() {
		return syscall.EIO
	}
	c.device.fabric.mu.Lock()
	v := c.device.port()
	c.device.fabric.mu.Unlock()
	n := min(size, uint64(unsafe.Sizeof(v)))
	copy(list[byte](record, int(n)), list[byte](addressOf(&v), int(n)))
	clear(list[byte](record+n, int(size-n)))
	return 0
}

const oldPortSize = unsafe.Offsetof(ibv.PortAttr{}.PortCapFlags2)

func queryPortSymbol(of ibv.Ptr[ibv.Context], port uint8, attr uint64) runtime.Errno {
	c := find[context](of)
	if c == nil {
		return syscall.EINVAL
	}
	return queryPort(c, port, attr, uint64(oldPortSize))
}

// portSpeed is that of four lanes of EDR, in units of 100 Mb/s.
const portSpeed = 1000

// queryPortSpeed is ibv_query_port_speed.
func queryPortSpeed(of ibv.Ptr[ibv.Context], port uint32, to ibv.Ptr[uint64]) runtime.Errno {
	c := find[context](of)
	if c == nil || port != portNum || to == 0 {
		return syscall.EINVAL
	}
	if c.isGone() {
		return syscall.EIO
	}
	*to.Deref() = portSpeed
	return 0
}

func queryGID(of ibv.Ptr[ibv.Context], port uint8, index int32, to ibv.Ptr[[16]byte]) runtime.Errno {
	c := find[context](of)
	if c == nil || port != portNum || index < 0 || index >= gidEntries || to == 0 {
		return syscall.EINVAL
	}
	f := c.fabric()
	f.mu.Lock()
	defer f.unlock()
	gid, _ := c.device.gidAt(uint8(index))
	*to.Deref() = gid
	return 0
}

func (d *device) gidEntry(i int) ibv.GIDEntry {
	e := ibv.GIDEntry{GIDIndex: uint32(i), PortNum: portNum, GIDType: ibv.GID_TYPE_ROCE_V2}
	*e.GID.Raw() = d.gids[i]
	if ip := netip.AddrFrom16(d.gids[i]); ip.IsLinkLocalUnicast() && !ip.Is4In6() { // which needs it
		e.NDevIfindex = d.Scope(ip)
	}
	return e
}

func queryGIDEx(of ibv.Ptr[ibv.Context], port, index uint32, entry uint64, flags uint32, size uint64) runtime.Errno {
	c := find[context](of)
	if c == nil || port != portNum || index >= gidEntries || entry == 0 || flags != 0 {
		return syscall.EINVAL
	}
	f := c.fabric()
	f.mu.Lock()
	defer f.unlock()
	if _, ok := c.device.gidAt(uint8(index)); !ok {
		return errnos.ENODATA
	}
	e := c.device.gidEntry(int(index))
	n := min(size, uint64(unsafe.Sizeof(e)))
	copy(list[byte](entry, int(n)), list[byte](addressOf(&e), int(n)))
	return 0
}

func queryGIDTable(of ibv.Ptr[ibv.Context], entries, most uint64, flags uint32, size uint64) int64 {
	c := find[context](of)
	if c == nil || entries == 0 || flags != 0 || size < uint64(unsafe.Sizeof(ibv.GIDEntry{})) {
		return -int64(syscall.EINVAL)
	}
	f := c.fabric()
	f.mu.Lock()
	defer f.unlock()
	n := uint64(0)
	for i := range c.device.gids {
		if _, ok := c.device.gidAt(uint8(i)); !ok {
			continue
		}
		if n == most {
			return -int64(syscall.EINVAL)
		}
		*at[ibv.GIDEntry](entries + n*size) = c.device.gidEntry(i)
		n++
	}
	return int64(n)
}

func queryPKey(of ibv.Ptr[ibv.Context], port uint8, index int32, to ibv.Ptr[ibv.BE16]) runtime.Errno {
	c := find[context](of)
	if c == nil || to == 0 {
		return syscall.EINVAL
	}
	if port != portNum || index < 0 || int(index) >= len(c.device.pkeys) {
		return syscall.ENOENT
	}
	*to.Deref() = ibv.ToBE16(c.device.pkeys[index])
	return 0
}

func pkeyIndex(of ibv.Ptr[ibv.Context], _ uint8, key ibv.BE16) (int32, runtime.Errno) {
	c := find[context](of)
	if c == nil {
		return -1, syscall.EINVAL
	}
	for i, own := range c.device.pkeys {
		if ibv.ToBE16(own) == key {
			return int32(i), 0
		}
	}
	return -1, syscall.ENOENT
}
