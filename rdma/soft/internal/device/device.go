// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/resource"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
	"github.com/goverbs/goverbs/runtime"
)

// device is one of a fabric's, with one port.
type device struct {
	fabric *Fabric
	record *ibv.Device
	index  int
	guid   uint64
	link   uint64     // address of its port on the wire: the Ethernet address that the GUID is made of
	gids   [][16]byte // zeros where an address was taken away
	pkeys  []uint16
	mtu    ibv.MTU
	down   bool // its link
	gone   bool // it was taken away
	// persistent allows memory to be registered as persistent.
	persistent bool
	links      []*roce.Link            // to other fabrics: one for each address, if it speaks to them
	wired      bool                    // it does
	joined     map[[16]byte]*roce.Link // groups of multicast that its queue pairs are in, then
	contexts   []*context
	lists      int // that ibv_get_device_list gave, and that it is in
	keys       resource.Keys
	inodes     map[string]*domain // XRC domains that files name
	handles    uint32             // last one given
	dmUsed     uint64             // bytes of it that are given out
	has        limits             // objects that there are
	limits     limits
	counts     counters.Counts
}

func (d *device) count(c counters.Counter) { d.counts[c]++ }

// Capabilities of a device.
const (
	maxSGE      = 32
	maxInline   = 1024
	maxQPWR     = 1 << 15
	maxCQE      = 1 << 22
	maxSRQWR    = 1 << 15
	maxReads    = 128
	maxMessage  = 1 << 31
	maxMRSize   = 1 << 47
	portNum     = 1
	maxGroupQPs = 240
	maxTags     = 1 << 14
	maxTagOps   = 1 << 12
	ackDelay    = 15        // code of the time within which an acknowledgement comes
	clockKHz    = 1_000_000 // cycles are nanoseconds
	maxSRQs     = 1 << 14
	gidEntries  = 256 // the range of an index
)

func newDevice(f *Fabric, o DeviceOptions, ordinal uint32) (*device, error) {
	p, err := all.space.Alloc(int(unsafe.Sizeof(ibv.Device{})))
	if err != nil {
		return nil, err
	}
	d := &device{fabric: f, record: (*ibv.Device)(p), pkeys: slices.Clone(o.PKeys), mtu: o.MTU,
		persistent: o.Persistent, down: o.Down, inodes: map[string]*domain{}, limits: defaultLimits}
	d.record.NodeType, d.record.TransportType = ibv.NODE_CA, ibv.TRANSPORT_IB
	copy(d.record.Name[:len(d.record.Name)-1], o.Name)
	copy(d.record.DevName[:len(d.record.DevName)-1], o.Name)
	if len(d.pkeys) == 0 {
		d.pkeys = []uint16{0xffff}
	}
	if d.mtu == 0 {
		d.mtu = ibv.MTU_4096
	}
	d.guid = 0x02_00_00_ff_fe_00_00_00 | uint64(ordinal&0xffffff)
	if o.Wire { // peers know a device by it, and other processes have devices, too
		var random [5]byte
		rand.Read(random[:])
		d.guid |= uint64(binary.BigEndian.Uint16(random[:])) << 40
		d.guid = d.guid&^0xffffff | uint64(random[2])<<16 | uint64(random[3])<<8 | uint64(random[4])
	}
	local := [16]byte{0: 0xfe, 1: 0x80}
	binary.BigEndian.PutUint64(local[8:], d.guid)
	gids := [][16]byte{local, o.Address.As16()}
	if d.wired = o.Wire; d.wired {
		d.keys.Hide()
		d.joined = map[[16]byte]*roce.Link{}
		gids = gids[1:] // others reach it by its address alone
	}
	mac := d.mac()
	d.link = uint64(binary.BigEndian.Uint16(mac[:]))<<32 | uint64(binary.BigEndian.Uint32(mac[2:]))
	for _, gid := range gids {
		d.gids = append(d.gids, gid)
		f.reach(gid, d)
	}
	f.direct.Attach(d.link, d)
	enter(d.record, d)
	return d, nil
}

