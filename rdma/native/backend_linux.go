// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"maps"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
	"github.com/goverbs/goverbs/runtime"
)

// Backend has the functions of libibverbs and librdmacm for the devices of a [Kernel]. Any number of goroutines may use
// it.
type Backend struct {
	kernel   Kernel
	space    *runtime.Space
	commands driver.Commands
	slots    slots
	funcs    map[string]map[string]runtime.Func // by library and name
	managed  cmDevices

	mu      sync.RWMutex
	objects map[uint64]any // by the address of the record that programs see
	settled *sync.Cond     // broadcast after events were acknowledged

	registered atomic.Bool                   // a memory region was requested
	eventNames map[rdmacm.CMEventType]uint64 // C strings; mu guards it

	qps  table[queuePair]
	cqs  table[completionQueue]
	srqs table[sharedQueue]
	ahs  table[handle]
}

// Open returns the Backend for the devices of this system. All calls return the same one.
func Open() (*Backend, error) { return ofSystem() }

var ofSystem = sync.OnceValues(func() (*Backend, error) { return New(System{}) })

// New returns a Backend for the devices of k. A process can have few Backends, and none is ever released.
func New(k Kernel) (*Backend, error) {
	b := &Backend{kernel: k, objects: map[uint64]any{}, eventNames: map[rdmacm.CMEventType]uint64{}}
	b.settled = sync.NewCond(&b.mu)
	var err error
	if b.space, err = runtime.NewSpace(b); err != nil {
		return nil, err
	}
	b.commands.Space = b.space
	b.funcs = map[string]map[string]runtime.Func{"libibverbs": b.functions(), "librdmacm": b.managerFunctions()}
	maps.Copy(b.funcs, b.vendorFunctions())
	return b, b.fillSlots()
}

// Function implements [runtime.Backend].
func (b *Backend) Function(library, name string) runtime.Func {
	return b.funcs[library][name]
}

// String names the backend in messages.
func (b *Backend) String() string { return "the kernel's devices, without rdma-core" }

// allocate returns a zeroed record for programs, outside Go's heap.
func allocate[T any](b *Backend) (*T, syscall.Errno) {
	var v T
	p, err := b.space.Alloc(int(unsafe.Sizeof(v)))
	if err != nil {
		return nil, syscall.ENOMEM
	}
	return (*T)(p), 0
}

func free[T any](b *Backend, record *T) { b.space.Free(unsafe.Pointer(record)) }

func addressOf[T any](v *T) uint64 { return uint64(uintptr(unsafe.Pointer(v))) }

func listAt[T any](address uint64, n int) []T { return unsafe.Slice(ibv.Ptr[T](address).Deref(), n) }

// badAt is where a post stores the request that it could not post. C lets callers omit no place, but bindMW does.
func badAt[W any](address uint64) *ibv.Ptr[W] {
	if address == 0 {
		return new(ibv.Ptr[W])
	}
	return ibv.Ptr[ibv.Ptr[W]](address).Deref()
}

func (b *Backend) enter(address uint64, object any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.objects[address] = object
}

func (b *Backend) forget(address uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.objects, address)
}

// find returns the object at an address, or nil if there is none of the type.
func find[T any](b *Backend, address uint64) *T {
	b.mu.RLock()
	defer b.mu.RUnlock()
	object, _ := b.objects[address].(*T)
	return object
}

// AH implements [driver.Core].
func (c *context) AH(p ibv.Ptr[ibv.AH]) unsafe.Pointer {
	if h := c.backend.ahAt(uint64(p)); h != nil {
		return h.record.Part()
	}
	return nil
}

// MW implements [driver.Core].
func (c *context) MW(p ibv.Ptr[ibv.MW]) bool { return find[window](c.backend, uint64(p)) != nil }

// MR implements [driver.Core].
func (c *context) MR(p ibv.Ptr[ibv.MR]) bool { return find[region](c.backend, uint64(p)) != nil }

// Port implements [driver.Core].
func (c *context) Port(number uint8) (p ibv.PortAttr, errno syscall.Errno) {
	errno = c.readPort(number, &p)
	return p, errno
}

// table finds the objects of the data path by the number in their records, without a lock.
type table[T any] struct {
	mu      sync.Mutex
	entries atomic.Pointer[[]atomic.Pointer[T]]
	unused  []uint32
}

func (t *table[T]) get(i uint32) *T {
	if all := t.entries.Load(); all != nil && i < uint32(len(*all)) {
		return (*all)[i].Load()
	}
	return nil
}

func (t *table[T]) add(v *T) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.unused) == 0 {
		var old []atomic.Pointer[T]
		if all := t.entries.Load(); all != nil {
			old = *all
		}
		grown := make([]atomic.Pointer[T], max(2*len(old), 64))
		for i := range old {
			grown[i].Store(old[i].Load())
		}
		for i := len(grown) - 1; i >= len(old); i-- {
			t.unused = append(t.unused, uint32(i))
		}
		t.entries.Store(&grown)
	}
	i := t.unused[len(t.unused)-1]
	t.unused = t.unused[:len(t.unused)-1]
	(*t.entries.Load())[i].Store(v)
	return i
}

