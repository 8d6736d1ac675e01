// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Each operation posts one request and does not wait. Its completion has the operation's id, and appears in [Conn.CQ]
// if flags request it or if the request fails. Until the operation has completed, the device owns the local memory.
// Operations on a full queue fail with ENOMEM; poll completions to free the queue.

// Read reads length bytes at an offset of the peer's region src into dst. For an empty read, both regions may be nil;
// offsets and length must then be 0.
//
// C: rpma_read
func (c *Conn) Read(dst *MR, dstOffset uint64, src *RemoteMR, srcOffset, length uint64, flags Flags, id uint64) error {
	const op = "Conn.Read"
	if !c.created() || !canTransfer(dst, dstOffset, src, srcOffset, length, flags) {
		if err := c.transferErr(op, dst, dstOffset, src, srcOffset, length, flags); err != nil {
			return err
		}
		src = &noMemory
	}
	to(c.sends.begin(id, ibv.WR_RDMA_READ, flags), src, srcOffset)
	return c.sends.post(op, dst, dstOffset, length)
}

// Write writes length bytes at an offset of src into the peer's region dst. For an empty write, both regions may be
// nil; offsets and length must then be 0.
//
// C: rpma_write
func (c *Conn) Write(dst *RemoteMR, dstOffset uint64, src *MR, srcOffset, length uint64, flags Flags, id uint64) error {
	const op = "Conn.Write"
	if !c.created() || !canTransfer(src, srcOffset, dst, dstOffset, length, flags) {
		if err := c.transferErr(op, src, srcOffset, dst, dstOffset, length, flags); err != nil {
			return err
		}
		dst = &noMemory
	}
	to(c.sends.begin(id, ibv.WR_RDMA_WRITE, flags), dst, dstOffset)
	return c.sends.post(op, src, srcOffset, length)
}

// WriteWithImm is Write that also completes a receive of the peer, with immediate data in host byte order. It does not
// change the receive's memory, if any.
//
// C: rpma_write_with_imm
func (c *Conn) WriteWithImm(dst *RemoteMR, dstOffset uint64, src *MR, srcOffset, length uint64, flags Flags,
	imm uint32, id uint64) error {
	const op = "Conn.WriteWithImm"
	if !c.created() || !canTransfer(src, srcOffset, dst, dstOffset, length, flags) {
		if err := c.transferErr(op, src, srcOffset, dst, dstOffset, length, flags); err != nil {
			return err
		}
		dst = &noMemory
	}
	w := c.sends.begin(id, ibv.WR_RDMA_WRITE_WITH_IMM, flags)
	to(w, dst, dstOffset)
	*w.ImmData() = ibv.ToBE32(imm)
	return c.sends.post(op, src, srcOffset, length)
}

// AtomicWrite writes 8 bytes at an offset of the peer's region dst, which must be a multiple of 8. A reader at the peer
// sees all of them or none. The write is executed after earlier flushes, so it can publish data that they have made
// persistent.
//
// C: rpma_atomic_write
func (c *Conn) AtomicWrite(dst *RemoteMR, dstOffset uint64, value [8]byte, flags Flags, id uint64) error {
	const op = "Conn.AtomicWrite"
	if !c.created() || !canAtomicWrite(dst, dstOffset, flags) {
		return c.atomicWriteErr(op, dst, dstOffset, flags)
	}
	s := &c.sends
	if s.atomic.program == nil {
		w := s.begin(id, ibv.WR_RDMA_WRITE, flags)
		w.SendFlags |= ibv.SEND_INLINE | s.fence
		to(w, dst, dstOffset)
		copy(s.value, value[:])
		return s.post(op, s.raw, readFlushSize, atomicWriteSize)
	}
	s.mu.Lock()
	s.atomic.request.Renew(id, sendFlags(flags)|s.fence, dst.address+dstOffset, dst.rkey)
	s.atomic.request.SetValue(value)
	return s.ended(op, s.qp.PostProgram(s.atomic.program))
}

