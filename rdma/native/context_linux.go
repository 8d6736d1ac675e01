// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// device is a device of a list that a program has.
type device struct {
	DeviceInfo
	record *ibv.Device
	uses   atomic.Int32 // lists and contexts
}

// deviceList is a list that a program has.
type deviceList struct{ devices []*device }

// listErrno returns the errno of ibv_get_device_list: ENOSYS where the kernel has no RDMA.
func listErrno(err error) syscall.Errno {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EPERM,
		syscall.EACCES} {
		if errors.Is(err, errno) {
			return errno
		}
	}
	return syscall.ENOSYS
}

func (b *Backend) deviceList(a []uint64) (uint64, runtime.Errno) {
	infos, err := b.kernel.Devices()
	if err != nil {
		return 0, listErrno(err)
	}
	memory, err := b.space.Alloc((len(infos) + 1) * int(unsafe.Sizeof(ibv.Ptr[ibv.Device](0))))
	if err != nil {
		return 0, syscall.ENOMEM
	}
	list := unsafe.Slice((*ibv.Ptr[ibv.Device])(memory), len(infos)+1)
	all := &deviceList{}
	for i, info := range infos {
		record, errno := allocate[ibv.Device](b)
		if errno != 0 {
			for _, d := range all.devices {
				b.releaseDevice(d)
			}
			b.space.Free(memory)
			return 0, errno
		}
		d := &device{DeviceInfo: info, record: record}
		d.uses.Store(1)
		record.NodeType, record.TransportType = ibv.NodeType(info.NodeType), ibv.TRANSPORT_IB
		switch record.NodeType {
		case ibv.NODE_RNIC:
			record.TransportType = ibv.TRANSPORT_IWARP
		case ibv.NODE_UNSPECIFIED: // EFA
			record.TransportType = ibv.TRANSPORT_UNSPECIFIED
		}
		copy(record.Name[:len(record.Name)-1], info.Name)
		copy(record.DevPath[:len(record.DevPath)-1], info.Path)
		copy(record.DevName[:len(record.DevName)-1], info.Path[len(deviceDir):])
		b.enter(addressOf(record), d)
		all.devices = append(all.devices, d)
		list[i] = ibv.PtrTo(record)
	}
	b.enter(uint64(uintptr(memory)), all)
	if a[0] != 0 {
		*ibv.Ptr[int32](a[0]).Deref() = int32(len(infos))
	}
	return uint64(uintptr(memory)), 0
}

func (b *Backend) freeDeviceList(address uint64) {
	all := find[deviceList](b, address)
	if all == nil {
		return
	}
	b.forget(address)
	for _, d := range all.devices {
		b.releaseDevice(d)
	}
	b.space.Free(unsafe.Pointer(ibv.Ptr[byte](address).Deref()))
}

func (b *Backend) releaseDevice(d *device) {
	if d.uses.Add(-1) == 0 {
		b.forget(addressOf(d.record))
		free(b, d.record)
	}
}

func (b *Backend) deviceName(a []uint64) (uint64, runtime.Errno) {
	d := find[device](b, a[0])
	if d == nil {
		return 0, syscall.EINVAL
	}
	return addressOf(&d.record.Name[0]), 0
}

func (b *Backend) deviceIndex(a []uint64) (uint64, runtime.Errno) {
	d := find[device](b, a[0])
	if d == nil {
		return ^uint64(0), syscall.EINVAL
	}
	return uint64(d.Index), 0
}

func (b *Backend) deviceGUID(a []uint64) (uint64, runtime.Errno) {
	d := find[device](b, a[0])
	if d == nil {
		return 0, syscall.EINVAL
	}
	return wireGUID(d.NodeGUID), 0
}

// wireGUID converts a GUID of netlink, a number in host order, to C's __be64.
func wireGUID(v uint64) uint64 {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	return binary.NativeEndian.Uint64(b[:])
}

