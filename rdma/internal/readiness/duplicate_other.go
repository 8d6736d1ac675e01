// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix || aix

package readiness

import "errors"

// duplicate is for systems whose descriptors Go's netpoller does not take.
func duplicate(int) (int, error) { return -1, errors.ErrUnsupported }
