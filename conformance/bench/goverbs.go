package main

import (
	"unsafe"

	"github.com/goverbs/goverbs/runtime"
)

// Until rdma has queues: lists of our own over runtime.
func prepareExclusive(c cell, s *stub) (sampler, error) {
	return goroutines(func(c cell, s *stub) (runner, error) {
		var stacks []*runtime.Stack
		for range c.qps {
			st, err := runtime.NewStack()
			if err != nil {
				return nil, err
			}
			stacks = append(stacks, st)
		}
		post, pollfn := uintptr(s.context().Ops.PostSend), uintptr(s.context().Ops.PollCQ)
		if c.name == caseCall {
			l, err := newList()
			if err != nil {
				return nil, err
			}
			l.build(0, c.batch)
			qps, mask := s.qps(c.qps), uint64(c.qps-1)
			wr, bad := uintptr(unsafe.Pointer(&l.wr[0])), uintptr(unsafe.Pointer(l.bad))
			st, qp := stacks[0], uintptr(unsafe.Pointer(qps[0]))
			if mask == 0 {
				return func(n int) error {
					for range uint64(n) {
						if st.Call3(post, qp, wr, bad) != 0 {
							return errFailed
						}
					}
					return nil
				}, nil
			}
			return func(n int) error {
				for i := range uint64(n) {
					if stacks[i&mask].Call3(post, uintptr(unsafe.Pointer(qps[i&mask])), wr, bad) != 0 {
						return errFailed
					}
				}
				return nil
			}, nil
		}
		return prepareList(c, s, func(qp, wr, bad uintptr) int32 { return stacks[0].Call3(post, qp, wr, bad) },
			func(cq uintptr, entries int32, wc uintptr) int32 {
				return stacks[0].Call3(pollfn, cq, uintptr(entries), wc)
			})
	})(c, s)
}

func prepareDefault(c cell, s *stub) (sampler, error) {
	return goroutines(func(c cell, s *stub) (runner, error) {
		post, pollfn := uintptr(s.context().Ops.PostSend), uintptr(s.context().Ops.PollCQ)
		if c.name == caseCall {
			l, err := newList()
			if err != nil {
				return nil, err
			}
			l.build(0, c.batch)
			qps, mask := s.qps(c.qps), uint64(c.qps-1)
			wr, bad := uintptr(unsafe.Pointer(&l.wr[0])), uintptr(unsafe.Pointer(l.bad))
			return func(n int) error {
				for i := range uint64(n) {
					if runtime.System.Call3(post, uintptr(unsafe.Pointer(qps[i&mask])), wr, bad) != 0 {
						return errFailed
					}
				}
				return nil
			}, nil
		}
		return prepareList(c, s, func(qp, wr, bad uintptr) int32 { return runtime.System.Call3(post, qp, wr, bad) },
			func(cq uintptr, entries int32, wc uintptr) int32 {
				return runtime.System.Call3(pollfn, cq, uintptr(entries), wc)
			})
	})(c, s)
}

var prepareChecked = prepareDefault
