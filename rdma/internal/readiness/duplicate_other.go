// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix || aix

package readiness

import "errors"

// setNonblock and duplicate are for systems whose descriptors Go's netpoller does not support.
func setNonblock(int) error { return errors.ErrUnsupported }

func duplicate(int) (int, error) { return -1, errors.ErrUnsupported }
