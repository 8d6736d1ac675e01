// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// noinline keeps each closure a separate function.

//go:noinline
func postTo(c cell, all []*rdma.SendQueue, b *rdma.SendBatch) runner {
	q, mask, size := all[0], uint64(c.qps-1), uint64(c.batch)
	switch {
	case c.name == caseCall && c.qps == 1:
		return func(n int) error {
			for range n {
				if _, err := q.Post(b); err != nil {
					return err
				}
			}
			return nil
		}
	case c.name == caseCall:
		return func(n int) error {
			for i := range uint64(n) {
				if _, err := all[i&mask].Post(b); err != nil {
					return err
				}
			}
			return nil
		}
	case c.name == caseBuild:
		return func(n int) error {
			for i := range uint64(n) {
				buildBatch(b, i, size)
				if _, err := all[i&mask].Post(b); err != nil {
					return err
				}
			}
			return nil
		}
	default:
		return func(n int) error {
			for i := range uint64(n) {
				patchBatch(b, i, size)
				if _, err := all[i&mask].Post(b); err != nil {
					return err
				}
			}
			return nil
		}
	}
}

//go:noinline
func pollBy(q *rdma.CompletionQueue, batch int) runner {
	wcs := completions(make([]ibv.WC, max(batch, 1)))
	return func(n int) error {
		sum := uint64(0)
		for range n {
			got, err := q.Poll(wcs)
			if err != nil {
				return err
			}
			found := wcs[:got]
			for k := range found {
				wc := &found[k]
				if wc.Status != ibv.WC_SUCCESS {
					return errFailed
				}
				sum += wc.WRID + uint64(wc.ByteLen) + uint64(wc.Opcode) + uint64(wc.QPNum) + uint64(wc.WCFlags)
			}
		}
		keep(sum)
		return nil
	}
}

// completions is the result of every poll of the returning stub.
func completions(wcs []ibv.WC) []ibv.WC {
	for k := range wcs {
		wcs[k] = ibv.WC{WRID: uint64(k), Opcode: ibv.WC_RDMA_WRITE, ByteLen: theWork.length, QPNum: 1}
	}
	return wcs
}

// keep prevents the compiler from removing a result.
//
//go:noinline
func keep(uint64) {}