// Flush flushes length bytes at an offset of the peer's region: all data that this connection has written there before.
// See the package's documentation. The error is ErrNotSupported if the region does not support this flush or if, for
// Persistent, the applied peer configuration does not.
//
// C: rpma_flush
func (c *Conn) Flush(dst *RemoteMR, dstOffset, length uint64, to FlushType, flags Flags, id uint64) error {
	const op = "Conn.Flush"
	if !c.created() || !c.canFlush(dst, dstOffset, length, to, flags) {
		return c.flushErr(op, dst, dstOffset, length, to, flags)
	}
	s := &c.sends
	if s.flush.program == nil {
		remote, n := s.flushingRead(dst, dstOffset)
		from := s.begin(id, ibv.WR_RDMA_READ, flags).WR.RDMA()
		from.RemoteAddr, from.RKey = remote, dst.rkey
		s.flushed(id)
		return s.post(op, s.raw, 0, n)
	}
	s.mu.Lock()
	s.flushed(id)
	s.flush.request.Renew(id, sendFlags(flags), dst.address+dstOffset, dst.rkey)
	s.flush.request.SetFlush(length, uint8(placement(to)))
	return s.ended(op, s.qp.PostProgram(s.flush.program))
}

// Send sends length bytes at an offset of src as a message, which consumes a receive of the peer. src may be nil for an
// empty message.
//
// C: rpma_send
func (c *Conn) Send(src *MR, offset, length uint64, flags Flags, id uint64) error {
	const op = "Conn.Send"
	if !c.created() || !canSend(src, offset, length, flags) {
		if err := c.sendErr(op, src, offset, length, flags); err != nil {
			return err
		}
	}
	c.sends.begin(id, ibv.WR_SEND, flags)
	return c.sends.post(op, src, offset, length)
}

// SendWithImm is Send with immediate data, in host byte order.
//
// C: rpma_send_with_imm
func (c *Conn) SendWithImm(src *MR, offset, length uint64, flags Flags, imm uint32, id uint64) error {
	const op = "Conn.SendWithImm"
	if !c.created() || !canSend(src, offset, length, flags) {
		if err := c.sendErr(op, src, offset, length, flags); err != nil {
			return err
		}
	}
	*c.sends.begin(id, ibv.WR_SEND_WITH_IMM, flags).ImmData() = ibv.ToBE32(imm)
	return c.sends.post(op, src, offset, length)
}

// Recv posts a receive of up to length bytes at an offset of dst. dst may be nil for empty messages and for writes with
// immediate data. It completes in [Conn.RecvCQ] if there is one. A connection with an [SRQ] receives only from that
// queue.
//
// C: rpma_recv
func (c *Conn) Recv(dst *MR, offset, length uint64, id uint64) error {
	const op = "Conn.Recv"
	if !c.created() {
		return notCreated(op)
	}
	return c.recvs.post(op, c.qp, dst, offset, length, id)
}

// sendFlags returns the flags of a work request.
func sendFlags(flags Flags) ibv.SendFlags {
	if flags&onSuccess != 0 {
		return ibv.SEND_SIGNALED
	}
	return 0
}

// placement returns the placement type of a native flush.
func placement(to FlushType) ibv.PlacementType {
	if to == Persistent {
		return ibv.FLUSH_PERSISTENT
	}
	return ibv.FLUSH_GLOBAL
}

// The checks of operations are small enough to be inlined. Separate functions create their errors.

func badFlags(op string, flags Flags) error {
	return invalid(op, "invalid flags %#x; use OnError or Always", uint8(flags))
}

// noMemory is the remote memory of operations without memory.
var noMemory RemoteMR

// canTransfer checks the arguments of a read or a write of memory.
func canTransfer(local *MR, localOffset uint64, remote *RemoteMR, remoteOffset, length uint64, flags Flags) bool {
	return flags-1 < Always && local != nil && remote != nil && local.has(localOffset, length) &&
		inside(remoteOffset, length, remote.length)
}

// transferErr returns the error for an invalid transfer, or nil for an empty one.
func (c *Conn) transferErr(op string, local *MR, localOffset uint64, remote *RemoteMR, remoteOffset, length uint64,
	flags Flags) error {
	switch {
	case !c.created():
		return notCreated(op)
	case flags == 0 || flags > Always:
		return badFlags(op, flags)
	case local == nil && remote == nil && localOffset == 0 && remoteOffset == 0 && length == 0:
		return nil
	case local == nil || remote == nil:
		return noRegion(op)
	case !local.has(localOffset, length):
		return local.outOfRange(op, localOffset, length)
	}
	return remote.outOfRange(op, remoteOffset, length)
}