// context is an open device.
type context struct {
	driver.File
	backend *Backend
	own     driver.Context
	device  *device
	record  *ibv.VerbsContext
	asyncFD int32
	uses    atomic.Int32 // objects
}

func (b *Backend) openDevice(a []uint64) (uint64, runtime.Errno) {
	d := find[device](b, a[0])
	if d == nil {
		return 0, syscall.EINVAL
	}
	open := driverOf(uapi.RDMADriverID(d.Driver))
	if open == nil {
		return 0, syscall.EOPNOTSUPP
	}
	fd, errno := b.kernel.Open(d.Path)
	if errno != 0 {
		return 0, errno
	}
	c := &context{backend: b, device: d, File: driver.File{Kernel: b.kernel, Commands: &b.commands, FD: fd,
		Driver: d.Driver}}
	c.File.Core = c
	c.asyncFD = -1
	var vectors uint32
	c.own, errno = open(&c.File, c.getContext(&vectors))
	if errno == 0 && c.asyncFD < 0 {
		c.asyncFD, errno = c.allocAsyncFile()
	}
	if errno != 0 {
		if c.own != nil {
			c.own.Close()
		}
		if c.asyncFD >= 0 {
			b.kernel.Close(c.asyncFD)
		}
		b.kernel.Close(fd)
		return 0, errno
	}
	c.record, errno = allocate[ibv.VerbsContext](b)
	if errno != 0 {
		c.own.Close()
		b.kernel.Close(c.asyncFD)
		b.kernel.Close(fd)
		return 0, errno
	}
	*c.record = b.slots.extended
	c.record.Sz = uint64(unsafe.Sizeof(*c.record))
	r := &c.record.Context
	r.Ops, r.ABICompat, r.Device = b.slots.ops, ibv.VERBS_ABI_IS_EXTENDED, ibv.PtrTo(d.record)
	r.CmdFD, r.AsyncFD, r.NumCompVectors = fd, c.asyncFD, int32(vectors)
	d.uses.Add(1)
	b.enter(addressOf(r), c)
	if own, ok := c.own.(interface{ Opened(*ibv.Context) }); ok {
		own.Opened(r)
	}
	return addressOf(r), 0
}

// getContext returns the command GET_CONTEXT. Kernels without that method have the one of the write interface, which
// includes a file of asynchronous events; it fails with EBADF on Linux 7.2.
func (c *context) getContext(vectors *uint32) driver.Command {
	return func(driverIn, driverOut []byte) syscall.Errno {
		r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_DEVICE), uint16(uapi.UVERBS_METHOD_GET_CONTEXT))
		if errno != 0 {
			return errno
		}
		defer c.Put(r)
		number := r.Output(uint16(uapi.UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS), int(unsafe.Sizeof(*vectors)))
		r.Output(uint16(uapi.UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT), 8)
		var own []byte
		if len(driverIn) > 0 {
			r.Input(uapi.UVERBS_ATTR_UHW_IN, driverIn)
		}
		if len(driverOut) > 0 {
			own = r.Output(uapi.UVERBS_ATTR_UHW_OUT, len(driverOut))
		}
		switch errno := c.Send(&r); errno {
		case 0:
			*vectors = binary.NativeEndian.Uint32(number)
			copy(driverOut, own)
			return 0
		case syscall.EPROTONOSUPPORT:
			var out uapi.IBUverbsGetContextResp
			errno := c.Write(uapi.IB_USER_VERBS_CMD_GET_CONTEXT, driver.Bytes(&uapi.IBUverbsGetContext{}), driver.Bytes(&out),
				driverIn, driverOut)
			if errno == 0 {
				*vectors, c.asyncFD = out.NumCompVectors, int32(out.AsyncFD)
			}
			return errno
		default:
			return errno
		}
	}
}

