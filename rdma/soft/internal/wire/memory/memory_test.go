// SPDX-License-Identifier: BSD-2-Clause

package memory

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/rdma/soft/internal/message"
)

type port struct{ requests int }

func (p *port) Request(*message.Request) *message.Answer {
	p.requests++
	return nil
}
func (p *port) Answer(*message.Answer) {}
func (p *port) MAD(*message.MAD)       {}

// TestDetach: a removed port gets no messages, even if it was just looked up.
func TestDetach(t *testing.T) {
	w := New()
	var a, b port
	w.Attach(1, &a)
	w.Attach(2, &b)
	to := message.Request{To: message.Address{Link: 1}}
	w.Send(&to)
	w.Detach(1)
	w.Send(&to)
	assert.Equal(t, 1, a.requests)
	assert.Len(t, w.order, 1)
	w.Send(&message.Request{To: message.Address{Link: 2}})
	assert.Equal(t, 1, b.requests)
}
