// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"sync"
	"syscall"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/uapi"
	"github.com/goverbs/goverbs/rdma/native/internal/rxe"
	"github.com/goverbs/goverbs/runtime"
)

// sharedQueue is a shared receive queue.
type sharedQueue struct {
	context *context
	record  *srqRecord
	sges    uint32
	acked   reports
	mu      sync.Mutex // guards the following fields
	queue   rxe.Queue
	mapping []byte
}

type srqRecord struct {
	ibv.SRQ
	index uint32
}

func (b *Backend) createSRQ(a []uint64) (uint64, runtime.Errno) {
	p := find[domain](b, a[0])
	if p == nil || a[1] == 0 {
		return 0, syscall.EINVAL
	}
	attr := at[ibv.SRQInitAttr](a[1])
	c := p.context
	record, errno := allocate[srqRecord](b)
	if errno != 0 {
		return 0, errno
	}
	out, driver, errno := write[uapi.IBUverbsCreateSRQResp, uapi.RXECreateSRQResp](&c.file,
		uapi.IB_USER_VERBS_CMD_CREATE_SRQ, &uapi.IBUverbsCreateSRQ{UserHandle: addressOf(record),
			PDHandle: p.record.Handle, MaxWR: attr.Attr.MaxWR, MaxSGE: attr.Attr.MaxSGE, SRQLimit: attr.Attr.SRQLimit},
		&none{})
	if errno != 0 {
		free(b, record)
		return 0, errno
	}
	s := &sharedQueue{context: c, record: record, sges: out.MaxSGE}
	if s.queue, s.mapping, errno = c.mapQueue(driver.Mi, rxe.RecvSize(s.sges)); errno != 0 {
		c.destroySRQ(out.SRQHandle)
		free(b, record)
		return 0, errno
	}
	record.SRQ = ibv.SRQ{Context: c.pointer(), SRQContext: attr.SRQContext, PD: ibv.PtrTo(p.record),
		Handle: out.SRQHandle}
	attr.Attr.MaxWR, attr.Attr.MaxSGE = out.MaxWR, out.MaxSGE
	record.index = b.srqs.add(s)
	c.uses.Add(1)
	b.enter(addressOf(record), s)
	return addressOf(record), 0
}

func (c *context) destroySRQ(handle uint32) (uapi.IBUverbsDestroySRQResp, syscall.Errno) {
	out, _, errno := write[uapi.IBUverbsDestroySRQResp, none](&c.file, uapi.IB_USER_VERBS_CMD_DESTROY_SRQ,
		&uapi.IBUverbsDestroySRQ{SRQHandle: handle}, &none{})
	return out, errno
}

func (b *Backend) destroySRQ(address uint64) syscall.Errno {
	s := find[sharedQueue](b, address)
	if s == nil {
		return syscall.EINVAL
	}
	out, errno := s.context.destroySRQ(s.record.Handle)
	if errno != 0 {
		return errno
	}
	b.settle(address, &s.acked, 0, out.EventsReported)
	b.srqs.remove(s.record.index)
	s.mu.Lock()
	b.kernel.Munmap(s.mapping)
	s.mapping = nil
	s.mu.Unlock()
	s.context.uses.Add(-1)
	free(b, s.record)
	return 0
}

// modifySRQ arms the limit or resizes the queue. The driver writes the mapping of a resized queue to the address that
// its part of the command has.
func (b *Backend) modifySRQ(a []uint64) syscall.Errno {
	s := find[sharedQueue](b, a[0])
	if s == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	attr, mask := at[ibv.SRQAttr](a[1]), ibv.SRQAttrMask(uint32(a[2]))
	s.mu.Lock()
	defer s.mu.Unlock()
	info, errno := allocate[uapi.Mminfo](b)
	if errno != 0 {
		return errno
	}
	defer free(b, info)
	in := uapi.IBUverbsModifySRQ{SRQHandle: s.record.Handle, AttrMask: uint32(mask), MaxWR: attr.MaxWR,
		SRQLimit: attr.SRQLimit}
	_, _, errno = write[none, none](&s.context.file, uapi.IB_USER_VERBS_CMD_MODIFY_SRQ, &in,
		&uapi.RXEModifySRQCmd{MmapInfoAddr: addressOf(info)})
	if errno != 0 || mask&ibv.SRQ_MAX_WR == 0 {
		return errno
	}
	queue, mapping, errno := s.context.mapQueue(*info, rxe.RecvSize(s.sges))
	if errno != 0 {
		return errno
	}
	b.kernel.Munmap(s.mapping)
	s.queue, s.mapping = queue, mapping
	return 0
}

func (b *Backend) querySRQ(a []uint64) syscall.Errno {
	s := find[sharedQueue](b, a[0])
	if s == nil || a[1] == 0 {
		return syscall.EINVAL
	}
	r, _, errno := write[uapi.IBUverbsQuerySRQResp, none](&s.context.file, uapi.IB_USER_VERBS_CMD_QUERY_SRQ,
		&uapi.IBUverbsQuerySRQ{SRQHandle: s.record.Handle}, &none{})
	if errno == 0 {
		*at[ibv.SRQAttr](a[1]) = ibv.SRQAttr{MaxWR: r.MaxWR, MaxSGE: r.MaxSGE, SRQLimit: r.SRQLimit}
	}
	return errno
}

func (b *Backend) postSRQRecv(address, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
	s := b.srqs.get(at[srqRecord](address).index)
	if s == nil || addressOf(s.record) != address {
		return uint64(syscall.EINVAL), 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mapping == nil {
		return setBad(syscall.EINVAL, bad, wr), 0
	}
	errno, wr := postReceives(&s.queue, s.sges, wr)
	return setBad(errno, bad, wr), 0
}
