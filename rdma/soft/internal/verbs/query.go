// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/errnos"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/runtime"
)

func deviceName(d *Device) (uint64, runtime.Errno) {
	return mem.AddressOf(&d.Record.Name[0]), 0
}

func deviceIndex(of ibv.Ptr[ibv.Device]) (int32, runtime.Errno) {
	if d := Find[Device](of); d != nil {
		return int32(d.Index), 0
	}
	return -1, syscall.EINVAL
}

func deviceGUID(of ibv.Ptr[ibv.Device]) (ibv.BE64, runtime.Errno) {
	d := Find[Device](of)
	if d == nil {
		return 0, syscall.EINVAL
	}
	return ibv.ToBE64(d.GUID), 0
}

// vendor is the ID of no vendor, as on Soft-RoCE.
const vendor = 0xffffff

// attributes returns the attributes of ibv_query_device.
func (d *Device) attributes() (a ibv.DeviceAttr) {
	copy(a.FWVer[:], "1.0")
	a.VendorID = vendor
	a.NodeGUID, a.SysImageGUID = ibv.GUID(ibv.ToBE64(d.GUID)), ibv.GUID(ibv.ToBE64(d.GUID))
	a.MaxMRSize, a.PageSizeCap = maxMRSize, ^uint64(0xfff)
	most := &d.Limits
	a.MaxPD, a.MaxMR, a.MaxMW, a.MaxCQ = int32(most.PD), int32(most.MR), int32(most.MW), int32(most.CQ)
	a.MaxQP, a.MaxSRQ, a.MaxAH = int32(most.QP), int32(most.SRQ), int32(most.AH)
	a.MaxMcastGrp, a.MaxMcastQPAttach, a.MaxTotalMcastQPAttach = int32(d.MostGroups), engine.MaxGroupQPs,
		int32(d.MostGroups*engine.MaxGroupQPs)
	a.DeviceCapFlags = ibv.DEVICE_BAD_PKEY_CNTR | ibv.DEVICE_BAD_QKEY_CNTR | ibv.DEVICE_CURR_QP_STATE_MOD |
		ibv.DEVICE_PORT_ACTIVE_EVENT |
		ibv.DEVICE_SYS_IMAGE_GUID | ibv.DEVICE_RC_RNR_NAK_GEN | ibv.DEVICE_SRQ_RESIZE | ibv.DEVICE_MEM_WINDOW |
		ibv.DEVICE_XRC |
		ibv.DEVICE_MEM_MGT_EXTENSIONS | ibv.DEVICE_MEM_WINDOW_TYPE_2B
	a.MaxSGE, a.MaxSGERd = engine.MaxSGE, engine.MaxSGE
	a.MaxQPWR, a.MaxCQE, a.MaxSRQWR, a.MaxSRQSGE = maxQPWR, maxCQE, maxSRQWR, engine.MaxSGE
	a.MaxQPRdAtom, a.MaxResRdAtom, a.MaxQPInitRdAtom = MaxReads, MaxReads*a.MaxQP, MaxReads
	a.AtomicCap = ibv.ATOMIC_HCA
	a.MaxPKeys, a.LocalCAAckDelay, a.PhysPortCnt = uint16(len(d.PKeys)), AckDelay, PortNum
	return a
}

func queryDevice(c *Context, attr *ibv.DeviceAttr) runtime.Errno {
	if c.Device.Gone {
		return syscall.EIO
	}
	*attr = c.Device.attributes()
	return 0
}

