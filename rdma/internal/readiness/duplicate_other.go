// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix || aix

package readiness

import "errors"

// Go's netpoller does not support these systems' descriptors.
func setNonblock(int) error { return errors.ErrUnsupported }

func duplicate(int) (int, error) { return -1, errors.ErrUnsupported }
