// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package watch

import "github.com/goverbs/goverbs/runtime"

// Memory returns an error: only Linux reports changes to memory mappings.
func Memory(address, length uintptr, notify func()) (*Watch, error) {
	return nil, &runtime.NotSupportedError{Missing: "this system does not report when memory is unmapped"}
}

// Same is never called.
func (w *Watch) Same() bool { return false }

// Gone is never called.
func (w *Watch) Gone() bool { return true }

// Close does nothing.
func (w *Watch) Close() {}