func (t *table[T]) remove(i uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	(*t.entries.Load())[i].Store(nil)
	t.unused = append(t.unused, i)
}

// guarded turns a fault in memory of the caller into a panic that unwinds locks, instead of the end of the process.
func guarded(f runtime.Func) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		return f(a)
	}
}

// status is for functions that return 0, or -1 and errno.
func status(f func(a []uint64) syscall.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		if errno := f(a); errno != 0 {
			return ^uint64(0), errno
		}
		return 0, 0
	}
}

// errnoResult is for functions that return an error number.
func errnoResult(f func(a []uint64) syscall.Errno) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return uint64(f(a)), 0 }
}

// void is for functions without a result.
func void(f func(a []uint64)) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) {
		f(a)
		return 0, 0
	}
}

// constant is for functions that always return the same.
func constant(v uint64) runtime.Func {
	return func([]uint64) (uint64, runtime.Errno) { return v, 0 }
}

// functions returns the exported functions of libibverbs by name.
func (b *Backend) functions() map[string]runtime.Func {
	all := map[string]runtime.Func{
		"ibv_get_device_list":  b.deviceList,
		"ibv_free_device_list": void(func(a []uint64) { b.freeDeviceList(a[0]) }),
		"ibv_get_device_name":  b.deviceName,
		"ibv_get_device_index": b.deviceIndex,
		"ibv_get_device_guid":  b.deviceGUID,
		"ibv_open_device":      b.openDevice,
		"ibv_close_device":     status(func(a []uint64) syscall.Errno { return b.closeDevice(a[0]) }),
		"ibv_query_device": errnoResult(func(a []uint64) syscall.Errno {
			return b.ofContext(a[0], func(c *context) syscall.Errno {
				return c.queryDevice(ibv.Ptr[ibv.DeviceAttr](a[1]).Deref())
			})
		}),
		"ibv_query_port": errnoResult(func(a []uint64) syscall.Errno {
			return b.ofContext(a[0], func(c *context) syscall.Errno {
				return c.queryPort(uint8(a[1]), a[2], unsafe.Offsetof(ibv.PortAttr{}.Flags))
			})
		}),
		"ibv_query_gid": status(func(a []uint64) syscall.Errno {
			return b.ofContext(a[0], func(c *context) syscall.Errno {
				return c.queryGID(uint32(uint8(a[1])), uint32(a[2]), ibv.Ptr[ibv.GID](a[3]).Deref())
			})
		}),
		"_ibv_query_gid_ex":    errnoResult(b.queryGIDEx),
		"_ibv_query_gid_table": b.queryGIDTable,
		"ibv_query_pkey":       status(b.queryPKey),
		"ibv_get_pkey_index":   b.pkeyIndex,
		"ibv_get_async_event":  status(b.getAsyncEvent),
		"ibv_ack_async_event":  void(b.ackAsyncEvent),

		"ibv_alloc_pd":   b.allocPD,
		"ibv_dealloc_pd": errnoResult(func(a []uint64) syscall.Errno { return b.deallocPD(a[0]) }),
		"ibv_reg_mr": func(a []uint64) (uint64, runtime.Errno) {
			return b.regMR(a[0], a[1], a[2], a[1], ibv.AccessFlags(a[3]))
		},
		"ibv_reg_mr_iova":          b.regMRIOVA,
		"ibv_reg_mr_iova2":         b.regMRIOVA,
		"ibv_reg_mr_ex":            b.regMREx,
		"ibv_reg_dmabuf_mr":        b.regDMABuf,
		"ibv_rereg_mr":             b.reregMR,
		"ibv_alloc_buf":            b.allocBuf,
		"ibv_free_buf":             void(b.freeBuf),
		"ibv_reg_buf_mr":           b.regBufMR,
		"ibv_export_buf_dmabuf_fd": status(b.exportBuf),
		"ibv_dereg_mr":             errnoResult(func(a []uint64) syscall.Errno { return b.deregMR(a[0]) }),

		"ibv_create_comp_channel":  b.createChannel,
		"ibv_destroy_comp_channel": errnoResult(func(a []uint64) syscall.Errno { return b.destroyChannel(a[0]) }),
		"ibv_create_cq":            b.createCQ,
		"ibv_destroy_cq":           errnoResult(func(a []uint64) syscall.Errno { return b.destroyCQ(a[0]) }),
		"ibv_resize_cq":            errnoResult(b.resizeCQ),
		"ibv_get_cq_event":         status(b.getCQEvent),
		"ibv_ack_cq_events":        void(b.ackCQEvents),

		"ibv_create_srq":  b.createSRQ,
		"ibv_modify_srq":  errnoResult(b.modifySRQ),
		"ibv_query_srq":   errnoResult(b.querySRQ),
		"ibv_destroy_srq": errnoResult(func(a []uint64) syscall.Errno { return b.destroySRQ(a[0]) }),

		"ibv_create_qp":         b.createQP,
		"ibv_qp_to_qp_ex":       b.qpToQPEx,
		"ibv_modify_qp":         errnoResult(b.modifyQP),
		"ibv_query_qp":          errnoResult(b.queryQP),
		"ibv_destroy_qp":        errnoResult(func(a []uint64) syscall.Errno { return b.destroyQP(a[0]) }),
		"ibv_create_ah":         b.createAH,
		"ibv_init_ah_from_wc":   status(b.initAHFromWC),
		"ibv_create_ah_from_wc": b.createAHFromWC,
		"ibv_destroy_ah":        errnoResult(func(a []uint64) syscall.Errno { return b.destroyAH(a[0]) }),
		"ibv_attach_mcast":      errnoResult(func(a []uint64) syscall.Errno { return b.mcast(a, true) }),
		"ibv_detach_mcast":      errnoResult(func(a []uint64) syscall.Errno { return b.mcast(a, false) }),

		"ibv_query_qp_data_in_order": constant(0),
		"ibv_fork_init":              errnoResult(b.forkInit),
		"ibv_is_fork_initialized":    b.forkStatus,
	}
	addMissing(all)
	for name, f := range all {
		all[name] = guarded(f)
	}
	return all
}

