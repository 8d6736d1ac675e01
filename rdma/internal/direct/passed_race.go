// SPDX-License-Identifier: BSD-2-Clause

//go:build race

package direct

import "sync/atomic"

// passed tells the race detector that a post happens before the poll that reads its memory. The device orders the two:
// it writes the completion after it has read the request.
type passed struct{ posts atomic.Uint32 }

func (p *passed) give() { p.posts.Add(1) }
func (p *passed) take() { p.posts.Load() }

// bring copies a message to a receive's memory without informing the race detector, like a write by the device. Several
// receives may have the same memory.
//
//go:norace
func bring(to, message []byte) {
	for i := range min(len(to), len(message)) {
		to[i] = message[i]
	}
}
