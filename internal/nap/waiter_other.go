// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package nap

import (
	"errors"

	"github.com/goverbs/goverbs/runtime"
)

// Waiter is a stub. The drop-in libraries exist on Linux only; on other systems all calls wait in Go.
type Waiter struct{ Interrupted runtime.Errno }

// Prepare fails.
func (w *Waiter) Prepare(func()) error { return errors.ErrUnsupported }

func (w *Waiter) file() int32 { return -1 }

// Wake does nothing.
func (w *Waiter) Wake() {}

// Slept does nothing.
func (w *Waiter) Slept(runtime.Errno) {}

// Release does nothing.
func (w *Waiter) Release() {}

// Cancel does nothing.
func (w *Waiter) Cancel() {}
