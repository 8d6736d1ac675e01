// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

// Package thread binds goroutines to threads, and threads to processors.
package thread

import "github.com/goverbs/goverbs/runtime"

// Pin is rdma.PinThread.
func Pin(cpu int) (unpin func(), err error) {
	return nil, &runtime.NotSupportedError{Function: "sched_setaffinity",
		Missing: "only Linux pins threads to processors"}
}
