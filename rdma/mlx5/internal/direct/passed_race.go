// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package direct

import "sync/atomic"

// passed tells the race detector what it cannot see: a post writes down what a poll needs, and the poll reads it when
// the device has written a completion, which it does after it has read the request.
type passed struct{ posts atomic.Uint32 }

func (p *passed) give() { p.posts.Add(1) }
func (p *passed) take() { p.posts.Load() }

// bring copies a message into memory of a receive, as the device does with longer ones, which the race detector does
// not see either: several receives may have the same memory.
//
//go:norace
func bring(to, message []byte) {
	for i := range min(len(to), len(message)) {
		to[i] = message[i]
	}
}
