// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package direct

import "sync/atomic"

// passed informs the race detector of an order that it cannot see: a poll reads memory that a post wrote. The device
// orders the two: it writes the completion after it has read the request.
type passed struct{ posts atomic.Uint32 }

func (p *passed) give() { p.posts.Add(1) }
func (p *passed) take() { p.posts.Load() }

// bring copies a message into the memory of a receive, invisibly to the race detector, like the device's own writes:
// several receives may have the same memory.
//
//go:norace
func bring(to, message []byte) {
	for i := range min(len(to), len(message)) {
		to[i] = message[i]
	}
}
