// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Posting with ibv_wr_start, ibv_wr_rdma_write and ibv_wr_set_sge for each request, and ibv_wr_complete: the same
// requests as in the case post.

const (
	remote, remoteKey = 0x7e0000000000, 0x5678
	local, localKey   = 0x7f0000000000, 0x1234
)

// program returns an rdma.WRProgram of batch writes.
func (m *implementation) program(batch int) (*rdma.WRProgram, error) {
	if p := m.programs[batch]; p != nil {
		return p, nil
	}
	p, err := m.qp.NewWRProgram()
	if err != nil {
		return nil, err
	}
	for i := range batch {
		r := p.Write(uint64(i), remote+uint64(i*bytes), remoteKey).SGE(local+uint64(i*bytes), bytes, localKey)
		if i == batch-1 {
			r.Signaled()
		}
	}
	m.programs[batch] = p
	return p, p.Err()
}

// run posts a program of batch writes n times.
func (m *implementation) run(batch, n int) error {
	p, err := m.program(batch)
	if err != nil {
		return err
	}
	return m.wr(p, batch, n)
}

// wrC sets the loops of a C program, and of a program that calls C with cgo for each list.
func (m *implementation) wrC() {
	qp := uintptr(unsafe.Pointer(m.qp.CEx()))
	m.wr = func(_ *rdma.WRProgram, batch, n int) error { return loopWR(qp, batch, n) }
}

func (m *implementation) wrCgo() {
	qp := uintptr(unsafe.Pointer(m.qp.CEx()))
	m.wr = func(_ *rdma.WRProgram, batch, n int) error {
		for range n {
			if cgoWR(qp, batch) != 0 {
				return errFailed
			}
		}
		return nil
	}
}

// wrPurego calls each of the functions with purego.
func (m *implementation) wrPurego() {
	x := m.qp.CEx()
	qp := uintptr(unsafe.Pointer(x))
	m.wr = func(_ *rdma.WRProgram, batch, n int) error {
		for range n {
			purego.SyscallN(uintptr(x.WRStart), qp)
			for i := range batch {
				x.WRID, x.WRFlags = uint64(i), 0
				if i == batch-1 {
					x.WRFlags = ibv.SEND_SIGNALED
				}
				purego.SyscallN(uintptr(x.WRRDMAWrite), qp, remoteKey, uintptr(remote+i*bytes))
				purego.SyscallN(uintptr(x.WRSetSGE), qp, localKey, uintptr(local+i*bytes), bytes)
			}
			if r, _, _ := purego.SyscallN(uintptr(x.WRComplete), qp); r != 0 {
				return errFailed
			}
		}
		return nil
	}
}

// poster is a queue that accepts programs.
type poster interface {
	PostProgram(*rdma.WRProgram) error
}

func (m *implementation) wrGo(q poster) {
	m.wr = func(p *rdma.WRProgram, _, n int) error {
		for range n {
			if err := q.PostProgram(p); err != nil {
				return err
			}
		}
		return nil
	}
}
