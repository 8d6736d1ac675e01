// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/goverbs/goverbs/generated/ibv"
)

// list holds work requests, SGEs and completions outside the Go heap, as in a Go program without goverbs.
type list struct {
	wr  []ibv.SendWR
	sge []ibv.SGE
	wc  []ibv.WC
	bad *uintptr
}

func newList() (*list, error) {
	const wrBytes, sgeBytes, wcBytes = depth * unsafe.Sizeof(ibv.SendWR{}), depth * unsafe.Sizeof(ibv.SGE{}),
		depth * unsafe.Sizeof(ibv.WC{})
	b, err := syscall.Mmap(-1, 0, int(wrBytes+sgeBytes+wcBytes)+8, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, err
	}
	p := unsafe.Pointer(&b[0])
	return &list{
		wr:  unsafe.Slice((*ibv.SendWR)(p), depth),
		sge: unsafe.Slice((*ibv.SGE)(unsafe.Add(p, wrBytes)), depth),
		wc:  unsafe.Slice((*ibv.WC)(unsafe.Add(p, wrBytes+sgeBytes)), depth),
		bad: (*uintptr)(unsafe.Add(p, wrBytes+sgeBytes+wcBytes)),
	}, nil
}

func (l *list) build(i uint64, batch int) {
	wrs, sges, w := l.wr[:batch], l.sge[:batch], theWork
	offset := i * uint64(w.length)
	for k := range wrs {
		wr, sge := &wrs[k], &sges[k]
		sge.Addr, sge.Length, sge.LKey = w.addr+offset, w.length, w.lkey
		wr.WRID = i + uint64(k)
		if k+1 == len(wrs) {
			wr.Next, wr.SendFlags = 0, ibv.SEND_SIGNALED
		} else {
			wr.Next, wr.SendFlags = ibv.PtrTo(&wrs[k+1]), 0
		}
		wr.SGList, wr.NumSGE, wr.Opcode = ibv.PtrTo(sge), 1, ibv.WR_RDMA_WRITE
		rdma := wr.WR.RDMA()
		rdma.RemoteAddr, rdma.RKey = w.remoteAddr+offset, w.rkey
		offset += uint64(w.length)
	}
}

func (l *list) patch(i uint64, batch int) {
	wrs, sges, w := l.wr[:batch], l.sge[:batch], theWork
	offset := i * uint64(w.length)
	for k := range wrs {
		sges[k].Addr = w.addr + offset
		wrs[k].WRID = i + uint64(k)
		wrs[k].WR.RDMA().RemoteAddr = w.remoteAddr + offset
		offset += uint64(w.length)
	}
}

// prepareCgo calls C with cgo.
func prepareCgo(c cell, s *stub) (runner, error) {
	return prepareList(c, s, postCgo, pollCgo)
}

// preparePurego calls the function in the slot with purego.
func preparePurego(c cell, s *stub) (runner, error) {
	post, poll := uintptr(s.context().Ops.PostSend), uintptr(s.context().Ops.PollCQ)
	return prepareList(c, s,
		func(qp, wr, bad uintptr) int32 {
			r, _, _ := purego.SyscallN(post, qp, wr, bad)
			return int32(r)
		},
		func(cq uintptr, entries int32, wc uintptr) int32 {
			r, _, _ := purego.SyscallN(poll, cq, uintptr(entries), wc)
			return int32(r)
		})
}

// prepareList runs the cases with a list. Compared with these calls, an indirect call is negligible.
func prepareList(c cell, s *stub, post func(qp, wr, bad uintptr) int32,
	poll func(cq uintptr, entries int32, wc uintptr) int32) (runner, error) {
	l, err := newList()
	if err != nil {
		return nil, err
	}
	l.build(0, c.batch)
	completions(l.wc)
	qps, mask := s.qps(c.qps), uint64(c.qps-1)
	wr, bad := uintptr(unsafe.Pointer(&l.wr[0])), uintptr(unsafe.Pointer(l.bad))
	loop := func(write func(i uint64, batch int)) runner {
		return func(n int) error {
			for i := range uint64(n) {
				if write != nil {
					write(i, c.batch)
				}
				if post(uintptr(unsafe.Pointer(qps[i&mask])), wr, bad) != 0 {
					return errFailed
				}
			}
			return nil
		}
	}
	switch c.name {
	case caseCall:
		return loop(nil), nil
	case caseBuild:
		return loop(l.build), nil
	case casePatch:
		return loop(l.patch), nil
	case casePoll:
		cq, wc, entries := uintptr(unsafe.Pointer(s.cq(c.batch))), uintptr(unsafe.Pointer(&l.wc[0])),
			int32(max(c.batch, 1))
		return func(n int) error {
			sum := uint64(0)
			for range n {
				wcs := l.wc[:poll(cq, entries, wc)]
				for k := range wcs {
					wc := &wcs[k]
					if wc.Status != ibv.WC_SUCCESS {
						return errFailed
					}
					sum += wc.WRID + uint64(wc.ByteLen) + uint64(wc.Opcode) + uint64(wc.QPNum) + uint64(wc.WCFlags)
				}
			}
			keep(sum)
			return nil
		}, nil
	}
	return nil, fmt.Errorf("no case %q", c.name)
}
