// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package direct

// passed does nothing without the race detector.
type passed struct{}

func (*passed) give() {}
func (*passed) take() {}

// bring copies a message to a receive's memory.
func bring(to, message []byte) { copy(to, message) }
