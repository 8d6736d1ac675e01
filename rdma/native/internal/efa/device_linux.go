// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// device is an open device.
type device struct {
	file   *driver.File
	own    uapi.EFAIBVAllocUcontextResp
	limits uapi.EFAIBVExQueryDeviceResp
	qps    queuePairs
	cqs    completionQueues
}

// queuePairs are the queue pairs of a device, by the low bits of their numbers.
type queuePairs struct {
	mu          sync.Mutex
	all         []atomic.Pointer[queuePair]
	generations []uint32 // of the last queue pair
}

func (t *queuePairs) open(most uint32) {
	n := power(min(max(most, 1), 1<<16))
	t.all, t.generations = make([]atomic.Pointer[queuePair], n), make([]uint32, n)
}

func (t *queuePairs) index(number uint32) uint32 { return number & uint32(len(t.all)-1) }

// get returns the queue pair with a number, or nil.
func (t *queuePairs) get(number uint32) *queuePair {
	if q := t.all[t.index(number)].Load(); q != nil && q.number == number {
		return q
	}
	return nil
}

// add returns the queue pair's generation.
func (t *queuePairs) add(q *queuePair) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.index(q.number)
	t.all[i].Store(q)
	t.generations[i]++
	return t.generations[i]
}

func (t *queuePairs) remove(q *queuePair) { t.all[t.index(q.number)].CompareAndSwap(q, nil) }

// completionQueues are the completion queues of a device, by their handles.
type completionQueues struct {
	mu  sync.Mutex
	all map[uint32]*completionQueue
}

func (t *completionQueues) add(q *completionQueue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all[q.handle] = q
}

func (t *completionQueues) remove(q *completionQueue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[q.handle] == q {
		delete(t.all, q.handle)
	}
}

func (t *completionQueues) find(send, recv uint32) [2]*completionQueue {
	t.mu.Lock()
	defer t.mu.Unlock()
	return [2]*completionQueue{t.all[send], t.all[recv]}
}

// capLongIDs is a capability of devices whose requests have numbers of 64 bits. efa-abi.h lacks it.
const capLongIDs uapi.EFAQueryDeviceCaps = 1 << 9

func (d *device) has(caps uapi.EFAQueryDeviceCaps) bool { return d.limits.DeviceCaps&caps == caps }

// Open is a [driver.Driver].
func Open(f *driver.File, get driver.Command) (driver.Context, syscall.Errno) {
	d := &device{file: f}
	in := uapi.EFAIBVAllocUcontextCmd{
		SupportedCaps: uapi.EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH | uapi.EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR}
	if errno := get(driver.Bytes(&in), driver.Bytes(&d.own)); errno != 0 {
		return nil, errno
	}
	if d.own.CmdsSuppUdataMask&uapi.EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE == 0 || d.own.SubCqsPerCQ == 0 {
		return nil, syscall.EOPNOTSUPP // an old kernel
	}
	var has uapi.IBUverbsExQueryDeviceResp
	errno := f.Write(uapi.IB_USER_VERBS_EX_CMD_QUERY_DEVICE|uapi.IB_USER_VERBS_CMD_FLAG_EXTENDED,
		driver.Bytes(&uapi.IBUverbsExQueryDevice{}), driver.Bytes(&has), nil, driver.Bytes(&d.limits))
	if errno != 0 {
		return nil, errno
	}
	if d.limits.MaxSQWR > mostCount || d.limits.MaxRQWR > mostCount {
		return nil, syscall.EIO
	}
	d.qps.open(has.Base.MaxQP)
	d.cqs.all = map[uint32]*completionQueue{}
	return d, 0
}

// power returns the smallest power of two that is not less than n.
func power(n uint32) uint32 {
	if n <= 1 {
		return 1
	}
	return 1 << bits.Len32(n-1)
}

// DeviceAttr implements [driver.Attributes].
func (d *device) DeviceAttr(attr *ibv.DeviceAttr, firmware uint64) {
	attr.MaxQPWR = min(attr.MaxQPWR, int32(d.own.MaxLlqSize/narrow))
	clear(attr.FWVer[:])
	var v [8]byte
	binary.LittleEndian.PutUint64(v[:], firmware)
	copy(attr.FWVer[:], fmt.Sprintf("%d.%d.%d.%d", v[0], v[1], v[2], v[3]))
}

// Close implements [driver.Context].
func (*device) Close() {}

// AllocPD implements [driver.Context].
func (*device) AllocPD(send driver.Command) (uint32, syscall.Errno) {
	var own uapi.EFAIBVAllocPDResp
	errno := send(nil, driver.Bytes(&own))
	return uint32(own.PDN), errno
}

// RegMR implements [driver.Context].
func (*device) RegMR(_ *uapi.IBUverbsRegMR, send driver.Command) syscall.Errno { return send(nil, nil) }

// AHSize implements [driver.Context]. The driver's part of a handle is the number of the address.
func (*device) AHSize() uintptr { return unsafe.Sizeof(uapi.EFAIBVCreateAHResp{}) }

// CreateAH implements [driver.Context].
func (*device) CreateAH(_ *ibv.AHAttr, part unsafe.Pointer, send driver.Command) syscall.Errno {
	return send(nil, driver.Bytes((*uapi.EFAIBVCreateAHResp)(part)))
}

// addressOf returns the number of an address from the driver's part of a handle.
func addressOf(part unsafe.Pointer) uint16 { return (*uapi.EFAIBVCreateAHResp)(part).EFAAddressHandle }

// CreateSRQ implements [driver.Context]. There are no shared receive queues.
func (*device) CreateSRQ(*uapi.IBUverbsCreateSRQ, *uapi.IBUverbsCreateSRQResp, driver.Command) (driver.SRQ,
	syscall.Errno) {
	return nil, syscall.EOPNOTSUPP
}
