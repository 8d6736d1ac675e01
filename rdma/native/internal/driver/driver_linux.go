// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package driver

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
)

// Core is an open device of package native.
type Core interface {
	// AH returns the driver's part of an address handle, or nil. A closed object is not found.
	AH(ibv.Ptr[ibv.AH]) unsafe.Pointer
	MW(ibv.Ptr[ibv.MW]) bool
	MR(ibv.Ptr[ibv.MR]) bool
	Port(number uint8) (ibv.PortAttr, syscall.Errno)
	GID(port, index uint32) (uapi.IBUverbsGIDEntry, syscall.Errno)
}

// AH is the record of an address handle. The driver's part follows it.
type AH struct {
	ibv.AH
	Index uint32 // of package native
}

// Part returns the driver's part.
func (h *AH) Part() unsafe.Pointer { return unsafe.Add(unsafe.Pointer(h), unsafe.Sizeof(*h)) }

// Command sends a command of the core with the driver's parts: in, and out, which it fills in. Empty parts are not
// sent.
type Command func(in, out []byte) syscall.Errno

// Driver opens a device, whose file is open: it sends GET_CONTEXT by get.
type Driver func(f *File, get Command) (Context, syscall.Errno)

// Context is an open device.
//
// Its methods that create objects send the command by send. Before, they may change the core's part in; afterwards, out
// is the core's answer. If they fail, the caller destroys what the kernel has created.
type Context interface {
	// AllocPD returns the driver's number of the domain, if it has one.
	AllocPD(send Command) (number uint32, errno syscall.Errno)
	RegMR(in *uapi.IBUverbsRegMR, send Command) syscall.Errno
	// AHSize returns the number of bytes of the driver's part of an address handle.
	AHSize() uintptr
	// CreateAH fills in the driver's part. Without a call of send, the kernel does not know the handle.
	CreateAH(attr *ibv.AHAttr, part unsafe.Pointer, send Command) syscall.Errno
	CreateCQ(in *uapi.IBUverbsCreateCQ, out *uapi.IBUverbsCreateCQResp, send Command) (CQ, syscall.Errno)
	CreateSRQ(in *uapi.IBUverbsCreateSRQ, out *uapi.IBUverbsCreateSRQResp, send Command) (SRQ, syscall.Errno)
	CreateQP(in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send Command) (QP, syscall.Errno)
	// Close follows the end of all objects, and precedes that of the file.
	Close()
}

// Attributes is a Context that changes the device's attributes, of which the kernel has answered attr and the version of
// the firmware.
type Attributes interface {
	DeviceAttr(attr *ibv.DeviceAttr, firmware uint64)
}

// CreateQP is the type of functions like [Context.CreateQP] with a thread domain or nil, and CreateCQ that of
// [Context.CreateCQ].
type (
	CreateQP func(td TD, in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send Command) (QP, syscall.Errno)
	CreateCQ func(in *uapi.IBUverbsCreateCQ, out *uapi.IBUverbsCreateCQResp, send Command) (CQ, syscall.Errno)
)

// ThreadDomains is a Context that has thread domains. Their queue pairs do not share a doorbell register with others.
type ThreadDomains interface {
	AllocTD() (TD, syscall.Errno)
	// CreateQPIn is CreateQP for a queue pair of a thread domain.
	CreateQPIn(td TD, in *uapi.IBUverbsCreateQP, out *uapi.IBUverbsCreateQPResp, send Command) (QP, syscall.Errno)
}

// TD is a thread domain.
type TD interface {
	// Free follows the end of its queue pairs.
	Free()
}

// Queue is a queue of a driver.
type Queue interface {
	// End destroys the queue by a call of destroy, and returns its error. Completions of a queue pair that has ended are
	// dropped.
	End(destroy func() syscall.Errno) syscall.Errno
	// Free releases the memory of the queue, after operations in progress. Later ones fail.
	Free()
}

// CQ is a completion queue.
type CQ interface {
	Queue
	// Path returns the data path, when record is complete.
	Path(record *ibv.CQ) (CQPath, syscall.Errno)
	Resize(in *uapi.IBUverbsResizeCQ, out *uapi.IBUverbsResizeCQResp, send Command) syscall.Errno
}

// CQPath is the data path of a completion queue.
type CQPath interface {
	Poll(cq *ibv.CQ, wcs []ibv.WC) int32
	Arm(cq *ibv.CQ, solicitedOnly bool) int32
}

// EventCounter is a CQPath whose requests for an event carry the number of events that were read. Such a device sends
// no event until the previous one was read.
type EventCounter interface {
	// Event is called for each event that the program has read.
	Event()
}

// SRQ is a shared receive queue.
type SRQ interface {
	Queue
	Path(record *ibv.SRQ, cap ibv.SRQAttr) (SRQPath, syscall.Errno)
	// Cap returns the capacities, of which the kernel has answered cap.
	Cap(cap ibv.SRQAttr) ibv.SRQAttr
	Modify(in *uapi.IBUverbsModifySRQ, send Command) syscall.Errno
}

