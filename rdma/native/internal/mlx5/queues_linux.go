// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/direct"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime/offheap"
)

// memory is the memory of a queue that the device reads and writes: its buffer, and its doorbell record.
type memory struct {
	file   *driver.File
	buffer *offheap.Mapping
	record unsafe.Pointer
}

func (d *device) memory(size uint32) (m memory, errno syscall.Errno) {
	m.file = d.file
	buffer, err := offheap.Map(int(max(size, 1)), offheap.Options{})
	if err != nil {
		return m, syscall.ENOMEM
	}
	m.buffer = buffer
	record, err := d.file.Commands.Space.Alloc(recordSize)
	if err != nil {
		m.buffer.Close()
		return m, syscall.ENOMEM
	}
	m.record = record
	return m, 0
}

const recordSize = 8

func (m *memory) address() uint64 { return uint64(m.buffer.Address()) }

func (m *memory) Free() {
	m.buffer.Close()
	m.file.Commands.Space.Free(m.record)
}

// end has a path destroy its queue.
func end(path datapath.Queue, destroy func() syscall.Errno) syscall.Errno {
	if path == nil {
		return destroy()
	}
	err := path.End(func() error {
		if errno := destroy(); errno != 0 {
			return errno
		}
		return nil
	})
	return errnoOf(err)
}

// errnoOf returns the errno of an error, EIO if it has none, or 0 for nil.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		return syscall.EIO
	}
	return errno
}

// completionQueue is a completion queue.
type completionQueue struct {
	memory
	device *device
	out    mlx5dv.CQ
	path   datapath.Queue
}

// completions returns the number of completions in a queue for n.
func completions(n uint32) (count uint32, ok bool) {
	const most = 1<<22 - 1
	return power(min(n, most) + 1), n <= most
}

// invalidate marks the completions of a size in a buffer as not written.
func invalidate(buffer *offheap.Mapping, size uint32) {
	b := buffer.Bytes()
	for i := int(size) - 1; i < len(b); i += int(size) {
		b[i] = mlx5dv.MLX5_CQE_INVALID << 4
	}
}

// completionSize returns the number of bytes of a completion: 64, or 128 with room for larger messages if the variable
// of libmlx5 asks for it.
func completionSize() (size uint32, ok bool) {
	text, set := environment("MLX5_CQE_SIZE")
	switch {
	case !set, text == "64":
		return 64, true
	case text == "128":
		return 128, true
	}
	return 0, false
}

// CreateCQ implements [driver.Context].
func (d *device) CreateCQ(in *uapi.IBUverbsCreateCQ, out *uapi.IBUverbsCreateCQResp, send driver.Command) (driver.CQ,
	syscall.Errno) {
	count, ok := completions(in.CQE)
	size, known := completionSize()
	if !ok || !known {
		return nil, syscall.EINVAL
	}
	m, errno := d.memory(count * size)
	if errno != 0 {
		return nil, errno
	}
	invalidate(m.buffer, size)
	q := &completionQueue{memory: m, device: d}
	in.CQE = count - 1
	own := uapi.MLX5IBCreateCQ{BufAddr: m.address(), DBAddr: uint64(uintptr(m.record)), CQESize: size,
		Flags: uapi.MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX, UARPageIndex: uint16(d.completes.id)}
	var answer uapi.MLX5IBCreateCQResp
	if errno := send(driver.Bytes(&own), driver.Bytes(&answer)); errno != 0 {
		return q, errno
	}
	q.out = mlx5dv.CQ{Buf: m.buffer.Address(), DBRec: ibv.PtrTo((*ibv.BE32)(m.record)), CQECnt: count, CQESize: size,
		CQUAR: uintptr(unsafe.Pointer(unsafe.SliceData(d.completes.mapping))), CQN: answer.CQN}
	return q, 0
}

// Path implements [driver.CQ].
func (q *completionQueue) Path(record *ibv.CQ) (driver.CQPath, syscall.Errno) {
	path := q.device.queues.NewCQ(record, &q.out)
	q.path = path
	return path, 0
}

