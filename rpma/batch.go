// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"fmt"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Batch collects operations of a connection and posts them together, in order, without other goroutines' operations
// between them. It is not safe for concurrent use. Collecting and posting do not allocate. The methods correspond to
// those of [Conn]. If an argument is invalid, a method returns an error and does not add the operation.
type Batch struct {
	conn *Conn
	list *rdma.SendBatch
	ops  []operation
}

func (b *Batch) created() bool { return b != nil && b.list != nil }

// operation is a checked operation.
type operation struct {
	id        uint64
	remote    uint64
	length    uint64  // for native flushes
	local     ibv.SGE // length 0: no entry
	rkey      uint32
	imm       uint32
	flags     ibv.SendFlags
	kind      kind
	placement ibv.PlacementType
	value     [atomicWriteSize]byte // for atomic writes
}

// kind selects how an operation is posted.
type kind uint8

const (
	write kind = iota
	writeImm
	read
	readFlush
	send
	sendImm
	plainAtomicWrite
	nativeAtomicWrite // this and later kinds cannot be in a list of work requests
	nativeFlush
)

// list appends the operation to a list.
func (o *operation) list(b *rdma.SendBatch) {
	var w rdma.SendRequest
	switch o.kind {
	case write:
		w = b.Write(o.id, o.remote, o.rkey)
	case read, readFlush:
		w = b.Read(o.id, o.remote, o.rkey)
	case send:
		w = b.Send(o.id)
	case writeImm:
		w = b.WriteImm(o.id, o.remote, o.rkey, ibv.ToBE32(o.imm))
	case sendImm:
		w = b.SendImm(o.id, ibv.ToBE32(o.imm))
	case plainAtomicWrite:
		w = b.Write(o.id, o.remote, o.rkey).Inline(o.value[:])
	}
	if o.local.Length != 0 {
		w = w.Add(o.local)
	}
	w.Flags(o.flags)
}

// postNative posts an operation that cannot be in a list. The caller holds the lock of s.
func (o *operation) postNative(s *sends) error {
	n := &s.atomic
	if o.kind == nativeFlush {
		n = &s.flush
	}
	n.request.Renew(o.id, o.flags, o.remote, o.rkey)
	if o.kind == nativeFlush {
		n.request.SetFlush(o.length, uint8(o.placement))
	} else {
		n.request.SetValue(o.value)
	}
	return s.qp.PostProgram(n.program)
}

// NewBatch returns an empty batch with room for most operations.
func (c *Conn) NewBatch(most int) (*Batch, error) {
	if !c.created() {
		return nil, notCreated("Conn.NewBatch")
	}
	if most < 1 {
		return nil, invalid("Conn.NewBatch", "invalid batch size %d", most)
	}
	list, err := rdma.NewSendBatch(most, 1, atomicWriteSize)
	if err != nil {
		return nil, failedAs("Conn.NewBatch", ErrNoMemory, err)
	}
	return &Batch{conn: c, list: list, ops: make([]operation, 0, most)}, nil
}

// Len returns the number of operations in the batch.
func (b *Batch) Len() int {
	if b == nil {
		return 0
	}
	return len(b.ops)
}

// Reset empties the batch.
func (b *Batch) Reset() {
	if b != nil {
		b.ops = b.ops[:0]
	}
}

// hasRoom reports whether another operation fits. b may be nil.
func (b *Batch) hasRoom() bool { return b != nil && len(b.ops) < cap(b.ops) }

func (b *Batch) full(op string) error {
	if !b.created() {
		return notCreated(op)
	}
	return &Error{Op: op, Code: ErrNoMemory, Reason: fmt.Sprintf("the batch is full: its size is %d operations",
		cap(b.ops)), Err: syscall.ENOMEM}
}

// Read is [Conn.Read].
func (b *Batch) Read(dst *MR, dstOffset uint64, src *RemoteMR, srcOffset, length uint64, flags Flags, id uint64) error {
	return b.transfer("Batch.Read", operation{kind: read, id: id}, dst, dstOffset, src, srcOffset, length, flags)
}

// Write is [Conn.Write].
func (b *Batch) Write(dst *RemoteMR, dstOffset uint64, src *MR, srcOffset, length uint64, flags Flags,
	id uint64) error {
	return b.transfer("Batch.Write", operation{kind: write, id: id}, src, srcOffset, dst, dstOffset, length, flags)
}

// WriteWithImm is [Conn.WriteWithImm].
func (b *Batch) WriteWithImm(dst *RemoteMR, dstOffset uint64, src *MR, srcOffset, length uint64, flags Flags,
	imm uint32, id uint64) error {
	return b.transfer("Batch.WriteWithImm", operation{kind: writeImm, id: id, imm: imm}, src, srcOffset, dst, dstOffset,
		length, flags)
}

