// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package readiness

// kept is implemented on Linux only.
type kept struct{}

func (r *FD) thread() (*kept, error) { return nil, nil }
func (*kept) sleep() (bool, error)   { return false, nil }
func (*kept) poke()                  {}
func (*kept) close()                 {}
