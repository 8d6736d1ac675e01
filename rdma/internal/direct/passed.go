// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package direct

// passed is empty without the race detector.
type passed struct{}

func (*passed) give() {}
func (*passed) take() {}

// bring copies a message into the memory of a receive.
func bring(to, message []byte) { copy(to, message) }
