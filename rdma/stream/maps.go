// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// mapping is mapped memory, or a free entry if mr is nil.
type mapping struct {
	mr     *rdma.MR
	offset int64
}

// Map lets the peer of an [RSocket] write into a buffer with WriteAt or riowrite: the peer's offset+i is byte i of the
// buffer. The number of buffers is limited by the peer's Maps or RDMA_IOMAPSIZE. Until Close, the peer may write at any
// time and without notice. Close the buffer after the connection. Map waits while the peer has no room for messages.
// See riomap in rsocket(7).
func (c *Conn) Map(b *rdma.Buffer, offset int64) error {
	return c.mapMemory(offset, func(pd *rdma.PD) (*rdma.MR, error) { return pd.RegBuffer(b, mapAccess) })
}

// MapAddress is Map for memory at an address, such as memory of another library; see [rdma.PD.RegAddress].
func (c *Conn) MapAddress(address uintptr, length uint64, offset int64) error {
	return c.mapMemory(offset, func(pd *rdma.PD) (*rdma.MR, error) {
		return pd.RegAddress(address, length, uint64(address), mapAccess)
	})
}

const mapAccess = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE

// Unmap removes the mapping at an offset and frees its entry for another Map. The peer is not notified: if it writes
// there again, the connection fails.
func (c *Conn) Unmap(offset int64) error {
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
	for i, m := range c.writer.mapped {
		if m.mr != nil && m.offset == offset {
			c.writer.mapped[i].mr = nil
			if err := m.mr.Close(); err != nil {
				return c.opError("unmap", err)
			}
			return nil
		}
	}
	return c.opError("unmap", fmt.Errorf("%w: no mapping at offset %d", syscall.EINVAL, offset))
}

// mapMemory implements Map. register registers the memory.
func (c *Conn) mapMemory(offset int64, register func(*rdma.PD) (*rdma.MR, error)) error {
	r, ok := c.protocol.(*protocol.RSocket)
	if !ok || offset < 0 {
		return c.opError("map", fmt.Errorf("%w: Map needs an RSocket and an offset of at least 0", syscall.EINVAL))
	}
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
	if isDone(c.closed) {
		return c.opError("map", net.ErrClosed)
	}
	pd, err := c.id.PD()
	if err != nil {
		return c.opError("map", err)
	}
	mr, err := register(pd)
	if err != nil {
		return c.opError("map", err)
	}
	place := slices.IndexFunc(c.writer.mapped, func(m mapping) bool { return m.mr == nil })
	if place < 0 {
		place = len(c.writer.mapped)
	}
	for {
		sent, err := c.tryMap(r, place, uint64(offset), mr)
		switch {
		case err != nil:
			_ = mr.Close()
			return c.opError("map", err)
		case sent:
			all := c.writer.mapped
			c.writer.mapped = slices.Replace(all, place, min(place+1, len(all)), mapping{mr, offset})
			return nil
		}
		c.awaitRoom(func() bool { may, err := r.MayMap(place); return may || err != nil })
	}
}

// tryMap announces the mapping to the peer if there is room.
func (c *Conn) tryMap(r *protocol.RSocket, place int, offset uint64, mr *rdma.MR) (bool, error) {
	if isDone(c.writer.deadline.passed()) {
		return false, os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	may, err := r.MayMap(place)
	if gone := c.writeErr(); gone != nil {
		err = gone
	}
	if err != nil || !may {
		return false, err
	}
	if err := r.Map(place, offset, mr); err != nil {
		c.fail(err)
		return false, err
	}
	return true, nil
}

// WriteAt writes into memory that the peer of an [RSocket] has mapped, at an offset: see Map, and riowrite in
// rsocket(7). The peer is not notified, but data of later Writes arrives after it. Like Write, it copies p and waits
// for room.
func (c *Conn) WriteAt(p []byte, offset int64) (n int, err error) {
	r, ok := c.protocol.(*protocol.RSocket)
	if !ok || offset < 0 {
		return 0, c.opError("write", fmt.Errorf("%w: WriteAt needs an RSocket and an offset of at least 0",
			syscall.EINVAL))
	}
	c.writer.mu.Lock()
	defer c.writer.mu.Unlock()
	for n < len(p) {
		m, err := c.tryWriteAt(r, p[n:], uint64(offset)+uint64(n))
		if n += m; err != nil {
			return n, c.opError("write", err)
		}
		if m == 0 {
			c.awaitRoom(func() bool {
				room, err := r.RoomAt(uint64(offset)+uint64(n), len(p)-n)
				return room > 0 || err != nil
			})
		}
	}
	return n, nil
}

// tryWriteAt writes one piece of p, if there is room for it.
func (c *Conn) tryWriteAt(r *protocol.RSocket, p []byte, offset uint64) (int, error) {
	switch {
	case isDone(c.closed):
		return 0, net.ErrClosed
	case isDone(c.writer.deadline.passed()):
		return 0, os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	room, err := r.RoomAt(offset, len(p))
	if gone := c.writeErr(); gone != nil {
		err = gone
	}
	c.mu.Unlock()
	if err != nil || room == 0 {
		return 0, err
	}
	piece := protocol.Piece{Inline: p[:room]}
	if room > c.link.Inline {
		c.link.Stage(0, p[:room])
		piece = protocol.Piece{Staged: room}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeErr(); err != nil {
		return 0, err
	}
	switch sent, err := r.PostAt(offset, piece); {
	case err != nil:
		c.fail(err)
		return 0, err
	case !sent:
		return 0, nil
	}
	return room, nil
}
