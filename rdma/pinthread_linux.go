package rdma

import (
	goruntime "runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// PinThread locks the calling goroutine to its thread, and the thread to one processor, until the same goroutine calls
// unpin. Use it to poll with [CQ.WaitBusy]: give each polling goroutine one processor of the device's NUMA node that
// handles no interrupts and no other pinned thread. Go needs further processors: set GOMAXPROCS greater than the number
// of pinned goroutines, or other goroutines and the garbage collector wait for the scheduler's next preemption. If the
// processor does not exist or this process may not use it, the error is EINVAL.
//
// Man: sched_setaffinity(2)
func PinThread(cpu int) (unpin func(), err error) {
	const verb = "sched_setaffinity"
	var before, one unix.CPUSet
	one.Set(cpu)
	if cpu < 0 || one.Count() != 1 {
		return nil, invalid(verb, "", "there is no processor %d", cpu)
	}
	goruntime.LockOSThread()
	if err = unix.SchedGetaffinity(0, &before); err == nil {
		err = unix.SchedSetaffinity(0, &one)
	}
	if err != nil {
		goruntime.UnlockOSThread()
		return nil, &VerbError{Verb: verb, Errno: errnoFrom(err), Reason: "the processor does not exist, or this process may not use it"}
	}
	return func() {
		if unix.SchedSetaffinity(0, &before) == nil { // else the thread ends with the goroutine, as it is no use to others
			goruntime.UnlockOSThread()
		}
	}, nil
}

func errnoFrom(err error) (errno syscall.Errno) {
	errno, _ = err.(syscall.Errno)
	return errno
}