// Resize implements [driver.CQ].
func (q *completionQueue) Resize(in *uapi.IBUverbsResizeCQ, out *uapi.IBUverbsResizeCQResp,
	send driver.Command) syscall.Errno {
	count, ok := completions(in.CQE)
	if !ok || in.CQE == 0 {
		return syscall.EINVAL
	}
	if out.CQE = count - 1; count == q.out.CQECnt {
		return 0 // the kernel would not change the buffer either
	}
	buffer, err := offheap.Map(int(count*q.out.CQESize), offheap.Options{})
	if err != nil {
		return syscall.ENOMEM
	}
	invalidate(buffer, q.out.CQESize)
	in.CQE = count - 1
	resized := q.out
	resized.Buf, resized.CQECnt = buffer.Address(), count
	own := uapi.MLX5IBResizeCQ{BufAddr: uint64(resized.Buf), CQESize: uint16(q.out.CQESize)}
	err = q.path.(resizer).Resize(&resized, func() error {
		if errno := send(driver.Bytes(&own), nil); errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		buffer.Close()
		return errnoOf(err)
	}
	q.buffer.Close()
	q.buffer, q.out = buffer, resized
	return 0
}

// resizer is a completion queue of package direct.
type resizer interface {
	Resize(out *mlx5dv.CQ, exchange func() error) error
}

// End implements [driver.Queue].
func (q *completionQueue) End(destroy func() syscall.Errno) syscall.Errno {
	return end(q.path, destroy)
}

// sharedQueue is a shared receive queue.
type sharedQueue struct {
	memory
	device *device
	out    mlx5dv.SRQ
	cap    ibv.SRQAttr
	path   datapath.Queue
	cq     *ibv.CQ // XRC: where its receives complete; nil for other queues
	index  uint32
}

// CreateSRQ implements [driver.Context].
func (d *device) CreateSRQ(in *uapi.IBUverbsCreateSRQ, _ *uapi.IBUverbsCreateSRQResp, send driver.Command) (driver.SRQ,
	syscall.Errno) {
	return d.createSRQ(&in.MaxWR, &in.MaxSGE, nil, send)
}

// CreateXRC implements [driver.XRC].
func (d *device) CreateXRC(in *uapi.IBUverbsCreateXSRQ, _ *uapi.IBUverbsCreateSRQResp, cq *ibv.CQ,
	send driver.Command) (driver.SRQ, syscall.Errno) {
	return d.createSRQ(&in.MaxWR, &in.MaxSGE, cq, send)
}

// createSRQ creates a queue with at least the capacities of a command, and sets these to its capacities.
func (d *device) createSRQ(maxWR, maxSGE *uint32, cq *ibv.CQ, send driver.Command) (driver.SRQ, syscall.Errno) {
	const link = uint32(unsafe.Sizeof(mlx5dv.MLX5WQESRQNextSeg{}))
	stride := power(link + max(*maxSGE, 1)*entry)
	if *maxWR > d.own.MaxSRQRecvWR || *maxSGE > 1<<16 || stride > uint32(d.own.MaxRQDescSz) {
		return nil, syscall.EINVAL
	}
	count := power(*maxWR + 1)
	all := count
	if 2*count <= d.own.MaxSRQRecvWR {
		all = 2 * count // libmlx5 has as many spare places, which it links to each other
	}
	m, errno := d.memory(all * stride)
	if errno != 0 {
		return nil, errno
	}
	b := m.buffer.Bytes()
	for i := range all { // a ring of free places
		next := (*mlx5dv.MLX5WQESRQNextSeg)(unsafe.Pointer(&b[i*stride]))
		if i+1 != count && i+1 != all {
			next.NextWQEIndex = ibv.ToBE16(uint16(i + 1))
		}
	}
	*maxWR, *maxSGE = all-1, (stride-link)/entry
	q := &sharedQueue{memory: m, device: d, cap: ibv.SRQAttr{MaxWR: count - 1, MaxSGE: *maxSGE}, cq: cq}
	if cq != nil {
		q.index = d.indexes.get()
	}
	own := uapi.MLX5IBCreateSRQ{BufAddr: m.address(), DBAddr: uint64(uintptr(m.record)), UIdx: q.index}
	var answer uapi.MLX5IBCreateSRQResp
	if errno := send(driver.Bytes(&own), driver.Bytes(&answer)); errno != 0 {
		return q, errno
	}
	q.out = mlx5dv.SRQ{Buf: m.buffer.Address(), DBRec: ibv.PtrTo((*ibv.BE32)(m.record)), Stride: stride,
		Tail: count - 1, SRQN: answer.SRQN}
	return q, 0
}

// Path implements [driver.SRQ].
func (q *sharedQueue) Path(record *ibv.SRQ, cap ibv.SRQAttr) (driver.SRQPath, syscall.Errno) {
	if q.cq == nil {
		q.path = q.device.queues.NewSRQ(record, &q.out, cap)
		return q.path, 0
	}
	path, err := q.device.queues.NewXRC(record, &q.out, cap, q.cq, q.index)
	if err != nil {
		return nil, syscall.EINVAL
	}
	q.path = path
	return path, 0
}

// Free implements [driver.Queue].
func (q *sharedQueue) Free() {
	if q.cq != nil {
		q.device.indexes.put(q.index)
	}
	q.memory.Free()
}

// Cap implements [driver.SRQ].
func (q *sharedQueue) Cap(cap ibv.SRQAttr) ibv.SRQAttr {
	cap.MaxWR, cap.MaxSGE = q.cap.MaxWR, q.cap.MaxSGE
	return cap
}

// Modify implements [driver.SRQ].
func (*sharedQueue) Modify(_ *uapi.IBUverbsModifySRQ, send driver.Command) syscall.Errno {
	return send(nil, nil)
}

// End implements [driver.Queue].
func (q *sharedQueue) End(destroy func() syscall.Errno) syscall.Errno { return end(q.path, destroy) }

// queuePair is a queue pair.
type queuePair struct {
	memory
	device    *device
	sends     *offheap.Mapping // of a raw packet queue pair, or nil
	packets   *direct.Packets  // likewise
	sizes     queues
	register  *register
	shared    bool // the register is not that of a thread domain
	named     bool // completions name it by index
	index     uint32
	out       mlx5dv.QP
	path      datapath.Queue
	initiator bool // of dynamic connections
	dv        dvRecord
}

// CreateQP implements [driver.Context].
func (d *device) CreateQP(in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send driver.Command) (driver.QP,
	syscall.Errno) {
	return d.CreateQPIn(nil, in, out, send)
}

// CreateQPIn implements [driver.ThreadDomains]. td may be nil.
func (d *device) CreateQPIn(td driver.TD, in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp,
	send driver.Command) (driver.QP, syscall.Errno) {
	return d.createQP(td, in, send, qpOptions{})
}

// Attributes implements [driver.ExtendedQPs].
func (*device) Attributes(kind ibv.QPType) ibv.QPInitAttrMask {
	if kind == ibv.QPT_RAW_PACKET {
		return ibv.QP_INIT_ATTR_MAX_TSO_HEADER | ibv.QP_INIT_ATTR_CREATE_FLAGS
	}
	return 0
}

// CreateQPEx implements [driver.ExtendedQPs].
func (d *device) CreateQPEx(attr *ibv.QPInitAttrEx) driver.CreateQP {
	return d.createQPWith(qpOptions{attr: attr})
}

func (d *device) createQPWith(o qpOptions) driver.CreateQP {
	return func(td driver.TD, in *uapi.IBUverbsCreateQP, _ *uapi.IBUverbsCreateQPResp, send driver.Command) (driver.QP,
		syscall.Errno) {
		return d.createQP(td, in, send, o)
	}
}

// qpOptions are attributes of a queue pair that the core's command does not have.
type qpOptions struct {
	attr  *ibv.QPInitAttrEx // or nil
	flags uapi.MLX5QPFlags
}

// ops returns the operations that requests may have.
func (o *qpOptions) ops(kind ibv.QPType) ibv.QPCreateSendOpsFlags {
	if o.attr != nil && o.attr.CompMask&ibv.QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
		return o.attr.SendOpsFlags
	}
	if kind == ibv.QPT_XRC_RECV {
		kind = ibv.QPT_XRC_SEND
	}
	return operations[kind]
}