// slots hold the addresses that stand for the functions in records.
type slots struct {
	ops      ibv.ContextOps
	extended ibv.VerbsContext
	builder  ibv.QPEx
	reader   ibv.CQEx

	toDM, fromDM ibv.FuncPtr
}

func (b *Backend) fillSlots() (err error) {
	set := func(to *ibv.FuncPtr, f runtime.SlotFunc) {
		address, e := b.space.Slot(f)
		if e != nil {
			err = e
		}
		*to = ibv.FuncPtr(address)
	}
	o := &b.slots.ops
	set(&o.PostSend, b.postSend)
	set(&o.PostRecv, b.postRecv)
	set(&o.PostSRQRecv, b.postSRQRecv)
	set(&o.AllocMW, b.allocMW)
	set(&o.BindMW, b.bindMW)
	set(&o.DeallocMW, b.deallocMW)
	set(&o.PollCQ, b.pollCQ)
	set(&o.ReqNotifyCQ, b.reqNotifyCQ)
	x := &b.slots.extended
	set(&x.QueryPort, func(c, port, attr, size, _, _ uint64) (uint64, runtime.Errno) {
		return uint64(b.ofContext(c, func(c *context) syscall.Errno {
			return c.queryPort(uint8(port), attr, uintptr(size))
		})), 0
	})
	set(&x.QueryDeviceEx, func(c, input, attr, size, _, _ uint64) (uint64, runtime.Errno) {
		return uint64(b.ofContext(c, func(c *context) syscall.Errno {
			return c.queryDeviceEx(ibv.Ptr[ibv.QueryDeviceExInput](input).Deref(), attr, uintptr(size))
		})), 0
	})
	set(&x.CreateCQEx, b.createCQEx)
	set(&x.CreateQPEx, b.createQPEx)
	set(&x.CreateSRQEx, b.createSRQEx)
	set(&x.AllocTD, b.allocTD)
	set(&x.DeallocTD, b.deallocTD)
	set(&x.AllocParentDomain, b.allocParentDomain)
	set(&x.OpenXRCD, b.openXRCD)
	set(&x.CloseXRCD, b.closeXRCD)
	set(&x.OpenQP, b.openQP)
	set(&x.IBVCreateFlow, b.createFlow)
	set(&x.IBVDestroyFlow, b.destroyFlow)
	set(&x.CreateCounters, b.createCounters)
	set(&x.DestroyCounters, b.destroyCounters)
	set(&x.AttachCountersPointFlow, b.attachCounters)
	set(&x.ReadCounters, b.readCounters)
	set(&x.AllocDM, b.allocDM)
	set(&x.FreeDM, b.freeDM)
	set(&x.RegDMMR, b.regDMMR)
	set(&b.slots.toDM, b.toDM)
	set(&b.slots.fromDM, b.fromDM)
	set(&x.GetSRQNum, b.srqNumber)
	set(&x.AdviseMR, b.adviseMR)
	b.fillReaders(set)
	b.fillBuilders(set)
	b.fillMissing(set)
	return err
}

// ofContext calls f with the context at an address.
func (b *Backend) ofContext(address uint64, f func(*context) syscall.Errno) syscall.Errno {
	c := find[context](b, address)
	if c == nil {
		return syscall.EINVAL
	}
	return f(c)
}
