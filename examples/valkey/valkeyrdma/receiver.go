// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
)

// receiver counts the progress of receiving since the start of the connection. The memory for the peer is a ring, which
// is granted in pieces: the peer fills one piece before it writes to the next.
type receiver struct {
	lent    uint64 // pieces
	arrived uint64 // bytes
	read    uint64 // bytes
}

func (r *receiver) unread() uint64 { return r.arrived - r.read }

// mayLend reports whether the next piece can be granted: the peer has filled the last piece, and the next one has been
// read. The ring has size bytes.
func (r *receiver) mayLend(size uint64) bool {
	piece := size / pieces
	return r.arrived == r.lent*piece && (r.lent+1)*piece <= r.read+size
}

// next returns the next piece to grant.
func (c *Conn) next() place {
	piece := uint64(c.ring.Len() / pieces)
	return place{c.ringMR.Address() + c.lent%pieces*piece, uint32(piece), c.ringMR.RKey()}
}

// copyOut copies as many of n unread bytes as fit into p.
func (c *Conn) copyOut(p []byte, n uint64) int {
	ring := c.ring.Bytes()
	p = p[:min(uint64(len(p)), n)]
	first := copy(p, ring[c.read%uint64(len(ring)):])
	return first + copy(p[first:], ring)
}

// received handles the completion of a receive. The caller holds mu.
func (c *Conn) received(wc *ibv.WC) error {
	slot := wc.WRID &^ recvBit
	switch wc.Opcode {
	case ibv.WC_RECV_RDMA_WITH_IMM:
		n, lent := wc.ImmData().Host(), c.lent*uint64(c.ring.Len()/pieces)
		if n != wc.ByteLen { // the rest of the announced bytes would be old data
			return fmt.Errorf("%w: announced %d bytes, wrote %d", ErrProtocol, n, wc.ByteLen)
		}
		if uint64(n) > lent-c.arrived {
			return fmt.Errorf("%w: wrote %d bytes, has room for %d", ErrProtocol, n, lent-c.arrived)
		}
		c.arrived += uint64(n)
	case ibv.WC_RECV:
		cmd, err := parse(c.command(slot, wc.ByteLen))
		if err != nil {
			return err
		}
		if err := c.handleCommand(cmd); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: unexpected completion %v", ErrProtocol, wc.Opcode)
	}
	c.addRecv(slot)
	return nil
}
