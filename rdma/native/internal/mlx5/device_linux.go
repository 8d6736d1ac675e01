// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/internal/direct"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// device is an open device.
type device struct {
	file      *driver.File
	own       uapi.MLX5IBAllocUcontextResp
	queues    *direct.Queues
	record    *ibv.Context
	completes *page // doorbells of completion queues
	registers registers
	indexes   indexes
	atomics   bool
	checksums bool // of packets
}

// Registers that a process asks for, by default.
const (
	defaultRegisters  = 16
	defaultLowLatency = 4
)

// Open is a [driver.Driver].
func Open(f *driver.File, get driver.Command) (driver.Context, syscall.Errno) {
	d := &device{file: f}
	in := uapi.MLX5IBAllocUcontextReqV2{TotalNumBFRegs: defaultRegisters, NumLowLatencyBFRegs: defaultLowLatency,
		Flags: uapi.MLX5_IB_ALLOC_UCTX_DEVX, MaxCQEVersion: 1,
		LibCaps: uapi.MLX5_LIB_CAP_4K_UAR | uapi.MLX5_LIB_CAP_DYN_UAR}
	errno := get(driver.Bytes(&in), driver.Bytes(&d.own))
	if errno != 0 { // without the right to use DEVX
		in.Flags = 0
		errno = get(driver.Bytes(&in), driver.Bytes(&d.own))
	}
	if errno != 0 {
		return nil, errno
	}
	var has uapi.IBUverbsQueryDeviceResp
	errno = f.Write(uapi.IB_USER_VERBS_CMD_QUERY_DEVICE, driver.Bytes(&uapi.IBUverbsQueryDevice{}), driver.Bytes(&has),
		nil, nil)
	if errno != 0 {
		return nil, errno
	}
	if d.own.CQEVersion == 0 || d.own.TotBFRegs != 0 { // old firmware; a kernel without dynamic doorbell pages
		return nil, syscall.EOPNOTSUPP
	}
	d.atomics = has.AtomicCap != 0
	d.checksums = uapi.IBUverbsDeviceCapFlags(has.DeviceCapFlags)&uapi.IB_UVERBS_DEVICE_RAW_IP_CSUM != 0
	d.queues = direct.New(nil, environment, d.atomics)
	if d.completes, errno = d.newPage(mlx5dv.UAR_ALLOC_TYPE_NC); errno != 0 {
		return nil, errno
	}
	d.registers.device = d
	return d, 0
}

// environment looks up the variables that libmlx5 reads as well.
func environment(name string) (value string, set bool) {
	value = rights.Getenv(name)
	return value, value != ""
}

// Opened lends the data path to programs that call it directly.
func (d *device) Opened(record *ibv.Context) {
	d.record = record
	d.queues.Own(record)
}

// Close implements [driver.Context].
func (d *device) Close() {
	if d.record != nil {
		d.queues.Disown(d.record)
	}
	for _, p := range append(d.registers.pages, d.completes) {
		d.freePage(p)
	}
}

// page is a page of doorbell registers.
type page struct {
	mapping []byte
	handle  uint32
	id      uint32 // by which commands name it
}

// newPage allocates a page and maps it.
func (d *device) newPage(kind mlx5dv.MLX5IBUAPIUARAllocType) (*page, syscall.Errno) {
	r, errno := d.file.Request(uint16(uapi.MLX5_IB_OBJECT_UAR), uint16(uapi.MLX5_IB_METHOD_UAR_OBJ_ALLOC))
	if errno != 0 {
		return nil, errno
	}
	defer d.file.Put(r)
	handle := r.Attr(uint16(uapi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE), 0, 0)
	r.Attr(uint16(uapi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE), 8, uint64(kind))
	offset := r.Output(uint16(uapi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET), 8)
	length := r.Output(uint16(uapi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH), 4)
	id := r.Output(uint16(uapi.MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID), 4)
	if errno := d.file.Send(&r); errno != 0 {
		return nil, errno
	}
	e := binary.NativeEndian
	p := &page{handle: uint32(*handle.Data()), id: e.Uint32(id)}
	p.mapping, errno = d.file.Kernel.Mmap(d.file.FD, int64(e.Uint64(offset)), int(e.Uint32(length)))
	if errno != 0 {
		d.freePage(p)
	}
	return p, errno
}

// freePage undoes newPage.
func (d *device) freePage(p *page) {
	if p.mapping != nil {
		d.file.Kernel.Munmap(p.mapping)
	}
	r, errno := d.file.Request(uint16(uapi.MLX5_IB_OBJECT_UAR), uint16(uapi.MLX5_IB_METHOD_UAR_OBJ_DESTROY))
	if errno != 0 {
		return // the kernel frees it with the file
	}
	defer d.file.Put(r)
	r.Attr(uint16(uapi.MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE), 0, uint64(p.handle))
	d.file.Send(&r)
}

// AllocPD implements [driver.Context].
func (d *device) AllocPD(send driver.Command) (uint32, syscall.Errno) {
	var own uapi.MLX5IBAllocPDResp
	errno := send(nil, driver.Bytes(&own))
	return own.PDN, errno
}