// canSend checks the arguments of a message with data.
func canSend(src *MR, offset, length uint64, flags Flags) bool {
	return flags-1 < Always && src != nil && src.has(offset, length)
}

// sendErr returns the error for an invalid message, or nil for an empty one.
func (c *Conn) sendErr(op string, src *MR, offset, length uint64, flags Flags) error {
	switch {
	case !c.created():
		return notCreated(op)
	case flags == 0 || flags > Always:
		return badFlags(op, flags)
	case src == nil && offset == 0 && length == 0:
		return nil
	case src == nil:
		return noRegion(op)
	}
	return src.outOfRange(op, offset, length)
}

func canAtomicWrite(dst *RemoteMR, offset uint64, flags Flags) bool {
	return flags-1 < Always && dst != nil && offset%AtomicWriteAlignment == 0 &&
		inside(offset, atomicWriteSize, dst.length)
}

func (c *Conn) atomicWriteErr(op string, dst *RemoteMR, offset uint64, flags Flags) error {
	switch {
	case !c.created():
		return notCreated(op)
	case flags == 0 || flags > Always:
		return badFlags(op, flags)
	case dst == nil:
		return invalid(op, "no region")
	case offset%AtomicWriteAlignment != 0:
		return invalid(op, "offset %d is not a multiple of %d", offset, AtomicWriteAlignment)
	}
	return dst.outOfRange(op, offset, atomicWriteSize)
}

func (c *Conn) canFlush(dst *RemoteMR, offset, length uint64, to FlushType, flags Flags) bool {
	return flags-1 < Always && dst != nil && to <= Visibility && dst.usage&to.usage() != 0 &&
		(to != Persistent || c.pmem.Load()) && inside(offset, length, dst.length)
}

func (c *Conn) flushErr(op string, dst *RemoteMR, offset, length uint64, to FlushType, flags Flags) error {
	switch {
	case !c.created():
		return notCreated(op)
	case flags == 0 || flags > Always:
		return badFlags(op, flags)
	case dst == nil:
		return invalid(op, "no region")
	case to > Visibility:
		return invalid(op, "invalid flush type %v", to)
	case to == Persistent && !c.pmem.Load():
		return unsupported(op, "peer does not guarantee that data written by its device is persistent; transfer its "+
			"PeerConfig and pass it to ApplyRemotePeerConfig")
	case dst.usage&to.usage() == 0:
		return unsupported(op, "peer's region does not support flush for %v, only %v", to, dst.usage)
	}
	return dst.outOfRange(op, offset, length)
}

// CompletionErr returns an error that explains a failed completion of the connection, or nil for a successful one. The
// error matches an *rdma.CompletionError. If it may be a flush that the peer has rejected, the text explains how the
// two sides differ.
func (c *Conn) CompletionErr(wc *ibv.WC) error {
	err := rdma.CompletionErr(wc)
	if err == nil {
		return nil
	}
	e := &Error{Op: "completion", Code: ErrProvider, Err: err}
	if c.created() && (wc.Status == ibv.WC_REM_ACCESS_ERR || wc.Status == ibv.WC_REM_INV_REQ_ERR) &&
		c.sends.wasFlush(wc.WRID) {
		e.Reason = fmt.Sprintf("if this is the flush of id %#x: %s", wc.WRID, c.flushMismatch())
	}
	return e
}

// flushMismatch explains why the peer may have rejected a flush.
func (c *Conn) flushMismatch() string {
	if c.peer.nativeFlush {
		return "this side flushes natively, which the peer's region does not permit, probably because the peer " +
			"flushes with reads (its device does not support native flush, or its librpma is older than 1.3.0); " +
			"set PeerOptions.ReadFlush on this side"
	}
	return "this side flushes with RDMA READs, which the peer's region does not permit, probably because the " +
		"peer flushes natively; add ReadSrc to the region's usage at the peer, or flush natively on this side, with " +
		"a device that supports both kinds of native flush and without PeerOptions.ReadFlush"
}