// allocAsyncFile returns a file of asynchronous events.
func (c *context) allocAsyncFile() (int32, syscall.Errno) {
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_ASYNC_EVENT), uint16(uapi.UVERBS_METHOD_ASYNC_EVENT_ALLOC))
	if errno != 0 {
		return -1, errno
	}
	defer c.Put(r)
	fd := r.Attr(uint16(uapi.UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE), 0, 0)
	if errno := c.Send(&r); errno != 0 {
		return -1, errno
	}
	return int32(*fd.Data()), 0
}

func (b *Backend) closeDevice(address uint64) syscall.Errno {
	c := find[context](b, address)
	if c == nil {
		return syscall.EINVAL
	}
	b.forget(address)
	c.own.Close()
	b.kernel.Close(c.asyncFD)
	b.kernel.Close(c.FD)
	if c.uses.Load() == 0 { // records of objects that are left keep pointing to it
		free(b, c.record)
	}
	b.releaseDevice(c.device)
	return 0
}

func (c *context) pointer() ibv.Ptr[ibv.Context] { return ibv.PtrTo(&c.record.Context) }

func (c *context) queryDevice(attr *ibv.DeviceAttr) syscall.Errno {
	if attr == nil {
		return syscall.EINVAL
	}
	r, errno := write[uapi.IBUverbsQueryDeviceResp](c, uapi.IB_USER_VERBS_CMD_QUERY_DEVICE, &uapi.IBUverbsQueryDevice{})
	if errno == 0 {
		*attr = c.deviceAttr(&r)
	}
	return errno
}

func (c *context) deviceAttr(r *uapi.IBUverbsQueryDeviceResp) ibv.DeviceAttr {
	attr := ibv.DeviceAttr{NodeGUID: ibv.GUID(r.NodeGUID), SysImageGUID: ibv.GUID(r.SysImageGUID),
		MaxMRSize: r.MaxMRSize, PageSizeCap: r.PageSizeCap, VendorID: r.VendorID, VendorPartID: r.VendorPartID,
		HWVer: r.HWVer, MaxQP: int32(r.MaxQP), MaxQPWR: int32(r.MaxQPWR),
		DeviceCapFlags: ibv.DeviceCapFlags(r.DeviceCapFlags), MaxSGE: int32(r.MaxSGE), MaxSGERd: int32(r.MaxSGERd),
		MaxCQ: int32(r.MaxCQ), MaxCQE: int32(r.MaxCQE), MaxMR: int32(r.MaxMR), MaxPD: int32(r.MaxPD),
		MaxQPRdAtom: int32(r.MaxQPRdAtom), MaxEERdAtom: int32(r.MaxEERdAtom), MaxResRdAtom: int32(r.MaxResRdAtom),
		MaxQPInitRdAtom: int32(r.MaxQPInitRdAtom), MaxEEInitRdAtom: int32(r.MaxEEInitRdAtom),
		AtomicCap: ibv.AtomicCap(r.AtomicCap), MaxEE: int32(r.MaxEE), MaxRDD: int32(r.MaxRDD), MaxMW: int32(r.MaxMW),
		MaxRawIPv6QP: int32(r.MaxRawIPv6QP), MaxRawEthyQP: int32(r.MaxRawEthyQP), MaxMcastGrp: int32(r.MaxMcastGrp),
		MaxMcastQPAttach: int32(r.MaxMcastQPAttach), MaxTotalMcastQPAttach: int32(r.MaxTotalMcastQPAttach),
		MaxAH: int32(r.MaxAH), MaxSRQ: int32(r.MaxSRQ), MaxSRQWR: int32(r.MaxSRQWR), MaxSRQSGE: int32(r.MaxSRQSGE),
		MaxPKeys: r.MaxPKeys, LocalCAAckDelay: r.LocalCAAckDelay, PhysPortCnt: r.PhysPortCnt}
	v := r.FWVer
	copy(attr.FWVer[:], fmt.Sprintf("%d.%d.%d", v>>32, v>>16&0xffff, v&0xffff))
	if own, ok := c.own.(driver.Attributes); ok {
		own.DeviceAttr(&attr, v)
	}
	return attr
}