// packets returns what requests of raw packet queue pairs may contain.
func (d *device) packets() (p direct.Packets, errno syscall.Errno) {
	p.Checksums = d.checksums
	if d.own.EthMinInline != uapi.MLX5_USER_INLINE_MODE_NONE {
		p.Headers = direct.MinHeaders
	}
	if d.own.CmdsSuppUhw&uapi.MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE == 0 {
		return p, 0
	}
	var out uapi.IBUverbsExQueryDeviceResp
	var own uapi.MLX5IBQueryDeviceResp
	errno = d.file.Write(uapi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE|uapi.IB_USER_VERBS_CMD_FLAG_EXTENDED,
		driver.Bytes(&uapi.IBUverbsExQueryDevice{}), driver.Bytes(&out), nil, driver.Bytes(&own))
	if own.TSOCaps.SupportedQPTs&(1<<ibv.QPT_RAW_PACKET) != 0 {
		p.MaxTSO = own.TSOCaps.MaxTSO
	}
	return p, errno
}

// RegMR implements [driver.Context].
func (*device) RegMR(_ *uapi.IBUverbsRegMR, send driver.Command) syscall.Errno { return send(nil, nil) }

// AHSize implements [driver.Context]. The driver's part of a handle is the address in requests.
func (*device) AHSize() uintptr { return unsafe.Sizeof(mlx5dv.MLX5WQEAV{}) }

// rates are the device's numbers of static rates: those of similar rates for some, and none for the others.
var rates = map[ibv.Rate]uint8{ibv.RATE_2_5_GBPS: 7, ibv.RATE_10_GBPS: 8, ibv.RATE_25_GBPS: 9, ibv.RATE_28_GBPS: 9,
	ibv.RATE_30_GBPS: 9, ibv.RATE_5_GBPS: 10, ibv.RATE_14_GBPS: 11, ibv.RATE_20_GBPS: 11, ibv.RATE_40_GBPS: 12,
	ibv.RATE_50_GBPS: 13, ibv.RATE_56_GBPS: 13, ibv.RATE_60_GBPS: 13, ibv.RATE_80_GBPS: 14, ibv.RATE_100_GBPS: 15,
	ibv.RATE_112_GBPS: 15, ibv.RATE_120_GBPS: 15}

// CreateAH implements [driver.Context]. On Ethernet, the kernel resolves the address of the next hop. On InfiniBand, it
// is not asked.
func (d *device) CreateAH(attr *ibv.AHAttr, part unsafe.Pointer, send driver.Command) syscall.Errno {
	port, errno := d.file.Core.Port(attr.PortNum)
	if errno != 0 {
		return syscall.EINVAL
	}
	ethernet := port.LinkLayer == ibv.LINK_LAYER_ETHERNET
	if ethernet && attr.IsGlobal == 0 {
		return syscall.EINVAL
	}
	av := (*mlx5dv.MLX5WQEAV)(part)
	rate := rates[attr.StaticRate] << 4
	*av = mlx5dv.MLX5WQEAV{StatRateSL: rate | attr.SL, FLMLID: attr.SrcPathBits & 0x7f,
		RLID: ibv.ToBE16(attr.DLID)}
	if ethernet {
		av.StatRateSL, av.FLMLID, av.RLID = rate|attr.SL&7<<1, 0, 0
	}
	if attr.IsGlobal != 0 {
		route := &attr.GRH
		word := uint32(route.SGIDIndex)<<20 | route.FlowLabel&0xfffff
		if !ethernet {
			word |= 1 << 30 // there is a header
		}
		av.TClass, av.HopLimit, av.GRHGIDFL, av.RGID = route.TrafficClass, route.HopLimit, ibv.ToBE32(word), *route.DGID.Raw()
		if ethernet {
			gid, errno := d.file.Core.GID(uint32(attr.PortNum), uint32(route.SGIDIndex))
			if errno != 0 {
				return syscall.EINVAL
			}
			if gid.GIDType == uapi.IB_UVERBS_GID_TYPE_ROCE_V2 {
				av.RLID = ibv.ToBE16(sourcePort(route.FlowLabel))
			}
		}
	}
	if !ethernet {
		return 0
	}
	if d.own.CmdsSuppUhw&uapi.MLX5_USER_CMDS_SUPP_UHW_CREATE_AH == 0 {
		return syscall.EOPNOTSUPP // the kernel does not resolve addresses
	}
	var own uapi.MLX5IBCreateAHResp
	if errno := send(nil, driver.Bytes(&own)); errno != 0 {
		return errno
	}
	av.RMAC = own.Dmac
	return 0
}

// sourcePort returns the UDP source port of datagrams with a flow label, as the annex of RoCE v2 defines it.
func sourcePort(label uint32) uint16 {
	const first, bits = 0xc000, 14
	if label == 0 {
		return first | uint16(rand.Uint32N(1<<bits))
	}
	return first | uint16(label&(1<<bits-1)^label>>bits&0x3f)
}
