// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package perf

import "os"

func foreign(os.FileInfo) bool { return false }