// extended returns the number of a command whose answer grows with the kernel.
func extended(number uapi.IBUverbsWriteCmds) uapi.IBUverbsWriteCmds {
	return number | uapi.IB_USER_VERBS_CMD_FLAG_EXTENDED
}

func (c *context) deviceEx() (uapi.IBUverbsExQueryDeviceResp, syscall.Errno) {
	return write[uapi.IBUverbsExQueryDeviceResp](c, extended(uapi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE),
		&uapi.IBUverbsExQueryDevice{})
}

// queryDeviceEx fills in as many bytes of an ibv.DeviceAttrEx as the caller's release of libibverbs has. Fields that
// the kernel does not have are 0.
func (c *context) queryDeviceEx(input *ibv.QueryDeviceExInput, attr uint64, size uintptr) syscall.Errno {
	if attr == 0 || size < unsafe.Sizeof(ibv.DeviceAttr{}) || input != nil && input.CompMask != 0 {
		return syscall.EINVAL
	}
	r, errno := c.deviceEx()
	if errno != 0 {
		return errno
	}
	odp, rss, tm := &r.ODPCaps, &r.RSSCaps, &r.TMCaps
	x := ibv.DeviceAttrEx{OrigAttr: c.deviceAttr(&r.Base), CompletionTimestampMask: r.TimestampMask,
		HCACoreClock: r.HCACoreClock, DeviceCapFlagsEx: ibv.DeviceCapFlags64(r.DeviceCapFlagsEx),
		MaxWQTypeRQ: r.MaxWQTypeRQ, RawPacketCaps: ibv.RawPacketCaps(r.RawPacketCaps), MaxDMSize: r.MaxDMSize,
		XRCODPCaps: ibv.ODPTransportCapBits(r.XRCODPCaps), PhysPortCntEx: uint32(r.Base.PhysPortCnt)}
	x.ODPCaps.GeneralCaps = ibv.ODPGeneralCaps(odp.GeneralCaps)
	x.ODPCaps.PerTransportCaps.RCODPCaps = ibv.ODPTransportCapBits(odp.PerTransportCaps.RCODPCaps)
	x.ODPCaps.PerTransportCaps.UCODPCaps = ibv.ODPTransportCapBits(odp.PerTransportCaps.UCODPCaps)
	x.ODPCaps.PerTransportCaps.UDODPCaps = ibv.ODPTransportCapBits(odp.PerTransportCaps.UDODPCaps)
	x.RSSCaps.SupportedQPTs, x.RSSCaps.MaxRWQIndirectionTables = rss.SupportedQPTs, rss.MaxRWQIndirectionTables
	x.RSSCaps.MaxRWQIndirectionTableSize = rss.MaxRWQIndirectionTableSize
	x.TMCaps = ibv.TMCaps{MaxRndvHdrSize: tm.MaxRndvHdrSize, MaxNumTags: tm.MaxNumTags, Flags: ibv.TMCapFlags(tm.Flags),
		MaxOps: tm.MaxOps, MaxSGE: tm.MaxSGE}
	x.CQModCaps.MaxCQCount = r.CQModerationCaps.MaxCQModerationCount
	x.CQModCaps.MaxCQPeriod = r.CQModerationCaps.MaxCQModerationPeriod
	to := listAt[byte](attr, int(size))
	clear(to[copy(to, driver.Bytes(&x)):])
	return 0
}

// queryPort fills in as many bytes of an ibv.PortAttr as the caller's release of libibverbs has.
func (c *context) queryPort(port uint8, attr uint64, size uintptr) syscall.Errno {
	if attr == 0 {
		return syscall.EINVAL
	}
	var p ibv.PortAttr
	if errno := c.readPort(port, &p); errno != 0 {
		return errno
	}
	from := unsafe.Slice((*byte)(unsafe.Pointer(&p)), unsafe.Sizeof(p))
	to := listAt[byte](attr, int(size))
	clear(to[copy(to, from):])
	return 0
}

