//go:build !linux

package rdma

import "github.com/goverbs/goverbs/runtime"

// PinThread is for Linux.
func PinThread(cpu int) (unpin func(), err error) {
	return nil, &runtime.NotSupportedError{Function: "sched_setaffinity", Missing: "only Linux pins threads to processors"}
}