func (b *Batch) transfer(op string, o operation, local *MR, localOffset uint64, remote *RemoteMR,
	remoteOffset, length uint64, flags Flags) error {
	if !b.hasRoom() {
		return b.full(op)
	}
	if !canTransfer(local, localOffset, remote, remoteOffset, length, flags) {
		if err := b.conn.transferErr(op, local, localOffset, remote, remoteOffset, length, flags); err != nil {
			return err
		}
		remote = &noMemory
	}
	o.remote, o.rkey, o.flags = remote.address+remoteOffset, remote.rkey, sendFlags(flags)
	b.add(o, local, localOffset, length)
	return nil
}

// AtomicWrite is [Conn.AtomicWrite].
func (b *Batch) AtomicWrite(dst *RemoteMR, dstOffset uint64, value [8]byte, flags Flags, id uint64) error {
	const op = "Batch.AtomicWrite"
	if !b.hasRoom() {
		return b.full(op)
	}
	if !canAtomicWrite(dst, dstOffset, flags) {
		return b.conn.atomicWriteErr(op, dst, dstOffset, flags)
	}
	o := operation{kind: nativeAtomicWrite, id: id, remote: dst.address + dstOffset, rkey: dst.rkey, value: value,
		flags: sendFlags(flags) | b.conn.sends.fence}
	if b.conn.sends.atomic.program == nil {
		o.kind = plainAtomicWrite
	}
	b.add(o, nil, 0, 0)
	return nil
}

// Flush is [Conn.Flush].
func (b *Batch) Flush(dst *RemoteMR, dstOffset, length uint64, to FlushType, flags Flags, id uint64) error {
	const op = "Batch.Flush"
	if !b.hasRoom() {
		return b.full(op)
	}
	if !b.conn.canFlush(dst, dstOffset, length, to, flags) {
		return b.conn.flushErr(op, dst, dstOffset, length, to, flags)
	}
	o := operation{kind: nativeFlush, id: id, remote: dst.address + dstOffset, rkey: dst.rkey, length: length,
		placement: placement(to), flags: sendFlags(flags)}
	if b.conn.sends.flush.program == nil {
		var n uint64
		o.remote, n = b.conn.sends.flushingRead(dst, dstOffset)
		o.kind, o.local = readFlush, b.conn.sends.raw.mr.SGE(0, uint32(n))
	}
	b.add(o, nil, 0, 0)
	return nil
}

// Send is [Conn.Send].
func (b *Batch) Send(src *MR, offset, length uint64, flags Flags, id uint64) error {
	return b.send("Batch.Send", operation{kind: send, id: id}, src, offset, length, flags)
}

// SendWithImm is [Conn.SendWithImm].
func (b *Batch) SendWithImm(src *MR, offset, length uint64, flags Flags, imm uint32, id uint64) error {
	return b.send("Batch.SendWithImm", operation{kind: sendImm, id: id, imm: imm}, src, offset, length, flags)
}

func (b *Batch) send(op string, o operation, src *MR, offset, length uint64, flags Flags) error {
	if !b.hasRoom() {
		return b.full(op)
	}
	if !canSend(src, offset, length, flags) {
		if err := b.conn.sendErr(op, src, offset, length, flags); err != nil {
			return err
		}
	}
	o.flags = sendFlags(flags)
	b.add(o, src, offset, length)
	return nil
}

// add adds an operation. Its local memory is in local, unless that is nil.
func (b *Batch) add(o operation, local *MR, offset, length uint64) {
	if local != nil {
		o.local = local.part(offset, length)
	}
	b.ops = append(b.ops, o)
}

// Post posts all operations and returns the number of posted ones; after an error, those are the ones before the failed
// one. The batch keeps its operations and can be posted again. Adjacent operations are posted in one call, but native
// flushes and native atomic writes need a call each.
func (b *Batch) Post() (posted int, err error) {
	if !b.created() {
		return 0, notCreated("Batch.Post")
	}
	s := &b.conn.sends
	s.mu.Lock()
	defer s.mu.Unlock()
	for posted < len(b.ops) && err == nil {
		n := 0
		if b.ops[posted].kind >= nativeAtomicWrite {
			if err = b.ops[posted].postNative(s); err == nil {
				n = 1
			}
		} else {
			b.list.Reset()
			for i := posted; i < len(b.ops) && b.ops[i].kind < nativeAtomicWrite; i++ {
				b.ops[i].list(b.list)
			}
			n, err = s.qp.PostSend(b.list)
		}
		for _, o := range b.ops[posted : posted+n] {
			if o.kind == nativeFlush || o.kind == readFlush {
				s.flushed(o.id)
			}
		}
		posted += n
	}
	if err != nil {
		return posted, failed("Batch.Post", err)
	}
	return posted, nil
}

// Close releases the batch's memory. Posted operations continue.
func (b *Batch) Close() error {
	if !b.created() {
		return notCreated("Batch.Close")
	}
	b.ops = nil
	return failed("Batch.Close", b.list.Close())
}
