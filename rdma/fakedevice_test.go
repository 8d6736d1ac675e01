package rdma

import (
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// fake is a backend with one device that has every verb, and does nothing: what creates gives an object, what destroys takes it, and all
// calls are kept, with their numbers. What a verb shall do beside, a test says.
type fake struct {
	t       testing.TB
	space   *runtime.Space
	context *ibv.VerbsContext
	device  *ibv.Device
	events  *os.File // nothing can ever be read from it

	mu    sync.Mutex
	calls []string
	fails map[string]runtime.Errno
	do    map[string]func(a []uintptr) uintptr
}

var theFake = sync.OnceValue(func() *fake { // processes have room for few spaces
	f := &fake{}
	var err error
	if f.space, err = runtime.NewSpace(f); err != nil {
		panic(err)
	}
	events, _, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	f.events = events
	f.device = fakeObject[ibv.Device](f)
	f.context = fakeObject[ibv.VerbsContext](f)
	f.context.Sz = uint64(unsafe.Sizeof(*f.context))
	c := &f.context.Context
	c.ABICompat, c.Device, c.AsyncFD = ibv.VERBS_ABI_IS_EXTENDED, ibv.PtrTo(f.device), int32(events.Fd())
	for name, slot := range map[string]*ibv.FuncPtr{
		"alloc_dm": &f.context.AllocDM, "free_dm": &f.context.FreeDM, "reg_dm_mr": &f.context.RegDMMR,
		"create_flow": &f.context.IBVCreateFlow, "destroy_flow": &f.context.IBVDestroyFlow,
		"create_flow_action_esp": &f.context.CreateFlowActionESP, "modify_flow_action_esp": &f.context.ModifyFlowActionESP, "destroy_flow_action": &f.context.DestroyFlowAction,
		"create_counters": &f.context.CreateCounters, "destroy_counters": &f.context.DestroyCounters, "read_counters": &f.context.ReadCounters, "attach_counters": &f.context.AttachCountersPointFlow,
		"create_wq": &f.context.CreateWQ, "modify_wq": &f.context.ModifyWQ, "destroy_wq": &f.context.DestroyWQ,
		"create_rwq_ind_table": &f.context.CreateRWQIndTable, "destroy_rwq_ind_table": &f.context.DestroyRWQIndTable,
		"create_qp_ex": &f.context.CreateQPEx, "post_send": &c.Ops.PostSend, "post_recv": &c.Ops.PostRecv, "post_srq_recv": &c.Ops.PostSRQRecv, "poll_cq": &c.Ops.PollCQ, "req_notify_cq": &c.Ops.ReqNotifyCQ,
	} {
		*slot = f.slot(name)
	}
	return f
})

func fakeObject[T any](f *fake) *T {
	p, err := f.space.Alloc(int(max(unsafe.Sizeof(*new(T)), 512)))
	if err != nil {
		panic(err)
	}
	return (*T)(p)
}

func (f *fake) slot(name string) ibv.FuncPtr {
	address, err := f.space.Slot(func(a, b, c, d, e, g uint64) (uint64, runtime.Errno) {
		return f.called(name, []uint64{a, b, c, d, e, g})
	})
	if err != nil {
		panic(err)
	}
	return ibv.FuncPtr(address)
}

// Function is every function of every library.
func (f *fake) Function(library, name string) runtime.Func {
	return func(a []uint64) (uint64, runtime.Errno) { return f.called(name, a) }
}

// called is call with arguments and a result of 64 bits.
func (f *fake) called(name string, a []uint64) (uint64, runtime.Errno) {
	args := make([]uintptr, len(a))
	for i := range a {
		args[i] = uintptr(a[i])
	}
	result, errno := f.call(name, args)
	return uint64(result), errno
}

func (f *fake) call(name string, a []uintptr) (uintptr, runtime.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch name {
	case "ibv_get_device_list":
		*(*int32)(unsafe.Pointer(ibv.Ptr[int32](a[0]).Deref())) = 1
		list := fakeObject[[2]ibv.Ptr[ibv.Device]](f)
		list[0] = ibv.PtrTo(f.device)
		return address(list), 0
	case "ibv_get_device_name":
		name := fakeObject[[8]byte](f)
		copy(name[:], "fake")
		return address(name), 0
	case "ibv_open_device":
		return address(&f.context.Context), 0
	case "ibv_get_async_event":
		return ^uintptr(0), eagain
	case "ibv_free_device_list", "ibv_get_device_index", "ibv_get_device_guid", "ibv_query_device", "ibv_query_port":
		return 0, 0
	}
	f.calls = append(f.calls, name)
	if errno := f.fails[name]; errno != 0 {
		if strings.Contains(name, "create") || strings.Contains(name, "alloc") || strings.Contains(name, "reg_") {
			return 0, errno
		}
		return uintptr(errno), errno
	}
	if do := f.do[name]; do != nil {
		result := do(a)
		if result == 0 && strings.Contains(name, "create") {
			return 0, einval
		}
		return result, 0
	}
	for _, part := range []string{"create", "_alloc_", "alloc_dm", "reg_", "import"} {
		if strings.Contains(name, part) && !strings.Contains(name, "dereg") && !strings.Contains(name, "unimport") {
			o := fakeObject[struct {
				context, second uintptr
				_               [60]uint64
			}](f)
			o.context = address(&f.context.Context)
			if name == "create_flow" {
				o.context, o.second = 0, o.context
			}
			return address(o), 0
		}
	}
	return 0, 0
}

// took gives the calls since it was asked last.
func (f *fake) took() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

// fakePD opens the device for one test at a time.
func fakePD(t testing.TB) (*fake, *Device, *PD) {
	f := theFake()
	f.t, f.fails, f.do = t, map[string]runtime.Errno{}, map[string]func([]uintptr) uintptr{}
	d, err := OpenOn(f, "fake")
	d = keep(t, d, err)
	pd, err := d.AllocPD()
	pd = keep(t, pd, err)
	f.took()
	return f, d, pd
}

// fakeQP makes a queue pair of the fake, in whose completion queue there is room for others.
func fakeQP(t testing.TB, pd *PD) (*CQ, *QP) {
	f := theFake()
	f.do["ibv_create_cq"] = func(a []uintptr) uintptr {
		cq := fakeObject[ibv.CQ](f)
		cq.Context, cq.CQE = ibv.PtrTo(&f.context.Context), int32(a[1])
		return address(cq)
	}
	f.do["ibv_create_qp"] = func(a []uintptr) uintptr {
		qp := fakeObject[ibv.QP](f)
		qp.Context, qp.QPNum, qp.QPType = ibv.PtrTo(&f.context.Context), 0x12, ibv.Ptr[ibv.QPInitAttr](a[1]).Deref().QPType
		return address(qp)
	}
	cq, err := pd.Device().CreateCQ(64, nil, 0)
	cq = keep(t, cq, err)
	qp, err := pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RAW_PACKET, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}, QueueOptions{})
	qp = keep(t, qp, err)
	f.took()
	return cq, qp
}