// deviceList is ibv_get_device_list.
func (f *Fabric) deviceList(count ibv.Ptr[int32]) (uint64, runtime.Errno) {
	f.mu.Lock()
	defer f.unlock()
	p, err := all.space.Alloc((len(f.devices) + 1) * int(unsafe.Sizeof(uintptr(0))))
	if err != nil {
		return 0, syscall.ENOMEM
	}
	devices := unsafe.Slice((*ibv.Ptr[ibv.Device])(p), len(f.devices)+1)
	for i, d := range f.devices {
		devices[i] = ibv.PtrTo(d.record)
		d.lists++
	}
	if count != 0 {
		*count.Deref() = int32(len(f.devices))
	}
	enter(&devices[0], &deviceList{f, slices.Clone(f.devices)})
	return uint64(uintptr(p)), 0
}

type deviceList struct {
	fabric  *Fabric
	devices []*device
}

func freeDeviceList(of ibv.Ptr[ibv.Ptr[ibv.Device]]) runtime.Errno {
	l := find[deviceList](of)
	if l == nil {
		return 0
	}
	l.fabric.mu.Lock()
	defer l.fabric.unlock()
	if mayGo(l.fabric, of, l, never) == 0 {
		forget(of.Deref())
		for _, d := range l.devices {
			d.lists--
			d.release()
		}
	}
	return 0
}

func deviceName(of ibv.Ptr[ibv.Device]) (uint64, runtime.Errno) {
	d := find[device](of)
	if d == nil {
		return 0, syscall.EINVAL
	}
	return addressOf(&d.record.Name[0]), 0
}

func deviceIndex(of ibv.Ptr[ibv.Device]) (int32, runtime.Errno) {
	if d := find[device](of); d != nil {
		return int32(d.index), 0
	}
	return -1, syscall.EINVAL
}

func deviceGUID(of ibv.Ptr[ibv.Device]) (ibv.BE64, runtime.Errno) {
	d := find[device](of)
	if d == nil {
		return 0, syscall.EINVAL
	}
	return ibv.ToBE64(d.guid), 0
}

// vendor is the number of none, which Soft-RoCE has, too.
const vendor = 0xffffff

// attributes are those of ibv_query_device.
func (d *device) attributes() (a ibv.DeviceAttr) {
	copy(a.FWVer[:], "1.0")
	a.VendorID = vendor
	a.NodeGUID, a.SysImageGUID = ibv.GUID(ibv.ToBE64(d.guid)), ibv.GUID(ibv.ToBE64(d.guid))
	a.MaxMRSize, a.PageSizeCap = maxMRSize, ^uint64(0xfff)
	most := &d.limits
	a.MaxPD, a.MaxMR, a.MaxMW, a.MaxCQ = int32(most.pd), int32(most.mr), int32(most.mw), int32(most.cq)
	a.MaxQP, a.MaxSRQ, a.MaxAH = int32(most.qp), int32(most.srq), int32(most.ah)
	a.MaxMcastGrp, a.MaxMcastQPAttach, a.MaxTotalMcastQPAttach = int32(most.groups), maxGroupQPs,
		int32(most.groups*maxGroupQPs)
	a.DeviceCapFlags = ibv.DEVICE_BAD_PKEY_CNTR | ibv.DEVICE_BAD_QKEY_CNTR | ibv.DEVICE_CURR_QP_STATE_MOD |
		ibv.DEVICE_PORT_ACTIVE_EVENT |
		ibv.DEVICE_SYS_IMAGE_GUID | ibv.DEVICE_RC_RNR_NAK_GEN | ibv.DEVICE_SRQ_RESIZE | ibv.DEVICE_MEM_WINDOW |
		ibv.DEVICE_XRC |
		ibv.DEVICE_MEM_MGT_EXTENSIONS | ibv.DEVICE_MEM_WINDOW_TYPE_2B
	a.MaxSGE, a.MaxSGERd = maxSGE, maxSGE
	a.MaxQPWR, a.MaxCQE, a.MaxSRQWR, a.MaxSRQSGE = maxQPWR, maxCQE, maxSRQWR, maxSGE
	a.MaxQPRdAtom, a.MaxResRdAtom, a.MaxQPInitRdAtom = maxReads, maxReads*a.MaxQP, maxReads
	a.AtomicCap = ibv.ATOMIC_HCA
	a.MaxPKeys, a.LocalCAAckDelay, a.PhysPortCnt = uint16(len(d.pkeys)), ackDelay, portNum
	return a
}

