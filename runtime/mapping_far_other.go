// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux || !(amd64 || arm64)

package runtime

import "errors"

// reserveFar is not implemented on this system.
func reserveFar(uintptr) (uintptr, error) { return 0, errors.ErrUnsupported }
