package runtime

// Call3 calls the C function at fn, which takes up to three arguments of a register's size and returns an int or nothing:
// post_send, post_recv, poll_cq, req_notify_cq. It allocates nothing. Addresses among the arguments must stay valid by the caller's
// doing, and must not be on a goroutine's stack. Exclusive needs a [Stack]; asked of a Way it is System.
//
// A function of a software backend (see [Space]) is called as a Go function, whichever way is asked for.
func (w Way) Call3(fn, a, b, c uintptr) int32 {
	if inSpace(fn) {
		return int32(callSpace3(fn, a, b, c))
	}
	if w == Blocking {
		return blockingCall3(fn, a, b, c)
	}
	return systemCall3(fn, a, b, c)
}

// frame is a call with all that C can want and give. The assembly knows its layout.
type frame struct {
	fn            uintptr
	args          [8]uintptr
	result        uintptr
	errnoLocation uintptr // address of __errno_location, or 0
	errno         uintptr
}

// MaxArgs is how many arguments a function may take.
const MaxArgs = len(frame{}.args)
