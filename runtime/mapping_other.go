// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix && !windows

package runtime

var errNoMapping = &NotSupportedError{Missing: "this system cannot map memory outside Go's heap"}

func mapGuarded(int, int) ([]byte, error) { return nil, errNoMapping }
func unmap([]byte) error                  { return nil }
func reserve(uintptr) (uintptr, error)    { return 0, errNoMapping }
func commit(address, size uintptr) error  { return errNoMapping }