// queryDeviceEx fills in the part that fits the caller's record.
func queryDeviceEx(c *Context, input ibv.Ptr[ibv.QueryDeviceExInput], record, size uint64) runtime.Errno {
	if input != 0 && input.Deref().CompMask != 0 || record == 0 || size < uint64(unsafe.Sizeof(ibv.DeviceAttr{})) {
		return syscall.EINVAL
	}
	v := ibv.DeviceAttrEx{OrigAttr: c.Device.attributes()}
	v.CompletionTimestampMask, v.HCACoreClock = ^uint64(0), clockKHz
	v.DeviceCapFlagsEx = ibv.DeviceCapFlags64(v.OrigAttr.DeviceCapFlags) | FlushGlobal | FlushPersistent | AtomicWrite
	v.TMCaps = ibv.TMCaps{MaxRndvHdrSize: 64, MaxNumTags: maxTags, Flags: ibv.TM_CAP_RC, MaxOps: maxTagOps,
		MaxSGE: engine.MaxSGE}
	v.PhysPortCntEx = PortNum
	v.MaxDMSize = MaxDM
	v.CQModCaps = ibv.CQModerationCaps{MaxCQCount: ^uint16(0), MaxCQPeriod: ^uint16(0)}
	v.ODPCaps.GeneralCaps = ibv.ODP_SUPPORT | ibv.ODP_SUPPORT_IMPLICIT
	const datagrams = ibv.ODP_SUPPORT_SEND | ibv.ODP_SUPPORT_RECV | ibv.ODP_SUPPORT_SRQ_RECV
	v.ODPCaps.PerTransportCaps = ibv.ODPTransportCaps{RCODPCaps: everyODP,
		UCODPCaps: datagrams&^ibv.ODP_SUPPORT_SRQ_RECV | ibv.ODP_SUPPORT_WRITE, UDODPCaps: datagrams}
	v.XRCODPCaps = everyODP
	store(record, size, &v)
	return 0
}

// store copies the part of a structure that fits in the caller's record, and returns its size.
func store[T any](record, size uint64, v *T) uint64 {
	n := min(size, uint64(unsafe.Sizeof(*v)))
	copy(mem.List[byte](record, int(n)), mem.List[byte](mem.AddressOf(v), int(n)))
	return n
}

// everyODP has the operations of connected queue pairs on on-demand regions.
const everyODP = ibv.ODP_SUPPORT_SEND | ibv.ODP_SUPPORT_RECV | ibv.ODP_SUPPORT_WRITE | ibv.ODP_SUPPORT_READ |
	ibv.ODP_SUPPORT_ATOMIC | ibv.ODP_SUPPORT_SRQ_RECV | ibv.ODP_SUPPORT_FLUSH | ibv.ODP_SUPPORT_ATOMIC_WRITE

// Bits of device_cap_flags_ex that verbs.h does not name.
const (
	FlushGlobal     = 1 << 38
	FlushPersistent = 1 << 39
	AtomicWrite     = 1 << 40
)

// queryRTValues implements ibv_query_rt_values_ex: the clock of timestamps.
func queryRTValues(c *Context, v *ibv.ValuesEx) runtime.Errno {
	if v.CompMask&ibv.VALUES_MASK_RAW_CLOCK == 0 {
		v.CompMask = 0
		return 0
	}
	now := c.Device.On.Now()
	v.CompMask = ibv.VALUES_MASK_RAW_CLOCK
	v.RawClock = ibv.Timespec{TvSec: int64(now / time.Second), TvNsec: int64(now % time.Second)}
	return 0
}

// port returns the attributes of the port.
func (d *Device) port() ibv.PortAttr {
	a := ibv.PortAttr{
		State: ibv.PORT_ACTIVE, MaxMTU: ibv.MTU_4096, ActiveMTU: d.MTU, GIDTblLen: GIDEntries,
		PortCapFlags: ibv.PORT_CM_SUP | ibv.PORT_IP_BASED_GIDS,
		MaxMsgSz:     engine.MaxMessage, BadPKeyCntr: uint32(d.Counts[counters.BadPKey]),
		QKeyViolCntr: uint32(d.Counts[counters.BadQKey]),
		PKeyTblLen:   uint16(len(d.PKeys)),
		MaxVLNum:     1,
		ActiveWidth:  ibv.IB_WIDTH_4X, ActiveSpeed: ibv.IB_SPEED_EDR, PhysState: ibv.IB_PORT_PHYS_STATE_LINK_UP,
		LinkLayer: ibv.LINK_LAYER_ETHERNET,
		Flags:     ibv.QPF_GRH_REQUIRED,
	}
	if d.Down {
		a.State, a.PhysState = ibv.PORT_DOWN, ibv.IB_PORT_PHYS_STATE_DISABLED
	}
	return a
}

