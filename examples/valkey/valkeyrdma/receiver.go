// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
)

// receiver is the progress of receiving. Numbers of bytes count from the beginning. The memory for the peer is a ring,
// which is lent piece by piece: the peer fills each from its beginning to its end before it writes to the next.
type receiver struct {
	lent    uint64 // pieces
	arrived uint64 // bytes
	read    uint64 // bytes
}

func (r *receiver) unread() uint64 { return r.arrived - r.read }

// mayLend reports whether the peer has filled the last piece, and the next one is read. The ring has size bytes.
func (r *receiver) mayLend(size uint64) bool {
	piece := size / pieces
	return r.arrived == r.lent*piece && (r.lent+1)*piece <= r.read+size
}

// next returns the next piece to lend.
func (c *Conn) next() place {
	piece := uint64(c.ring.Len() / pieces)
	return place{c.ringMR.Address() + c.lent%pieces*piece, uint32(piece), c.ringMR.RKey()}
}

// copyOut copies as many of n unread bytes as there is room for.
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
		if n != wc.ByteLen { // bytes that it has not written are older
			return fmt.Errorf("%w: it says %d bytes, and has written %d", ErrProtocol, n, wc.ByteLen)
		}
		if uint64(n) > lent-c.arrived {
			return fmt.Errorf("%w: %d bytes, and there is room for %d", ErrProtocol, n, lent-c.arrived)
		}
		c.arrived += uint64(n)
	case ibv.WC_RECV:
		what, err := parse(c.command(slot, wc.ByteLen))
		if err != nil {
			return err
		}
		if err := c.handleCommand(what); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%w: an unexpected completion, %v", ErrProtocol, wc.Opcode)
	}
	c.addRecv(slot)
	return nil
}
