// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package registration

import "github.com/goverbs/goverbs/runtime"

func populate(start, end uintptr) error {
	return &runtime.NotSupportedError{Missing: "this system does not map pages in advance"}
}
