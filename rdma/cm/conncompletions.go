// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
)

// handle handles completions, posts their receives again, and wakes waiting goroutines.
func (c *Conn) handle(wcs []ibv.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released {
		return
	}
	bad := false
	for i := range wcs {
		wc := &wcs[i]
		recv := protocol.IsRecv(wc.WRID)
		sent := !recv && !protocol.IsFetch(wc.WRID)
		if recv {
			c.link.RecvsOut--
		}
		switch {
		case wc.Status != ibv.WC_SUCCESS:
			if sent {
				c.link.SendDone(wc.WRID, true) // the device reads its memory no more
			}
			c.completionFailed(wc)
			continue
		case sent:
			c.link.SendDone(wc.WRID, false)
			continue
		case bad: // what a peer says after that counts no more
			continue
		}
		flags, err := c.protocol.Received(wc, c.peerFin)
		if err != nil {
			c.fail(err)
			bad = true
			continue
		}
		c.peerFin |= flags
		if recv {
			c.protocol.AddRecv(wc)
		}
	}
	if c.link.Recvs.Len() > 0 && c.err == nil && !c.gone {
		if err := c.link.PostRecvs(); err != nil {
			c.fail(err)
		}
	}
	c.link.Recvs.Reset()
	if c.link.RecvsOut == 0 {
		signal(c.returned)
	}
	if c.peerFin&protocol.Done != 0 {
		c.finWanted |= protocol.Fin // nobody would read our data, so the peer need not wait
	}
	c.sendControl()
	c.tellLenders()
	signal(c.readable)
	signal(c.writable)
	signal(c.moved)
	c.changed()
}

// sendControl tells the peer what it has to know, if there is room for it. The caller holds mu.
func (c *Conn) sendControl() {
	if c.err != nil || c.gone || !c.started || c.released {
		return
	}
	told, err := c.protocol.Tell(c.finWanted &^ c.finSent)
	if err != nil {
		c.fail(err)
		return
	}
	if told != 0 {
		c.finSeq = c.link.Messages
	}
	if told&protocol.Fin != 0 {
		c.endSeq = c.link.Messages
	}
	c.finSent |= told
}

// sendProbe makes the peer's device answer. The caller holds mu.
func (c *Conn) sendProbe() {
	if err := c.protocol.Probe(); err != nil {
		c.fail(err)
	}
}
