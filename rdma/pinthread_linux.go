package rdma

import (
	goruntime "runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// PinThread locks the calling goroutine to its thread, and that to one processor, until unpin is called by the same goroutine. It is for who
// polls with [CQ.WaitBusy]: one processor of the device's NUMA node for each goroutine that does, which no interrupt and no other pinned thread
// has. Go needs processors beside those: GOMAXPROCS greater than the number of pinned goroutines, or what else is to run waits for the next
// look around, and with it the garbage collector. A processor that is not there, or not for this process, is EINVAL.
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
		return nil, &VerbError{Verb: verb, Errno: errnoFrom(err), Reason: "the processor is not there, or not for this process"}
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
