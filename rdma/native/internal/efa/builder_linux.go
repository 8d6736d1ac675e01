// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package efa

import (
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/driver"
)

// SendOps implements [driver.Extended].
func (d *device) SendOps(kind ibv.QPType) (ops ibv.QPCreateSendOpsFlags) {
	ops = ibv.QP_EX_WITH_SEND | ibv.QP_EX_WITH_SEND_WITH_IMM
	if kind != ibv.QPT_DRIVER {
		return ops
	}
	if d.has(uapi.EFA_QUERY_DEVICE_CAPS_RDMA_READ) {
		ops |= ibv.QP_EX_WITH_RDMA_READ
	}
	if d.has(uapi.EFA_QUERY_DEVICE_CAPS_RDMA_WRITE) {
		ops |= ibv.QP_EX_WITH_RDMA_WRITE | ibv.QP_EX_WITH_RDMA_WRITE_WITH_IMM
	}
	return ops
}

// builder is a [driver.Builder]. Its requests are pending in the send queue.
type builder struct {
	*queuePair
	usable bool
	last   *sendHead
	errno  syscall.Errno
}

// Builder implements [driver.ExtendedQP].
func (q *queuePair) Builder() driver.Builder { return &builder{queuePair: q} }

func (b *builder) Start(qp *ibv.QP) {
	b.send.mu.Lock()
	b.last, b.errno = nil, 0
	b.usable = b.send.bell != nil && (qp.State == ibv.QPS_RTS || qp.State == ibv.QPS_SQD)
}

func (b *builder) Started() bool {
	if b.send.mu.TryLock() {
		b.send.mu.Unlock()
		return false
	}
	return true
}

func (b *builder) Fail(errno syscall.Errno) {
	if b.errno == 0 {
		b.errno = errno
	}
	b.last = nil
}

func (b *builder) Complete() syscall.Errno {
	defer b.send.mu.Unlock()
	b.last = nil
	if b.errno != 0 {
		b.send.takeBack()
		return b.errno
	}
	b.send.publish()
	return 0
}

func (b *builder) Abort() {
	b.last = nil
	b.send.takeBack()
	b.send.mu.Unlock()
}

// request begins a request. It returns nil after an error.
func (b *builder) request(x *ibv.QPEx, op operation) *sendHead {
	s := &b.send
	switch {
	case b.errno != 0:
		return nil
	case !b.usable || !s.everyOne && x.WRFlags&ibv.SEND_SIGNALED == 0:
		b.Fail(syscall.EINVAL)
		return nil
	case s.full():
		b.Fail(syscall.ENOMEM)
		return nil
	}
	h := s.request(x.WRID)
	h.operation |= uint8(op)
	b.last = h
	return h
}

// Message begins a send.
func (b *builder) Message(x *ibv.QPEx, op ibv.WROpcode, imm uint32) {
	if op != ibv.WR_SEND && op != ibv.WR_SEND_WITH_IMM {
		b.Fail(syscall.EOPNOTSUPP)
		return
	}
	if h := b.request(x, opSend); h != nil && op == ibv.WR_SEND_WITH_IMM {
		h.setImm(imm)
	}
}

// setImm sets immediate data, which programs have in network order.
func (h *sendHead) setImm(imm uint32) {
	h.operation |= hasImm
	h.imm = (*ibv.BE32)(unsafe.Pointer(&imm)).Host()
}

// Remote begins a read or write. Its remote buffer has the length of the local data, which follows.
func (b *builder) Remote(x *ibv.QPEx, op ibv.WROpcode, rkey uint32, address uint64, imm uint32) {
	of := opWrite
	if op == ibv.WR_RDMA_READ {
		of = opRead
	}
	h := b.request(x, of)
	if h == nil {
		return
	}
	h.buffers(1)[0] = buffer{key: rkey, low: uint32(address), high: uint32(address >> 32)}
	if op == ibv.WR_RDMA_WRITE_WITH_IMM {
		h.setImm(imm)
	}
}

// Atomic fails: the device has no such operation.
func (b *builder) Atomic(*ibv.QPEx, ibv.WROpcode, uint32, uint64, uint64, uint64) {
	b.Fail(syscall.EOPNOTSUPP)
}

// AtomicWrite fails: the device has no such operation.
func (b *builder) AtomicWrite(*ibv.QPEx, uint32, uint64, *[8]byte) { b.Fail(syscall.EOPNOTSUPP) }

// Flush fails: the device has no such operation.
func (b *builder) Flush(*ibv.QPEx, uint32, uint64, uint64, uint8, uint8) { b.Fail(syscall.EOPNOTSUPP) }

// Bind fails: the device has no memory windows.
func (b *builder) Bind(*ibv.QPEx, *ibv.MW, uint32, *ibv.MWBindInfo) { b.Fail(syscall.EOPNOTSUPP) }

// Datagram sets the destination of the last request.
func (b *builder) Datagram(ah unsafe.Pointer, qpn, qkey uint32) {
	if qpn > mostQPN {
		b.Fail(syscall.EINVAL)
	}
	if h := b.last; h != nil {
		h.ah, h.qpn, h.qkey = addressOf(ah), uint16(qpn), qkey
	}
}

// remote returns the remote buffer of a request, or nil if it is a message.
func (h *sendHead) remote() *buffer {
	if operation(h.operation)&opMask == opSend {
		return nil
	}
	return &h.buffers(1)[0]
}

// SGEs sets the buffers of the last request.
func (b *builder) SGEs(sges []ibv.SGE) {
	h := b.last
	if h == nil {
		return
	}
	remote := h.remote()
	if len(sges) > int(b.send.sges) || remote != nil && len(sges) > mostLocal {
		b.Fail(syscall.EINVAL)
		return
	}
	if remote == nil {
		h.setBuffers(h.buffers(len(sges)), sges)
		return
	}
	h.setBuffers(h.buffers(1 + len(sges))[1:], sges)
	remote.length = 0
	for i := range sges {
		remote.length += sges[i].Length
	}
}

// Inline copies buffers to the last request.
func (b *builder) Inline(buffers []ibv.DataBuf) {
	h := b.last
	if h == nil {
		return
	}
	data, remote := b.send.data(h), h.remote()
	if remote != nil {
		data = data[bufferSize:]
		if !b.send.inlineWrites || operation(h.operation)&opMask == opRead {
			b.Fail(syscall.EINVAL)
			return
		}
	}
	n := uint64(0)
	for i := range buffers {
		length := buffers[i].Length
		if length > uint64(b.send.inline) || n+length > uint64(b.send.inline) || n+length > uint64(len(data)) {
			b.Fail(syscall.EINVAL)
			return
		}
		copy(data[n:], memory(uint64(buffers[i].Addr), uint32(length)))
		n += length
	}
	h.operation |= hasInline
	h.length = uint16(n)
	if remote != nil {
		remote.length = uint32(n)
	}
}