func (c *context) readPort(port uint8, p *ibv.PortAttr) syscall.Errno {
	r, errno := write[uapi.IBUverbsQueryPortResp](c, uapi.IB_USER_VERBS_CMD_QUERY_PORT,
		&uapi.IBUverbsQueryPort{PortNum: port})
	if errno != 0 {
		return errno
	}
	*p = ibv.PortAttr{State: ibv.PortState(r.State), MaxMTU: ibv.MTU(r.MaxMTU), ActiveMTU: ibv.MTU(r.ActiveMTU),
		GIDTblLen: int32(r.GIDTblLen), PortCapFlags: ibv.PortCapFlags(r.PortCapFlags), MaxMsgSz: r.MaxMsgSz,
		BadPKeyCntr: r.BadPKeyCntr, QKeyViolCntr: r.QKeyViolCntr, PKeyTblLen: r.PKeyTblLen, LID: r.LID, SMLID: r.SMLID,
		LMC: r.LMC, MaxVLNum: r.MaxVLNum, SMSL: r.SMSL, SubnetTimeout: r.SubnetTimeout, InitTypeReply: r.InitTypeReply,
		ActiveWidth: ibv.LinkWidth(r.ActiveWidth), ActiveSpeed: ibv.LinkSpeed8(r.ActiveSpeed),
		PhysState: ibv.PortPhysState(r.PhysState), LinkLayer: ibv.LinkLayer(r.LinkLayer),
		Flags: ibv.IBUverbsQueryPortFlags(r.Flags)}
	return 0
}

// maxGIDs is the largest number of entries in one answer: the length of an attribute has 16 bits.
const maxGIDs = 1 << 15 / int(unsafe.Sizeof(uapi.IBUverbsGIDEntry{}))

// gidTable returns up to n entries of the GID tables of all ports, without empty ones.
func (c *context) gidTable(n int) ([]uapi.IBUverbsGIDEntry, syscall.Errno) {
	const size = unsafe.Sizeof(uapi.IBUverbsGIDEntry{})
	n = min(n, maxGIDs)
	table, err := c.backend.space.Alloc(n * int(size))
	if err != nil {
		return nil, syscall.ENOMEM
	}
	defer c.backend.space.Free(table)
	r, errno := c.Request(uint16(uapi.UVERBS_OBJECT_DEVICE), uint16(uapi.UVERBS_METHOD_QUERY_GID_TABLE))
	if errno != 0 {
		return nil, errno
	}
	defer c.Put(r)
	entrySize := uint64(size)
	r.Input(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE), driver.Bytes(&entrySize))
	r.Input(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_FLAGS), driver.Bytes(new(uint32)))
	r.Attr(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES), uint16(n*int(size)), uint64(uintptr(table)))
	got := r.Output(uint16(uapi.UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES), 8)
	if errno := c.Send(&r); errno != 0 {
		return nil, errno
	}
	entries := min(binary.NativeEndian.Uint64(got), uint64(n))
	return slices.Clone(unsafe.Slice((*uapi.IBUverbsGIDEntry)(table), n)[:entries]), 0
}

// GID implements [driver.Core]. It reads one entry of the GID table. An empty one is ENODATA.
func (c *context) GID(port, index uint32) (e uapi.IBUverbsGIDEntry, errno syscall.Errno) {
	var attr ibv.PortAttr
	if port > math.MaxUint8 {
		return e, syscall.EINVAL
	}
	if errno := c.readPort(uint8(port), &attr); errno != 0 {
		return e, errno
	}
	if int64(index) >= int64(attr.GIDTblLen) {
		return e, syscall.EINVAL
	}
	all, errno := c.gidTable(maxGIDs)
	if errno != 0 {
		return e, errno
	}
	i := slices.IndexFunc(all, func(e uapi.IBUverbsGIDEntry) bool { return e.PortNum == port && e.GIDIndex == index })
	if i < 0 {
		return e, syscall.ENODATA
	}
	return all[i], 0
}

