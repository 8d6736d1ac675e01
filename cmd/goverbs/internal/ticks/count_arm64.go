// SPDX-License-Identifier: BSD-2-Clause

package ticks

// source is Linux's name of the counter.
const source = "arch_sys_counter"

// count reads the virtual counter.
//
//go:noescape
func count() int64
