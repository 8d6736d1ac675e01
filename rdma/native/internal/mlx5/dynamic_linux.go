// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package mlx5

import (
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// library has the functions of libmlx5 for queue pairs.
type library struct {
	driver.Finder
	mu    sync.Mutex
	slots *mlx5dv.QPEx // with the functions of an initiator, or nil; guarded by mu
	built sync.Map     // *queuePair of an initiator by the address of its mlx5dv.QPEx
}

// dvRecord is what programs have of a queue pair beside its ibv.QPEx.
type dvRecord struct {
	library *library
	record  *mlx5dv.QPEx // or nil
}

// forget undoes qpEx.
func (q *queuePair) forget() {
	if q.dv.record != nil {
		q.dv.library.built.Delete(address(q.dv.record))
		q.device.file.Commands.Space.Free(unsafe.Pointer(q.dv.record))
		q.dv.record = nil
	}
}

func address[T any](v *T) uint64 { return uint64(uintptr(unsafe.Pointer(v))) }

// createQP is mlx5dv_create_qp.
func (l *library) createQP(a []uint64) (uint64, runtime.Errno) {
	c, attr := ibv.Ptr[ibv.Context](a[0]), ibv.Ptr[ibv.QPInitAttrEx](a[1]).Deref()
	d, ok := l.Context(c).(*device)
	switch {
	case !ok:
		return 0, syscall.EOPNOTSUPP
	case attr == nil:
		return 0, syscall.EINVAL
	}
	create, errno := d.CreateQPEx(attr), syscall.Errno(0)
	if dv := ibv.Ptr[mlx5dv.QPInitAttr](a[2]).Deref(); dv != nil {
		create, errno = d.vendorQP(attr, dv)
	}
	if errno != 0 {
		return 0, errno
	}
	qp, errno := l.NewQP(c, attr, create)
	return uint64(qp), errno
}

// vendorQP returns the function that creates a queue pair with mlx5's attributes.
func (d *device) vendorQP(attr *ibv.QPInitAttrEx, dv *mlx5dv.QPInitAttr) (driver.CreateQP, syscall.Errno) {
	const (
		known   = mlx5dv.QP_INIT_ATTR_MASK_QP_CREATE_FLAGS | mlx5dv.QP_INIT_ATTR_MASK_DC
		lacking = mlx5dv.QP_INIT_ATTR_MASK_SEND_OPS_FLAGS | mlx5dv.QP_INIT_ATTR_MASK_DCI_STREAMS
	)
	dynamic := dv.CompMask&mlx5dv.QP_INIT_ATTR_MASK_DC != 0
	switch {
	case dv.CompMask&lacking != 0:
		return nil, syscall.EOPNOTSUPP
	case dv.CompMask&^known != 0, dynamic != (attr.QPType == ibv.QPT_DRIVER):
		return nil, syscall.EINVAL
	case dv.CompMask&mlx5dv.QP_INIT_ATTR_MASK_QP_CREATE_FLAGS != 0 && dv.CreateFlags != 0:
		return nil, syscall.EOPNOTSUPP
	case !dynamic:
		return d.CreateQPEx(attr), 0
	}
	switch dv.DCInitAttr.DCType {
	case mlx5dv.DCTYPE_DCI:
		return d.createQPWith(qpOptions{attr: attr, flags: uapi.MLX5_QP_FLAG_TYPE_DCI}), 0
	case mlx5dv.DCTYPE_DCT:
		if attr.CompMask != ibv.QP_INIT_ATTR_PD {
			return nil, syscall.EINVAL
		}
		key := *dv.DCInitAttr.DCTAccessKey()
		return func(_ driver.TD, _ *uapi.IBUverbsCreateQP, _ *uapi.IBUverbsCreateQPResp, send driver.Command) (driver.QP,
			syscall.Errno) {
			return d.createTarget(key, send)
		}, 0
	}
	return nil, syscall.EINVAL
}

// target is a target of dynamic connections. It has no queues, and gets its number in RTR.
type target struct {
	device *device
	index  uint32
	path   pathEnd
}

// pathEnd is the path of a target, which only End uses.
type pathEnd interface {
	End(destroy func() error) error
}

func (d *device) createTarget(key uint64, send driver.Command) (driver.QP, syscall.Errno) {
	t := &target{device: d, index: d.indexes.get()}
	own := uapi.MLX5IBCreateQP{Flags: uapi.MLX5_QP_FLAG_TYPE_DCT, UIdx: t.index}
	*own.AccessKey() = key
	var answer uapi.MLX5IBCreateQPResp
	return t, send(driver.Bytes(&own), driver.Bytes(&answer))
}

// Path implements [driver.QP].
func (t *target) Path(record *ibv.QP, _ ibv.QPCap, _ bool) (driver.QPPath, syscall.Errno) {
	path, err := t.device.queues.NewTarget(record)
	if err != nil {
		return nil, syscall.EOPNOTSUPP
	}
	t.path = path
	return path, 0
}

// Cap implements [driver.QP].
func (*target) Cap(cap ibv.QPCap) ibv.QPCap { return cap }

// Reset implements [driver.QP].
func (*target) Reset() {}

// Changed implements [driver.Numbered].
func (*target) Changed(to ibv.QPState, send driver.Command) (number uint32, errno syscall.Errno) {
	var answer uapi.MLX5IBModifyQPResp
	if errno := send(driver.Bytes(&uapi.MLX5IBModifyQP{}), driver.Bytes(&answer)); errno != 0 || to != ibv.QPS_RTR {
		return 0, errno
	}
	if answer.DCTN == 0 { // a kernel that does not return it
		return 0, syscall.EINVAL
	}
	return answer.DCTN, 0
}

// End implements [driver.Queue].
func (t *target) End(destroy func() syscall.Errno) syscall.Errno {
	if t.path == nil {
		return destroy()
	}
	return errnoOf(t.path.End(func() error {
		if errno := destroy(); errno != 0 {
			return errno
		}
		return nil
	}))
}

// Free implements [driver.Queue].
func (t *target) Free() { t.device.indexes.put(t.index) }

// qpEx is mlx5dv_qp_ex_from_ibv_qp_ex. The result lives as long as the queue pair.
func (l *library) qpEx(a []uint64) (uint64, runtime.Errno) {
	q, ok := l.QP(ibv.Ptr[ibv.QP](a[0])).(*queuePair)
	if !ok {
		return 0, syscall.EOPNOTSUPP
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.dv.record == nil {
		if errno := l.addRecord(q); errno != 0 {
			return 0, errno
		}
	}
	return address(q.dv.record), 0
}

// addRecord creates the mlx5dv.QPEx of a queue pair. The caller holds mu.
func (l *library) addRecord(q *queuePair) syscall.Errno {
	space := q.device.file.Commands.Space
	if l.slots == nil {
		slots := &mlx5dv.QPEx{}
		for _, f := range []struct {
			slot *ibv.FuncPtr
			call func(q *queuePair, ah, number, key, stream uint64)
		}{
			{&slots.WRSetDCAddr, func(q *queuePair, ah, number, key, _ uint64) { l.setDC(q, ah, number, key, 0) }},
			{&slots.WRSetDCAddrStream, l.setDC},
		} {
			slot, err := space.Slot(func(of, ah, number, key, stream, _ uint64) (uint64, runtime.Errno) {
				if q, ok := l.built.Load(of); ok {
					f.call(q.(*queuePair), ah, number, key, stream)
				}
				return 0, 0
			})
			if err != nil {
				return syscall.ENOMEM
			}
			*f.slot = ibv.FuncPtr(slot)
		}
		l.slots = slots
	}
	memory, err := space.Alloc(int(unsafe.Sizeof(mlx5dv.QPEx{})))
	if err != nil {
		return syscall.ENOMEM
	}
	q.dv = dvRecord{l, (*mlx5dv.QPEx)(memory)}
	if q.initiator {
		*q.dv.record = *l.slots
	}
	l.built.Store(address(q.dv.record), q)
	return 0
}

// setDC is mlx5dv_wr_set_dc_addr_stream.
func (l *library) setDC(q *queuePair, ah, number, key, stream uint64) {
	b := q.path.(builds).Builder()
	part := q.device.file.Core.AH(ibv.Ptr[ibv.AH](ah))
	if part == nil {
		b.Fail(syscall.EINVAL)
		return
	}
	b.Dynamic(part, uint32(number), key, uint16(stream))
}
