// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/runtime"
)

// software is a backend of Go functions by "library.function", whose objects are in its space.
type software struct {
	t     *testing.T
	space *runtime.Space
	funcs map[string]runtime.Func
	calls []string // called functions
}

var spare = sync.OnceValues(func() (*software, error) { // a process can have 64: all tests share one
	s := &software{}
	var err error
	s.space, err = runtime.NewSpace(s)
	return s, err
})

func newSoftware(t *testing.T) *software {
	t.Helper()
	s, err := spare()
	require.NoError(t, err)
	s.t, s.funcs, s.calls = t, map[string]runtime.Func{}, nil
	return s
}

func (s *software) Function(library, name string) runtime.Func {
	s.calls = append(s.calls, library+"."+name)
	return s.funcs[library+"."+name]
}

// object returns a zeroed T of the backend.
func object[T any](s *software) *T {
	var v T
	p, err := s.space.Alloc(int(unsafe.Sizeof(v)))
	require.NoError(s.t, err)
	return (*T)(p)
}

func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

func (s *software) slot(f runtime.SlotFunc) ibv.FuncPtr {
	a, err := s.space.Slot(f)
	require.NoError(s.t, err)
	return ibv.FuncPtr(a)
}

// context returns a context, embedded in the structure for extended operations.
func (s *software) context() (*ibv.VerbsContext, *ibv.Context) {
	outer := object[ibv.VerbsContext](s)
	outer.Sz = uint64(unsafe.Sizeof(*outer))
	outer.Context.ABICompat = ibv.VERBS_ABI_IS_EXTENDED
	return outer, &outer.Context
}

// TestFrom checks that a named backend serves functions without an object, and otherwise the library.
func TestFrom(t *testing.T) {
	s := newSoftware(t)
	list := object[ibv.Ptr[ibv.Device]](s)
	s.funcs["libibverbs.ibv_get_device_list"] = func(args []uint64) (uint64, runtime.Errno) {
		*(*int32)(*(*unsafe.Pointer)(unsafe.Pointer(&args[0]))) = 3
		return uint64(address(list)), 0
	}
	var n int32
	got, err := libibverbs.From{Backend: s}.GetDeviceList(&n)
	require.NoError(t, err)
	assert.Same(t, list, got)
	assert.EqualValues(t, 3, n)
	assert.Equal(t, []string{"libibverbs.ibv_get_device_list"}, s.calls)

	_, err = libibverbs.From{Backend: s}.ImportDevice(3)
	assert.ErrorIs(t, err, runtime.ErrNotSupported)
	assert.EqualError(t, err, "ibv_import_device: the software device does not have it")

	require.Len(t, s.calls, 2)
	_ = orMissing(libibverbs.ForkInit()) // from the library, or ErrNotSupported
	assert.Len(t, s.calls, 2)
}

// TestObjectDecides checks that a call on an object goes to the object's backend.
func TestObjectDecides(t *testing.T) {
	s := newSoftware(t)
	pd, qp := object[ibv.PD](s), object[ibv.QP](s)
	s.funcs["libibverbs.ibv_create_qp"] = func(args []uint64) (uint64, runtime.Errno) {
		assert.EqualValues(t, address(pd), args[0])
		return uint64(address(qp)), 0
	}
	got, err := libibverbs.CreateQP(pd, &ibv.QPInitAttr{})
	require.NoError(t, err)
	assert.Same(t, qp, got)
	s.funcs["libibverbs.ibv_create_qp"] = func([]uint64) (uint64, runtime.Errno) {
		return 0,
			runtime.Errno(syscall.ENOMEM)
	}
	got, err = libibverbs.CreateQP(pd, &ibv.QPInitAttr{})
	assert.Nil(t, got)
	assert.EqualError(t, err, "ibv_create_qp: cannot allocate memory")
}

// TestAckAsyncEvent checks that an event, which is in the program's memory, is acknowledged by the backend of its
// object, if any.
func TestAckAsyncEvent(t *testing.T) {
	s := newSoftware(t)
	acked := 0
	s.funcs["libibverbs.ibv_ack_async_event"] = func([]uint64) (uint64, runtime.Errno) { acked++; return 0, 0 }
	event := ibv.AsyncEvent{EventType: ibv.EVENT_CQ_ERR}
	*event.Element.CQ() = ibv.PtrTo(object[ibv.CQ](s))
	require.NoError(t, libibverbs.AckAsyncEvent(&event))
	assert.Equal(t, 1, acked)
	event.EventType = ibv.EVENT_PORT_ACTIVE // the union holds a number
	assert.NoError(t, libibverbs.AckAsyncEvent(&event), "with or without a library")
	assert.Equal(t, 1, acked)
	assert.ErrorIs(t, libibverbs.AckAsyncEvent(nil), syscall.EINVAL)
}

// TestExtendedGuard checks that an operation is read only if the library's structure is long enough.
func TestExtendedGuard(t *testing.T) {
	s := newSoftware(t)
	outer, context := s.context()
	td := object[ibv.TD](s)
	outer.AllocTD = s.slot(func(a, b, _, _, _, _ uint64) (uint64, runtime.Errno) {
		assert.EqualValues(t, address(context), a)
		return uint64(address(td)), 0
	})
	attr := &ibv.TDInitAttr{}
	absent := func(reason string) {
		t.Helper()
		got, err := libibverbs.AllocTD(context, attr)
		assert.Nil(t, got)
		assert.ErrorIs(t, err, runtime.ErrNotSupported, reason)
		assert.EqualError(t, err, "ibv_alloc_td: the device's provider does not have it")
	}
	got, err := libibverbs.AllocTD(context, attr)
	require.NoError(t, err)
	assert.Same(t, td, got)

	least := uint64(unsafe.Sizeof(*outer) - unsafe.Offsetof(outer.AllocTD))
	outer.Sz = least
	_, err = libibverbs.AllocTD(context, attr)
	assert.NoError(t, err, "the structure ends with the operation")
	outer.Sz = least - 8
	absent("the structure is a pointer too short")
	outer.Sz = least
	context.ABICompat = 0
	absent("the context is embedded in nothing")
	context.ABICompat = ibv.VERBS_ABI_IS_EXTENDED
	outer.AllocTD = 0
	absent("the slot is empty")
	assert.Same(t, outer, libibverbs.VerbsGetCtx(context))
	context.ABICompat = 1
	assert.Nil(t, libibverbs.VerbsGetCtx(context))
}

// TestNilObjects checks that errors for nil pointers that Go would dereference, including members, have the argument's
// name.
func TestNilObjects(t *testing.T) {
	var bad ibv.Ptr[ibv.SendWR]
	assert.EqualError(t, libibverbs.PostSend(nil, nil, &bad), "ibv_post_send: qp is nil")
	assert.EqualError(t, libibverbs.PostSend(&ibv.QP{}, nil, &bad), "ibv_post_send: qp.context is nil")
	_, err := libibverbs.CreateFlow(&ibv.QP{}, nil)
	assert.EqualError(t, err, "ibv_create_flow: qp.context is nil")
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.EqualError(t, libibverbs.WRStart(nil), "ibv_wr_start: qp is nil")
	assert.EqualError(t, libibverbs.WRStart(&ibv.QPEx{}), "ibv_wr_start: the device's provider does not have it")
}