func queryDevice(of ibv.Ptr[ibv.Context], attr ibv.Ptr[ibv.DeviceAttr]) runtime.Errno {
	c := find[context](of)
	if c == nil || attr == 0 {
		return syscall.EINVAL
	}
	if c.isGone() {
		return syscall.EIO
	}
	*attr.Deref() = c.device.attributes()
	return 0
}

// queryDeviceEx fills in as much as the caller's record holds.
func queryDeviceEx(c *context, record uint64, size uint64) runtime.Errno {
	if record == 0 || size < uint64(unsafe.Sizeof(ibv.DeviceAttr{})) {
		return syscall.EINVAL
	}
	v := ibv.DeviceAttrEx{OrigAttr: c.device.attributes()}
	v.CompletionTimestampMask, v.HCACoreClock = ^uint64(0), clockKHz
	v.DeviceCapFlagsEx = ibv.DeviceCapFlags64(v.OrigAttr.DeviceCapFlags) | flushGlobal | flushPersistent | atomicWrite
	v.TMCaps = ibv.TMCaps{MaxRndvHdrSize: 64, MaxNumTags: maxTags, Flags: ibv.TM_CAP_RC, MaxOps: maxTagOps,
		MaxSGE: maxSGE}
	v.PhysPortCntEx = portNum
	v.MaxDMSize = maxDM
	v.CQModCaps = ibv.CQModerationCaps{MaxCQCount: ^uint16(0), MaxCQPeriod: ^uint16(0)}
	v.ODPCaps.GeneralCaps = ibv.ODP_SUPPORT | ibv.ODP_SUPPORT_IMPLICIT
	const datagrams = ibv.ODP_SUPPORT_SEND | ibv.ODP_SUPPORT_RECV | ibv.ODP_SUPPORT_SRQ_RECV
	v.ODPCaps.PerTransportCaps = ibv.ODPTransportCaps{RCODPCaps: everyODP,
		UCODPCaps: datagrams&^ibv.ODP_SUPPORT_SRQ_RECV | ibv.ODP_SUPPORT_WRITE, UDODPCaps: datagrams}
	v.XRCODPCaps = everyODP
	n := min(size, uint64(unsafe.Sizeof(v)))
	copy(list[byte](record, int(n)), list[byte](addressOf(&v), int(n)))
	return 0
}

// everyODP are the operations of connected queue pairs on on-demand regions.
const everyODP = ibv.ODP_SUPPORT_SEND | ibv.ODP_SUPPORT_RECV | ibv.ODP_SUPPORT_WRITE | ibv.ODP_SUPPORT_READ |
	ibv.ODP_SUPPORT_ATOMIC | ibv.ODP_SUPPORT_SRQ_RECV | ibv.ODP_SUPPORT_FLUSH | ibv.ODP_SUPPORT_ATOMIC_WRITE

// Bits of device_cap_flags_ex that verbs.h does not name.
const (
	flushGlobal     = 1 << 38
	flushPersistent = 1 << 39
	atomicWrite     = 1 << 40
)

// queryRTValues is ibv_query_rt_values_ex: the clock that timestamps are of.
func queryRTValues(c *context, record uint64) runtime.Errno {
	if record == 0 {
		return syscall.EINVAL
	}
	v := at[ibv.ValuesEx](record)
	if v.CompMask&ibv.VALUES_MASK_RAW_CLOCK == 0 {
		v.CompMask = 0
		return 0
	}
	now := c.device.fabric.Now()
	v.CompMask = ibv.VALUES_MASK_RAW_CLOCK
	v.RawClock = ibv.Timespec{TvSec: int64(now / time.Second), TvNsec: int64(now % time.Second)}
	return 0
}

// text returns the bytes before the first NUL.
func text(b []byte) string {
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}