// queryPort implements ibv_query_port, with the size of the caller's record: the record of the old symbol lacks the
// newer fields.
func queryPort(c *Context, port uint8, record, size uint64) runtime.Errno {
	if port != PortNum || record == 0 {
		return syscall.EINVAL
	}
	if c.Device.Gone {
		return syscall.EIO
	}
	v := c.Device.port()
	n := store(record, size, &v)
	clear(mem.List[byte](record+n, int(size-n)))
	return 0
}

const oldPortSize = unsafe.Offsetof(ibv.PortAttr{}.PortCapFlags2)

func queryPortSymbol(c *Context, port uint8, attr uint64) runtime.Errno {
	return queryPort(c, port, attr, uint64(oldPortSize))
}

// portSpeed is the speed of four lanes of EDR, in units of 100 Mb/s.
const portSpeed = 1000

// queryPortSpeed implements ibv_query_port_speed.
func queryPortSpeed(c *Context, port uint32, to ibv.Ptr[uint64]) runtime.Errno {
	if port != PortNum || to == 0 {
		return syscall.EINVAL
	}
	if c.Device.Gone {
		return syscall.EIO
	}
	*to.Deref() = portSpeed
	return 0
}

func queryGID(c *Context, port uint8, index int32, to ibv.Ptr[[16]byte]) runtime.Errno {
	if port != PortNum || index < 0 || index >= GIDEntries || to == 0 {
		return syscall.EINVAL
	}
	gid, _ := c.Device.GIDAt(uint8(index))
	*to.Deref() = gid
	return 0
}

func (d *Device) gidEntry(i int) ibv.GIDEntry {
	e := ibv.GIDEntry{GIDIndex: uint32(i), PortNum: PortNum, GIDType: ibv.GID_TYPE_ROCE_V2}
	*e.GID.Raw() = d.GIDs[i]
	if ip := netip.AddrFrom16(d.GIDs[i]); ip.IsLinkLocalUnicast() && !ip.Is4In6() { // which needs it
		e.NDevIfindex = d.Scope(ip)
	}
	return e
}

func queryGIDEx(c *Context, port, index uint32, entry uint64, flags uint32, size uint64) runtime.Errno {
	if port != PortNum || index >= GIDEntries || entry == 0 || flags != 0 {
		return syscall.EINVAL
	}
	if _, ok := c.Device.GIDAt(uint8(index)); !ok {
		return errnos.ENODATA
	}
	e := c.Device.gidEntry(int(index))
	store(entry, size, &e)
	return 0
}

func queryGIDTable(of ibv.Ptr[ibv.Context], entries, most uint64, flags uint32, size uint64) int64 {
	c := Find[Context](of)
	if c == nil || entries == 0 || flags != 0 || size < uint64(unsafe.Sizeof(ibv.GIDEntry{})) {
		return -int64(syscall.EINVAL)
	}
	f := c.Fabric()
	f.Mu.Lock()
	defer f.Unlock()
	n := uint64(0)
	for i := range c.Device.GIDs {
		if _, ok := c.Device.GIDAt(uint8(i)); !ok {
			continue
		}
		if n == most {
			return -int64(syscall.EINVAL)
		}
		*mem.At[ibv.GIDEntry](entries + n*size) = c.Device.gidEntry(i)
		n++
	}
	return int64(n)
}

func queryPKey(c *Context, port uint8, index int32, to ibv.Ptr[ibv.BE16]) runtime.Errno {
	if to == 0 {
		return syscall.EINVAL
	}
	if port != PortNum || index < 0 || int(index) >= len(c.Device.PKeys) {
		return syscall.ENOENT
	}
	*to.Deref() = ibv.ToBE16(c.Device.PKeys[index])
	return 0
}

func pkeyIndex(of ibv.Ptr[ibv.Context], _ uint8, key ibv.BE16) (int32, runtime.Errno) {
	c := Find[Context](of)
	if c == nil {
		return -1, syscall.EINVAL
	}
	for i, own := range c.Device.PKeys {
		if ibv.ToBE16(own) == key {
			return int32(i), 0
		}
	}
	return -1, syscall.ENOENT
}