// XRC is a Context that has XRC: queue pairs of types XRC_SEND and XRC_RECV, and shared receive queues for the latter.
type XRC interface {
	// CreateXRC creates a shared receive queue of an XRC domain, whose receives complete in cq.
	CreateXRC(in *uapi.IBUverbsCreateXSRQ, out *uapi.IBUverbsCreateSRQResp, cq *ibv.CQ, send Command) (SRQ,
		syscall.Errno)
}

// DeviceMemory is a Context whose device has memory for programs.
type DeviceMemory interface {
	// AllocDM appends the driver's attributes to the request for length bytes, sends it by send, and maps the memory.
	AllocDM(r *Request, length uint64, send func() syscall.Errno) (DM, syscall.Errno)
}

// DM is memory of a device.
type DM interface {
	// Bytes returns the mapped memory, of which accesses have 4 bytes.
	Bytes() []byte
	// Free follows the end of the memory.
	Free()
}

// Flows is a Context whose device has rules of flow steering, and counters of what they match.
type Flows interface {
	// Counts reports whether rules can count a value.
	Counts(ibv.CounterDescription) bool
	// CreateFlow sends the command for a rule. counted means that it has counters. Their points are empty if the kernel
	// has them from another rule.
	CreateFlow(points []CounterPoint, counted bool, send Command) syscall.Errno
}

// CounterPoint selects a counted value and its index.
type CounterPoint struct {
	Counter ibv.CounterDescription
	Index   uint32
}

// SRQPath is the data path of a shared receive queue.
type SRQPath interface {
	PostSRQRecv(srq *ibv.SRQ, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
}

// QP is a queue pair.
type QP interface {
	Queue
	// Path returns the data path. cap is the result of Cap.
	Path(record *ibv.QP, cap ibv.QPCap, everyOne bool) (QPPath, syscall.Errno)
	// Cap returns the capacities, of which the kernel has answered cap.
	Cap(cap ibv.QPCap) ibv.QPCap
	// Reset is called after the queue pair has moved to RESET.
	Reset()
}

// Numbered is a QP that gets its number when its state changes, and whose changes have a part of the driver.
type Numbered interface {
	// Changed sends the extended command for a change to a state, or to none. It returns the number, or 0 if it has not
	// changed.
	Changed(to ibv.QPState, send Command) (number uint32, errno syscall.Errno)
}

// Receiver is a QP that is called after it has moved to RTR.
type Receiver interface {
	Ready()
}

// QPPath is the data path of a queue pair.
type QPPath interface {
	PostSend(qp *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32
	PostRecv(qp *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32
}

// Extended is a Context whose queue pairs can build requests with ibv_wr_*.
type Extended interface {
	// SendOps returns the operations that queue pairs of a type can build.
	SendOps(ibv.QPType) ibv.QPCreateSendOpsFlags
}

// ExtendedQPs is a Context whose queue pairs depend on attributes of ibv_create_qp_ex.
type ExtendedQPs interface {
	// Attributes returns the optional attributes of a type of queue pairs.
	Attributes(ibv.QPType) ibv.QPInitAttrMask
	CreateQPEx(*ibv.QPInitAttrEx) CreateQP
}

// ExtendedQP is a QP of an Extended context.
type ExtendedQP interface {
	Builder() Builder // after Path
}

// Builder builds lists of requests in a send queue. It is locked from Start to Complete or Abort. After the first
// error, which Complete returns, requests are ignored.
type Builder interface {
	Start(qp *ibv.QP)
	// Started reports whether the builder is locked.
	Started() bool
	Fail(syscall.Errno)
	Complete() syscall.Errno
	Abort()

	// Each of these begins a request. The key and flags of the next one are in the record.
	Message(x *ibv.QPEx, op ibv.WROpcode, immOrKey uint32)
	Remote(x *ibv.QPEx, op ibv.WROpcode, rkey uint32, address uint64, imm uint32)
	Atomic(x *ibv.QPEx, op ibv.WROpcode, rkey uint32, address, compareAdd, swap uint64)
	AtomicWrite(x *ibv.QPEx, rkey uint32, address uint64, value *[8]byte)
	Flush(x *ibv.QPEx, rkey uint32, address, length uint64, placement, level uint8)
	Bind(x *ibv.QPEx, mw *ibv.MW, rkey uint32, info *ibv.MWBindInfo)

	// These complete the last request. ah is the driver's part of the address handle.
	Datagram(ah unsafe.Pointer, qpn, qkey uint32)
	SGEs([]ibv.SGE)
	Inline([]ibv.DataBuf)
}

// TSOBuilder is a Builder of requests that the device divides into packets.
type TSOBuilder interface {
	TSO(x *ibv.QPEx, header []byte, mss uint16)
}

// XRCBuilder is a Builder of requests to shared receive queues of XRC.
type XRCBuilder interface {
	XRC(srqn uint32)
}
