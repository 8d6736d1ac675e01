// SPDX-License-Identifier: BSD-2-Clause

//go:build cgo && linux && (amd64 || arm64)

package main

/*
#include <stdint.h>
void goverbs_entry(void);
void goverbs_note_slots(uintptr_t context);
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/dropin/engine/rsocket"
	"github.com/goverbs/goverbs/dropin/engine/stack"
	"github.com/goverbs/goverbs/internal/nap"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/runtime"
)

// engine is the state that exists once per process.
var engine struct {
	sync.RWMutex
	functions []runtime.Func
	fabric    func() (*soft.Fabric, error)
}

// sockets are the rsockets of the process.
var sockets = rsocket.New(func() (runtime.Backend, error) { return engine.fabric() })

func init() {
	engine.fabric = sync.OnceValues(func() (*soft.Fabric, error) {
		defer reserveLow()()
		f, err := open()
		if err == nil {
			err = makeCallable(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "goverbs: no software device:", err)
		}
		return f, err
	})
}

// makeCallable lets C call the functions whose addresses are in the fabric's objects.
func makeCallable(f *soft.Fabric) error {
	var n int32
	list, errno := f.Function("libibverbs", "ibv_get_device_list")([]uint64{uint64(uintptr(unsafe.Pointer(&n)))})
	if list == 0 {
		return fmt.Errorf("the list of devices: %w", errno)
	}
	defer f.Function("libibverbs", "ibv_free_device_list")([]uint64{list})
	first := **(**uint64)(unsafe.Pointer(&list))
	context, errno := f.Function("libibverbs", "ibv_open_device")([]uint64{first})
	if context == 0 {
		return fmt.Errorf("opening a device: %w", errno)
	}
	defer f.Function("libibverbs", "ibv_close_device")([]uint64{context})
	C.goverbs_note_slots(C.uintptr_t(context))
	return runtime.Callable(uintptr(list), uintptr(C.goverbs_entry))
}

// mayWait is set in the numbers of functions that may wait and are therefore cancellation points.
const mayWait = 1 << 30

// goverbs_find returns the number of a library function for goverbs_call. A negative result is an error number: that of
// opening the device, or EOPNOTSUPP if the device does not have the function.
//
//export goverbs_find
func goverbs_find(library, name *C.char) C.int {
	stack.Reserve()
	f, err := engine.fabric()
	if err != nil {
		errno := syscall.ENODEV
		errors.As(err, &errno)
		return -C.int(errno)
	}
	function, flags := functionOf(f, C.GoString(library), C.GoString(name))
	if function == nil {
		return -C.int(syscall.EOPNOTSUPP)
	}
	engine.Lock()
	defer engine.Unlock()
	engine.functions = append(engine.functions, function)
	return C.int(len(engine.functions)-1) | flags
}

// functionOf returns a function, or nil, and the bits of its number.
func functionOf(f *soft.Fabric, library, name string) (runtime.Func, C.int) {
	if library == "goverbs" && name == "awake" {
		return nap.Awake, 0
	}
	if waits := f.Function(library+nap.Outside, name); waits != nil {
		return waits, mayWait
	}
	function := f.Function(library, name)
	switch {
	case name == "rdma_getaddrinfo":
		return withResolver(function), 0
	case function != nil || library != "librdmacm":
		return function, 0
	case rsocket.Waits(name):
		return sockets.Function(name), mayWait
	}
	return sockets.Function(name), 0
}

// goverbs_call calls a function, and returns its result and the new errno, or 0.
//
//export goverbs_call
func goverbs_call(number C.int, args *C.uint64_t, n C.int) (result C.uint64_t, errno C.int) {
	stack.Reserve()
	engine.RLock()
	f := engine.functions[number]
	engine.RUnlock()
	r, e := f(unsafe.Slice((*uint64)(args), n))
	return C.uint64_t(r), C.int(e)
}

// goverbs_slot calls the function of a slot.
//
//export goverbs_slot
func goverbs_slot(fn C.uintptr_t, args *C.uint64_t) (result C.uint64_t, errno C.int) {
	stack.Reserve()
	r, e := runtime.CallSlot(uintptr(fn), (*[6]uint64)(unsafe.Pointer(args)))
	return C.uint64_t(r), C.int(e)
}
