// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix && !windows

package offheap

import "github.com/goverbs/goverbs/runtime"

func mapMemory(int, Options) ([]byte, error) {
	return nil, &runtime.NotSupportedError{Missing: "this system cannot map memory outside Go's heap"}
}

func unmapMemory([]byte) error { return nil }

func discard([]byte) error { return nil }