func (d *device) createQP(td driver.TD, in *uapi.IBUverbsCreateQP, send driver.Command, o qpOptions) (driver.QP,
	syscall.Errno) {
	kind := ibv.QPType(in.QPType)
	cap := ibv.QPCap{MaxSendWR: in.MaxSendWR, MaxRecvWR: in.MaxRecvWR, MaxSendSGE: in.MaxSendSGE,
		MaxRecvSGE: in.MaxRecvSGE, MaxInlineData: in.MaxInlineData}
	raw, header := kind == ibv.QPT_RAW_PACKET, uint32(0)
	var packets direct.Packets
	if raw {
		var errno syscall.Errno
		if packets, errno = d.packets(); errno != 0 {
			return nil, errno
		}
		if o.attr != nil && o.attr.CompMask&ibv.QP_INIT_ATTR_MAX_TSO_HEADER != 0 {
			header = uint32(o.attr.MaxTSOHeader)
			packets.MaxTSOHeader = header
		}
	}
	initiator := o.flags&uapi.MLX5_QP_FLAG_TYPE_DCI != 0
	if _, ok := operations[kind]; !ok && kind != ibv.QPT_XRC_RECV || kind == ibv.QPT_DRIVER && !initiator {
		return nil, syscall.EOPNOTSUPP
	}
	noReceives := in.IsSRQ != 0 || kind == ibv.QPT_XRC_SEND || kind == ibv.QPT_XRC_RECV
	sizes, ok := sizesOf(headOf(kind, o.ops(kind)), header, cap, !noReceives, limits{sendBytes: uint32(d.own.MaxSQDescSz),
		recvBytes: uint32(d.own.MaxRQDescSz), blocks: d.own.MaxSendWqebb, recvs: d.own.MaxRecvWR})
	if !ok {
		return nil, syscall.EINVAL
	}
	recvs, sends := sizes.places*sizes.stride, sizes.blocks*block
	size := recvs + sends
	if raw { // whose queues are apart
		size = recvs
	}
	m, errno := d.memory(size)
	if errno != 0 {
		return nil, errno
	}
	q := &queuePair{memory: m, device: d, sizes: sizes, initiator: initiator}
	base := uintptr(m.address()) + uintptr(recvs)
	if raw {
		buffer, err := offheap.Map(int(max(sends, 1)), offheap.Options{})
		if err != nil {
			return q, syscall.ENOMEM
		}
		q.sends, base = buffer, buffer.Address()
	}
	if t, ok := td.(*threadDomain); ok {
		q.register = t.register
	} else if q.register, errno = d.registers.get(); errno != 0 {
		return q, errno
	} else {
		q.shared = true
	}
	if q.named = kind != ibv.QPT_XRC_RECV; q.named {
		q.index = d.indexes.get()
	}
	in.MaxInlineData = sizes.inline
	flags := o.flags | uapi.MLX5_QP_FLAG_UAR_PAGE_INDEX
	if !initiator {
		flags |= uapi.MLX5_QP_FLAG_SCATTER_CQE
	}
	own := uapi.MLX5IBCreateQP{BufAddr: m.address(), DBAddr: uint64(uintptr(m.record)), SQWQECount: sizes.blocks,
		RQWQECount: sizes.places, RQWQEShift: log(sizes.stride), Flags: flags, UIdx: q.index, BfregIndex: q.register.page.id}
	if raw {
		*own.SQBufAddr() = uint64(base)
		packets.Index = q.index
		q.packets = &packets
	}
	var answer uapi.MLX5IBCreateQPResp
	if errno := send(driver.Bytes(&own), driver.Bytes(&answer)); errno != 0 {
		return q, errno
	}
	q.out = mlx5dv.QP{DBRec: ibv.PtrTo((*ibv.BE32)(m.record)),
		RQ: mlx5dv.QPRQ{Buf: uintptr(m.address()), WQECnt: sizes.places, Stride: sizes.stride},
		SQ: mlx5dv.QPSQ{Buf: base, WQECnt: sizes.blocks, Stride: block},
		BF: mlx5dv.QPBF{Reg: q.register.address(), Size: q.register.size}}
	return q, 0
}

