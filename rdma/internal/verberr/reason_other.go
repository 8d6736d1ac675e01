// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package verberr

import "github.com/goverbs/goverbs/runtime"

// errnoReason returns "": the reasons are those of Linux's verbs.
func errnoReason(string, runtime.Errno) string { return "" }

// Reasons returns nil, for the same reason.
func Reasons() []Reason { return nil }
