// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// device provides queues whose verbs are Go functions. It records posts and returns the results that a test sets.
type device struct {
	context ibv.Context
	qp      ibv.QP
	srq     ibv.SRQ
	cq      ibv.CQ

	sends [][]ibv.SendWR // lists in the order of their calls
	recvs [][]ibv.RecvWR
	fail  int           // number of the work request, from 1, that fails in the next call; 0: none
	errno runtime.Errno // error of the failing call
	null  bool          // *bad_wr stays NULL
	wcs   []ibv.WC      // completions of the next poll
	only  []bool        // solicited_only of each event request
}

const passes = -1

type noBackend struct{}

func (noBackend) Function(string, string) runtime.Func { return nil }

var space = func() *runtime.Space {
	s, err := runtime.NewSpace(noBackend{})
	if err != nil {
		panic(err)
	}
	return s
}()

// devices keeps every device reachable, because only C structures hold their addresses.
var devices []*device

func newDevice(t require.TestingT, qpt ibv.QPType) *device {
	d := &device{fail: passes, errno: syscall.ENOMEM}
	devices = append(devices, d)
	slot := func(f runtime.SlotFunc) ibv.FuncPtr {
		address, err := space.Slot(f)
		require.NoError(t, err)
		return ibv.FuncPtr(address)
	}
	d.context.Ops.PostSend = slot(func(qp, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
		list, result := walk(d, ibv.Ptr[ibv.SendWR](wr), ibv.Ptr[ibv.Ptr[ibv.SendWR]](bad),
			func(w *ibv.SendWR) ibv.Ptr[ibv.SendWR] { return w.Next })
		d.sends = append(d.sends, list)
		return result, 0
	})
	recv := slot(func(qp, wr, bad, _, _, _ uint64) (uint64, runtime.Errno) {
		list, result := walk(d, ibv.Ptr[ibv.RecvWR](wr), ibv.Ptr[ibv.Ptr[ibv.RecvWR]](bad),
			func(w *ibv.RecvWR) ibv.Ptr[ibv.RecvWR] { return w.Next })
		d.recvs = append(d.recvs, list)
		return result, 0
	})
	d.context.Ops.PostRecv, d.context.Ops.PostSRQRecv = recv, recv
	d.context.Ops.PollCQ = slot(func(cq, n, wc, _, _, _ uint64) (uint64, runtime.Errno) {
		got := copy(unsafe.Slice(ibv.Ptr[ibv.WC](wc).Deref(), int(n)), d.wcs)
		d.wcs = d.wcs[got:]
		return uint64(got), 0
	})
	d.context.Ops.ReqNotifyCQ = slot(func(cq, only, _, _, _, _ uint64) (uint64, runtime.Errno) {
		d.only = append(d.only, only != 0)
		return 0, 0
	})
	context := ibv.PtrTo(&d.context)
	d.qp = ibv.QP{Context: context, QPNum: 0x12, QPType: qpt, State: ibv.QPS_RTS}
	d.srq, d.cq = ibv.SRQ{Context: context, Handle: 7}, ibv.CQ{Context: context}
	return d
}

// walk copies a list up to the request that fails.
func walk[T any](d *device, first ibv.Ptr[T], bad ibv.Ptr[ibv.Ptr[T]], next func(*T) ibv.Ptr[T]) (list []T,
	result uint64) {
	for p := first; p != 0; p = next(p.Deref()) {
		if len(list) == d.fail {
			if !d.null {
				*bad.Deref() = p
			}
			return list, uint64(d.errno)
		}
		list = append(list, *p.Deref())
	}
	return list, 0
}

func (d *device) sendIDs() (ids []uint64) {
	for _, list := range d.sends {
		for _, w := range list {
			ids = append(ids, w.WRID)
		}
	}
	return ids
}

func options(slots, sges, inline uint32) QueueOptions {
	return QueueOptions{Cap: ibv.QPCap{MaxSendWR: slots, MaxRecvWR: slots, MaxSendSGE: sges, MaxRecvSGE: sges,
		MaxInlineData: inline}}
}

func sendQueue(t testing.TB, d *device, o QueueOptions) *SendQueue {
	q, err := NewSendQueue(&d.qp, o)
	require.NoError(t, err)
	return q
}

// writes fills a batch with n writes with ids from first on; the last one is signaled.
func writes(b *SendBatch, first uint64, n int) *SendBatch {
	b.Reset()
	for i := range uint64(n) {
		r := b.Write(first+i, 0x1000, 1).SGE(0x2000, 8, 2)
		if i == uint64(n-1) {
			r.Signaled()
		}
	}
	return b
}

func success(id uint64) ibv.WC { return ibv.WC{WRID: id, QPNum: 0x12} }

func ids(from, to uint64) (all []uint64) {
	for ; from < to; from++ {
		all = append(all, from)
	}
	return slices.Clip(all)
}
