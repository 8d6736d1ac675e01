// SPDX-License-Identifier: BSD-2-Clause

// Package fakedevice provides a device for tests of package rdma and of packages above it. It supports every verb, and
// its verbs do nothing.
package fakedevice

import (
	"os"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// Fake is a backend with one device, named "fake". Verbs that create an object return one, verbs that destroy an object
// accept it, and the names of all calls are recorded. Tests can replace verbs.
type Fake struct {
	Context *ibv.VerbsContext
	Events  *os.File // never becomes readable
	// Fails contains the errors of verbs and slots by name, and Do contains replacements. Set them only while no call
	// is in progress.
	Fails map[string]runtime.Errno
	Do    map[string]func(a []uintptr) uintptr

	space  *runtime.Space
	device *ibv.Device
	list   *[2]ibv.Ptr[ibv.Device] // of devices
	name   *[8]byte                // of the device
	mu     sync.Mutex
	calls  []string
}

// New resets the process's fake and returns it. Only one test may use it at a time.
func New() *Fake {
	f := ofProcess()
	f.Fails, f.Do = map[string]runtime.Errno{}, map[string]func([]uintptr) uintptr{}
	f.Took()
	return f
}

// Current returns the process's fake as the test has configured it.
func Current() *Fake { return ofProcess() }

var ofProcess = sync.OnceValue(func() *Fake { // one per process, because the number of Spaces is limited
	f := &Fake{}
	var err error
	if f.space, err = runtime.NewSpace(f); err != nil {
		panic(err)
	}
	events, _, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	f.Events = events
	f.device, f.list, f.name = Object[ibv.Device](f), Object[[2]ibv.Ptr[ibv.Device]](f), Object[[8]byte](f)
	f.list[0] = ibv.PtrTo(f.device)
	copy(f.name[:], "fake")
	f.Context = Object[ibv.VerbsContext](f)
	f.Context.Sz = uint64(unsafe.Sizeof(*f.Context))
	c := &f.Context.Context
	c.ABICompat, c.Device, c.AsyncFD = ibv.VERBS_ABI_IS_EXTENDED, ibv.PtrTo(f.device), int32(events.Fd())
	for name, slot := range map[string]*ibv.FuncPtr{
		"alloc_dm": &f.Context.AllocDM, "free_dm": &f.Context.FreeDM, "reg_dm_mr": &f.Context.RegDMMR,
		"create_flow": &f.Context.IBVCreateFlow, "destroy_flow": &f.Context.IBVDestroyFlow,
		"create_flow_action_esp": &f.Context.CreateFlowActionESP,
		"modify_flow_action_esp": &f.Context.ModifyFlowActionESP,
		"destroy_flow_action":    &f.Context.DestroyFlowAction,
		"create_counters":        &f.Context.CreateCounters, "destroy_counters": &f.Context.DestroyCounters,
		"read_counters": &f.Context.ReadCounters, "attach_counters": &f.Context.AttachCountersPointFlow,
		"create_wq": &f.Context.CreateWQ, "modify_wq": &f.Context.ModifyWQ, "destroy_wq": &f.Context.DestroyWQ,
		"create_rwq_ind_table": &f.Context.CreateRWQIndTable, "destroy_rwq_ind_table": &f.Context.DestroyRWQIndTable,
		"create_qp_ex": &f.Context.CreateQPEx, "post_send": &c.Ops.PostSend, "post_recv": &c.Ops.PostRecv,
		"post_srq_recv": &c.Ops.PostSRQRecv, "poll_cq": &c.Ops.PollCQ, "req_notify_cq": &c.Ops.ReqNotifyCQ,
	} {
		*slot = f.Slot(name)
	}
	return f
})

// Object allocates backend memory for an object of C. It is never freed.
func Object[T any](f *Fake) *T {
	p, err := f.space.Alloc(int(max(unsafe.Sizeof(*new(T)), 512)))
	if err != nil {
		panic(err)
	}
	return (*T)(p)
}

// Slot returns a C function pointer that calls the function with the name in Do.
func (f *Fake) Slot(name string) ibv.FuncPtr {
	address, err := f.space.Slot(func(a, b, c, d, e, g uint64) (uint64, runtime.Errno) {
		return f.called(name, []uint64{a, b, c, d, e, g})
	})
	if err != nil {
		panic(err)
	}
	return ibv.FuncPtr(address)
}

// Function returns a function for any name.
func (f *Fake) Function(library, name string) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return f.called(name, a) }
}

// called is call with 64-bit arguments and results.
func (f *Fake) called(name string, a []uint64) (uint64, runtime.Errno) {
	args := make([]uintptr, len(a))
	for i := range a {
		args[i] = uintptr(a[i])
	}
	result, errno := f.call(name, args)
	return uint64(result), errno
}

func (f *Fake) call(name string, a []uintptr) (uintptr, runtime.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch name {
	case "ibv_get_device_list":
		*(*int32)(unsafe.Pointer(ibv.Ptr[int32](a[0]).Deref())) = 1
		return address(f.list), 0
	case "ibv_get_device_name":
		return address(f.name), 0
	case "ibv_open_device":
		return address(&f.Context.Context), 0
	case "ibv_get_async_event":
		return ^uintptr(0), syscall.EAGAIN
	case "ibv_free_device_list", "ibv_get_device_index", "ibv_get_device_guid", "ibv_query_device", "ibv_query_port":
		return 0, 0
	}
	f.calls = append(f.calls, name)
	if errno := f.Fails[name]; errno != 0 {
		if strings.Contains(name, "create") || strings.Contains(name, "alloc") || strings.Contains(name, "reg_") {
			return 0, errno
		}
		return uintptr(errno), errno
	}
	if do := f.Do[name]; do != nil {
		result := do(a)
		if result == 0 && strings.Contains(name, "create") {
			return 0, syscall.EINVAL
		}
		return result, 0
	}
	for _, part := range []string{"create", "_alloc_", "alloc_dm", "reg_", "import"} {
		if strings.Contains(name, part) && !strings.Contains(name, "dereg") && !strings.Contains(name, "unimport") {
			o := Object[struct {
				context, second uintptr
				_               [60]uint64
			}](f)
			o.context = address(&f.Context.Context)
			if name == "create_flow" {
				o.context, o.second = 0, o.context
			}
			return address(o), 0
		}
	}
	return 0, 0
}

// Took returns the names of the calls since the previous Took.
func (f *Fake) Took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// QueuePairs makes ibv_create_cq and ibv_create_qp return usable objects.
func (f *Fake) QueuePairs() {
	f.Do["ibv_create_cq"] = func(a []uintptr) uintptr {
		cq := Object[ibv.CQ](f)
		cq.Context, cq.CQE = ibv.PtrTo(&f.Context.Context), int32(a[1])
		return address(cq)
	}
	f.Do["ibv_create_qp"] = func(a []uintptr) uintptr {
		qp := Object[ibv.QP](f)
		qp.Context, qp.QPNum, qp.QPType = ibv.PtrTo(&f.Context.Context), 0x12,
			ibv.Ptr[ibv.QPInitAttr](a[1]).Deref().QPType
		return address(qp)
	}
}

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }
