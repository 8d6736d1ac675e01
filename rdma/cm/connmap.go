// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"fmt"
	"net"
	"os"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Map lets the other end of an [RSocket] write into a buffer by its WriteAt, or riowrite: byte i of the buffer is at
// offset+i there. The other end takes as many buffers as its Maps, or RDMA_IOMAPSIZE, says. It may write at any time
// from now until Close, and nothing tells when it has. The caller closes the buffer after the connection. Map waits
// while the other end takes no messages. See riomap in rsocket(7).
func (c *Conn) Map(b *rdma.Buffer, offset int64) error {
	r, ok := c.protocol.(*protocol.RSocket)
	if !ok || offset < 0 {
		return c.opError("map", fmt.Errorf("%w: only an RSocket maps, at an offset from 0 on", verberr.EINVAL))
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if isDone(c.closed) {
		return c.opError("map", net.ErrClosed)
	}
	pd, err := c.id.PD()
	if err != nil {
		return c.opError("map", err)
	}
	mr, err := pd.RegBuffer(b, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	if err != nil {
		return c.opError("map", err)
	}
	for {
		told, err := c.tryMap(r, uint64(offset), mr)
		switch {
		case err != nil:
			_ = mr.Close()
			return c.opError("map", err)
		case told:
			c.mapped = append(c.mapped, mr)
			return nil
		}
		c.awaitRoom(func() bool { may, err := r.MayMap(len(c.mapped)); return may || err != nil })
	}
}

// tryMap tells the other end, if there is room.
func (c *Conn) tryMap(r *protocol.RSocket, offset uint64, mr *rdma.MR) (bool, error) {
	if isDone(c.writeDeadline.passed()) {
		return false, os.ErrDeadlineExceeded
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	may, err := r.MayMap(len(c.mapped))
	if gone := c.writeErr(); gone != nil {
		err = gone
	}
	if err != nil || !may {
		return false, err
	}
	if err := r.Map(len(c.mapped), offset, mr); err != nil {
		c.fail(err)
		return false, err
	}
	return true, nil
}

// WriteAt writes into what the other end of an [RSocket] has mapped, at an offset: see Map, and riowrite in rsocket(7).
// The other end is not told. What Write sends afterwards arrives after it. Like Write it copies, and waits for room.
func (c *Conn) WriteAt(p []byte, offset int64) (n int, err error) {
	r, ok := c.protocol.(*protocol.RSocket)
	if !ok || offset < 0 {
		return 0, c.opError("write", fmt.Errorf("%w: only an RSocket writes at offsets, from 0 on", verberr.EINVAL))
	}
	c.writing.Lock()
	defer c.writing.Unlock()
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
	case isDone(c.writeDeadline.passed()):
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
	piece := p[:room]
	inline := room <= c.link.Inline
	if !inline {
		c.link.Stage(piece)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeErr(); err != nil {
		return 0, err
	}
	switch sent, err := r.PostAt(offset, piece, inline); {
	case err != nil:
		c.fail(err)
		return 0, err
	case !sent:
		return 0, nil
	}
	return room, nil
}
