package device

import (
	"runtime/debug"
	"unsafe"

	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
)

type segment = mem.Segment

func pointer(address uint64) unsafe.Pointer { return mem.Pointer(address) }
func at[T any](address uint64) *T           { return mem.At[T](address) }
func list[T any](address uint64, n int) []T { return mem.List[T](address, n) }
func addressOf[T any](v *T) uint64          { return mem.AddressOf(v) }
func move(to, from, n uint64)               { mem.Move(to, from, n) }

// Memory that a program registered may be gone when a device uses it. A copy then panics. Guards recover the panic,
// each for its own side: of a request that is sent (qp.run), of one that arrives (device.guarded) and of an answer
// (qp.keep). They begin again with Fabric.careful set, so that memory is touched before it is used, and what is gone
// ends in a status. The message itself may lie in memory of the sender's, which is none of the receiver's business: its
// guard lets the panic go on to the sender's.

// bySender says whether the guard of a request's sender does for its receiver as well, which costs nothing: the request
// goes to one receiver, once, while it is sent, so that sending it again does no more than receiving it again.
func (f *Fabric) bySender() bool { return f.guarded && f.plain }

// attempts is how often a guard begins again. More than once is needed only where a program unmaps memory while it is
// used.
const attempts = 8

// guard notes that the caller recovers, and lets memory that is gone panic. The caller undoes both by calling unguard
// with what guard returns.
func (f *Fabric) guard() (before guards) {
	before = guards{guarded: f.guarded, sending: f.sending}
	if !f.guarded {
		before.panics = debug.SetPanicOnFault(true)
		f.guarded = true
	}
	return before
}

// guards is what a guard found.
type guards struct {
	guarded bool
	panics  bool
	sending *qp
}

func (f *Fabric) unguard(before guards) {
	if !before.guarded {
		f.guarded = false
		debug.SetPanicOnFault(before.panics)
	}
}

// calm says that a request was carried out, or ended in a status.
func (f *Fabric) calm() {
	if f.careful {
		f.careful, f.tries = false, 0
	}
}

// fault makes a value of a panic of an access to memory that is gone. Other panics go on.
func (f *Fabric) fault(panicked any, before guards) any {
	f.sending = before.sending
	if !mem.FaultOf(panicked) {
		panic(panicked)
	}
	return panicked
}