// Path implements [driver.QP].
func (q *queuePair) Path(record *ibv.QP, cap ibv.QPCap, everyOne bool) (driver.QPPath, syscall.Errno) {
	var path datapath.Queue
	var err error
	if q.packets != nil {
		path, err = q.device.queues.NewPackets(record, &q.out, cap, everyOne, *q.packets)
	} else {
		path, err = q.device.queues.NewQP(record, &q.out, cap, everyOne, unsafe.Sizeof(driver.AH{}))
	}
	if err != nil {
		return nil, syscall.EOPNOTSUPP
	}
	q.path = path
	return path, 0
}

// Ready implements [driver.Receiver].
func (q *queuePair) Ready() {
	if q.packets != nil {
		q.path.(interface{ Ready() }).Ready()
	}
}

// Builder implements [driver.ExtendedQP].
func (q *queuePair) Builder() driver.Builder { return q.path.(builds).Builder() }

// builds is a queue pair of package direct.
type builds interface{ Builder() *direct.Builder }

// SendOps implements [driver.Extended].
func (d *device) SendOps(kind ibv.QPType) ibv.QPCreateSendOpsFlags {
	ops := operations[kind]
	if !d.atomics {
		ops &^= atomics
	}
	return ops
}

// Cap implements [driver.QP].
func (q *queuePair) Cap(cap ibv.QPCap) ibv.QPCap {
	cap.MaxSendWR, cap.MaxInlineData = q.sizes.mostSends, q.sizes.inline
	cap.MaxRecvWR, cap.MaxRecvSGE = q.sizes.mostRecvs, q.sizes.entries
	return cap
}

// Reset implements [driver.QP].
func (q *queuePair) Reset() {
	*(*[2]uint32)(q.record) = [2]uint32{}
	q.path.Reset()
}

// End implements [driver.Queue].
func (q *queuePair) End(destroy func() syscall.Errno) syscall.Errno { return end(q.path, destroy) }

// Free implements [driver.Queue].
func (q *queuePair) Free() {
	q.forget()
	if q.shared {
		q.device.registers.put(q.register)
	}
	if q.named {
		q.device.indexes.put(q.index)
	}
	if q.sends != nil {
		q.sends.Close()
	}
	q.memory.Free()
}
