// SPDX-License-Identifier: BSD-2-Clause

//go:build !race

package direct

// passed is for the race detector, where there is one.
type passed struct{}

func (*passed) give() {}
func (*passed) take() {}

// bring copies a message into memory of a receive.
func bring(to, message []byte) { copy(to, message) }