func (c *context) queryGID(port, index uint32, to *ibv.GID) syscall.Errno {
	if to == nil {
		return syscall.EINVAL
	}
	e, errno := c.GID(port, index)
	if errno == syscall.ENODATA { // an empty entry
		*to = ibv.GID{}
		return 0
	}
	if errno == 0 {
		*to.Raw() = *(*[16]uint8)(unsafe.Pointer(&e.GID))
	}
	return errno
}

// fromGIDEntry translates an entry of the kernel, which has the same GID types.
func fromGIDEntry(e *uapi.IBUverbsGIDEntry) ibv.GIDEntry {
	g := ibv.GIDEntry{GIDIndex: e.GIDIndex, PortNum: e.PortNum, GIDType: ibv.GIDType(e.GIDType),
		NDevIfindex: e.NetdevIfindex}
	*g.GID.Raw() = *(*[16]uint8)(unsafe.Pointer(&e.GID))
	return g
}

func (b *Backend) queryGIDEx(a []uint64) syscall.Errno {
	return b.ofContext(a[0], func(c *context) syscall.Errno {
		if a[3] == 0 || a[4] != 0 || a[5] < uint64(unsafe.Sizeof(ibv.GIDEntry{})) {
			return syscall.EINVAL
		}
		e, errno := c.GID(uint32(a[1]), uint32(a[2]))
		if errno == 0 {
			*ibv.Ptr[ibv.GIDEntry](a[3]).Deref() = fromGIDEntry(&e)
		}
		return errno
	})
}

// queryGIDTable is _ibv_query_gid_table, which returns the number of entries or a negative error number.
func (b *Backend) queryGIDTable(a []uint64) (uint64, runtime.Errno) {
	c := find[context](b, a[0])
	if c == nil || a[1] == 0 || a[2] == 0 || a[3] != 0 || a[4] < uint64(unsafe.Sizeof(ibv.GIDEntry{})) {
		return negative(syscall.EINVAL), 0
	}
	all, errno := c.gidTable(int(min(a[2], uint64(maxGIDs))))
	if errno != 0 {
		return negative(errno), 0
	}
	for i := range all {
		*ibv.Ptr[ibv.GIDEntry](a[1] + uint64(i)*a[4]).Deref() = fromGIDEntry(&all[i])
	}
	return uint64(len(all)), 0
}

func negative(errno syscall.Errno) uint64 { return uint64(-int64(errno)) }

func (b *Backend) queryPKey(a []uint64) syscall.Errno {
	return b.ofContext(a[0], func(c *context) syscall.Errno {
		if a[3] == 0 {
			return syscall.EINVAL
		}
		key, errno := pkey(c.device.Name, uint8(a[1]), int32(a[2]))
		if errno == 0 {
			binary.BigEndian.PutUint16(listAt[byte](a[3], 2), key)
		}
		return errno
	})
}

// pkeyIndex is ibv_get_pkey_index, which compares keys without the bit of full membership.
func (b *Backend) pkeyIndex(a []uint64) (uint64, runtime.Errno) {
	c := find[context](b, a[0])
	if c == nil {
		return ^uint64(0), syscall.EINVAL
	}
	const member = 0x7fff
	var word [2]byte
	binary.NativeEndian.PutUint16(word[:], uint16(a[2]))
	want := binary.BigEndian.Uint16(word[:]) & member
	for i := int32(0); ; i++ {
		key, errno := pkey(c.device.Name, uint8(a[1]), i)
		if errno != 0 {
			return ^uint64(0), errno
		}
		if key&member == want {
			return uint64(i), 0
		}
	}
}
