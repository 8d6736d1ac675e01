// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package verberr

import "github.com/goverbs/goverbs/runtime"

// errnoReason returns "", because the known reasons are Linux's.
func errnoReason(string, runtime.Errno) string { return "" }

// Reasons returns nil, because the known reasons are Linux's.
func Reasons() []Reason { return nil }
