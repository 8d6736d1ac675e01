// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

var windowControls = []control{
	{verb: "ibv_alloc_mw", what: works,
		call: func(r *testbed.Testbed) error { return created(r, verbs.DeallocMW)(verbs.AllocMW(r.PD, ibv.MW_TYPE_1)) }},
	{verb: "ibv_alloc_mw", what: "of type 2, which works too",
		call: func(r *testbed.Testbed) error { return created(r, verbs.DeallocMW)(verbs.AllocMW(r.PD, ibv.MW_TYPE_2)) }},
	{verb: "ibv_alloc_mw", what: "no such type",
		call: func(r *testbed.Testbed) error { return created(r, verbs.DeallocMW)(verbs.AllocMW(r.PD, 7)) }},
	{verb: "ibv_dealloc_mw", what: works, call: func(r *testbed.Testbed) error {
		mw, err := verbs.AllocMW(r.PD, ibv.MW_TYPE_2)
		r.Check(err)
		return verbs.DeallocMW(mw)
	}},
	{verb: "ibv_dealloc_mw", what: "bound, which is allowed", call: windowed(func(w *windows) error {
		mw, err := verbs.AllocMW(w.PD, ibv.MW_TYPE_2)
		w.Check(err)
		key := w.BindOn(w.p.B, w.p.BSend, mw, w.there)
		w.Check(w.write(key))
		return verbs.DeallocMW(mw)
	})},

	{verb: "ibv_bind_mw", what: works, call: windowed(func(w *windows) error {
		mw := w.window(ibv.MW_TYPE_1)
		old := mw.RKey
		if err := w.bind(mw, w.there, 0, bufferLen, window); err != nil {
			return err
		}
		if mw.RKey == old {
			return failed("the key is the old one")
		}
		return w.write(mw.RKey)
	})},
	{verb: "ibv_bind_mw", what: "window of type 2", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_2), w.there, 0, bufferLen, window)
	})},
	{verb: "ibv_bind_mw", what: "region that does not allow binding", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.Buffer(bufferLen, remote), 0, bufferLen, window)
	})},
	{verb: "ibv_bind_mw", what: "remote write of a region without local write", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.Buffer(bufferLen, ibv.ACCESS_MW_BIND|ibv.ACCESS_REMOTE_READ), 0,
			bufferLen, window)
	})},
	{verb: "ibv_bind_mw", what: "out of the region's range", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 8, bufferLen, window)
	})},
	{verb: "ibv_bind_mw", what: "no bytes, which unbinds", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 0, 0, window)
	})},
	{verb: "ibv_bind_mw", what: "unknown access flag", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 0, bufferLen, 1<<18)
	})},
	{verb: "ibv_bind_mw", what: "local write, which does not apply to windows", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 0, bufferLen, local)
	})},
	{verb: "ibv_bind_mw", what: "on demand, which does not apply to windows", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 0, bufferLen, window|ibv.ACCESS_ON_DEMAND)
	})},
	{verb: "ibv_bind_mw", what: "zero based", call: windowed(func(w *windows) error {
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 0, bufferLen, window|ibv.ACCESS_ZERO_BASED)
	})},
	{verb: "ibv_bind_mw", what: "region of another protection domain", call: windowed(func(w *windows) error {
		other, err := verbs.AllocPD(w.Context)
		w.Check(err)
		w.Defer(func() { w.Check(verbs.DeallocPD(other)) })
		own := *w.Testbed
		own.PD = other
		return w.bind(w.window(ibv.MW_TYPE_1), own.Buffer(bufferLen, remote|ibv.ACCESS_MW_BIND), 0, bufferLen, window)
	})},
	{verb: "ibv_bind_mw", what: "queue pair of type UD", call: windowed(func(w *windows) error {
		w.p.B = w.QP(ibv.QPT_UD, w.p.BSend, w.p.BRecv)
		w.Bring(w.p.B, ibv.QPS_RTS)
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 0, bufferLen, window)
	})},
	{verb: "ibv_bind_mw", what: "queue pair in INIT", call: windowed(func(w *windows) error {
		w.p.B = w.QP(ibv.QPT_RC, w.p.BSend, w.p.BRecv)
		w.Bring(w.p.B, ibv.QPS_INIT)
		return w.bind(w.window(ibv.MW_TYPE_1), w.there, 0, bufferLen, window)
	})},
	{verb: "ibv_bind_mw", what: "writing through a window that allows reading", call: windowed(func(w *windows) error {
		mw := w.window(ibv.MW_TYPE_1)
		w.Check(w.bind(mw, w.there, 0, bufferLen, ibv.ACCESS_REMOTE_READ))
		return w.write(mw.RKey)
	})},
	{verb: "ibv_bind_mw", what: "writing through the key before the last bind", call: windowed(func(w *windows) error {
		mw := w.window(ibv.MW_TYPE_1)
		w.Check(w.bind(mw, w.there, 0, bufferLen, window))
		old := mw.RKey
		w.Check(w.bind(mw, w.there, 0, bufferLen, window))
		return w.write(old)
	})},

	// type 2 windows are bound and invalidated by work requests
	{verb: "ibv_alloc_mw", what: "type 2, bound, then written through",
		call: windowed(func(w *windows) error { return w.write(w.Bound(w.p.B, w.p.BSend, w.there)) })},
	{verb: "ibv_alloc_mw", what: "type 2, bound with the key of another window, of which only the low byte counts",
		call: windowed(func(w *windows) error {
			l := w.Sends(1)
			key := testbed.Bind(&l.WRs[0], w.Window(), w.there)
			l.WRs[0].BindMW().RKey ^= 0x12300
			l.WRs[0].SendFlags, l.WRs[0].NumSGE = ibv.SEND_SIGNALED, 0
			w.Check(w.post(l, w.p.B, w.p.BSend))
			return w.write(key)
		})},
	{verb: "ibv_alloc_mw", what: "type 2, bound twice without an invalidation", call: windowed(func(w *windows) error {
		mw := w.Window()
		w.BindOn(w.p.B, w.p.BSend, mw, w.there)
		l := w.Sends(1)
		testbed.Bind(&l.WRs[0], mw, w.there)
		l.WRs[0].SendFlags, l.WRs[0].NumSGE = ibv.SEND_SIGNALED, 0
		return w.post(l, w.p.B, w.p.BSend)
	})},
	{verb: "ibv_alloc_mw", what: "type 2, invalidated by its owner, then bound again and written through",
		call: windowed(func(w *windows) error {
			mw := w.Window()
			mw.RKey = w.BindOn(w.p.B, w.p.BSend, mw, w.there)
			w.Check(w.invalidate(mw.RKey))
			return w.write(w.BindOn(w.p.B, w.p.BSend, mw, w.there))
		})},
	{verb: "ibv_alloc_mw", what: "type 2, invalidated by its owner, then written through",
		call: windowed(func(w *windows) error {
			key := w.Bound(w.p.B, w.p.BSend, w.there)
			w.Check(w.invalidate(key))
			return w.write(key)
		})},
	{verb: "ibv_alloc_mw", what: "type 2, invalidated by the peer, then written through",
		call: windowed(func(w *windows) error {
			key, _ := w.invalidatedByPeer()
			return w.write(key)
		})},
	{verb: "ibv_alloc_mw", what: "type 2, invalidated by the peer, and the receiver gets the key",
		call: windowed(func(w *windows) error {
			key, wc := w.invalidatedByPeer()
			if reported := *wc.InvalidatedRKey(); reported != key {
				return failed("another key")
			}
			if wc.WCFlags&ibv.WC_WITH_INV == 0 {
				return failed("flags " + wc.WCFlags.String())
			}
			return nil
		})},
	{verb: "ibv_alloc_mw", what: "type 2, invalidated while a window of type 1 is bound there",
		call: windowed(func(w *windows) error {
			mw := w.window(ibv.MW_TYPE_1)
			w.Check(w.bind(mw, w.there, 0, bufferLen, window))
			return w.invalidate(mw.RKey)
		})},
	{verb: "ibv_alloc_mw", what: "type 2, written through on another queue pair than it was bound on",
		call: windowed(func(w *windows) error {
			other := w.Pair(ibv.QPT_RC)
			return w.write(w.Bound(other.B, other.BSend, w.there))
		})},
}

// window has the access flags of windows.
const window = ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ

// windows is a fixture in which B binds windows to the remote buffer, and A writes through them.
type windows struct {
	*testbed.Testbed
	p           *testbed.Pair
	here, there *testbed.Buffer
}

func windowed(f func(*windows) error) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		w := &windows{Testbed: r, p: r.Pair(ibv.QPT_RC), here: r.Buffer(bufferLen, local),
			there: r.Buffer(bufferLen, remote|ibv.ACCESS_MW_BIND)}
		copy(w.here.Bytes, pattern())
		return f(w)
	}
}

func (w *windows) window(kind ibv.MWType) *ibv.MW {
	mw, err := verbs.AllocMW(w.PD, kind)
	w.Check(err)
	w.Defer(func() { w.Check(verbs.DeallocMW(mw)) })
	return mw
}

// bind binds a type 1 window and waits for completion.
func (w *windows) bind(mw *ibv.MW, to *testbed.Buffer, from, length int, access ibv.AccessFlags) error {
	err := verbs.BindMW(w.p.B, mw, &ibv.MWBind{WRID: 9, SendFlags: ibv.SEND_SIGNALED, BindInfo: ibv.MWBindInfo{
		MR: ibv.PtrTo(to.MR), Addr: to.Address(from), Length: uint64(length), MWAccessFlags: access,
	}})
	if err != nil {
		return err
	}
	return w.completed(w.p.BSend)
}

// write makes A write to the remote buffer with a key.
func (w *windows) write(key uint32) error {
	l := w.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_RDMA_WRITE, ibv.SEND_SIGNALED, w.here.SGE(0, moved)
	*l.WRs[0].WR.RDMA() = ibv.SendRDMA{RemoteAddr: w.there.Address(0), RKey: key}
	return w.post(l, w.p.A, w.p.ASend)
}

// invalidate makes B invalidate the key of a bound window.
func (w *windows) invalidate(key uint32) error {
	l := w.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.WRs[0].NumSGE = ibv.WR_LOCAL_INV, ibv.SEND_SIGNALED, 0
	*l.WRs[0].InvalidateRKey() = key
	return w.post(l, w.p.B, w.p.BSend)
}

// invalidatedByPeer binds a window at B and invalidates it with a send from A. It returns the key and B's completion.
func (w *windows) invalidatedByPeer() (key uint32, wc ibv.WC) {
	key = w.Bound(w.p.B, w.p.BSend, w.there)
	w.Recv(w.p.B, 1, w.there.SGE(0, bufferLen))
	l := w.Sends(1)
	l.WRs[0].Opcode, l.WRs[0].SendFlags, l.SGEs[0] = ibv.WR_SEND_WITH_INV, ibv.SEND_SIGNALED, w.here.SGE(0, moved)
	*l.WRs[0].InvalidateRKey() = key
	w.Check(w.post(l, w.p.A, w.p.ASend))
	wc = w.Completion(w.p.BRecv)
	w.Check(status(wc))
	return key, wc
}

func (w *windows) post(l *testbed.List, qp *ibv.QP, cq *ibv.CQ) error {
	if _, err := l.Post(qp); err != nil {
		return err
	}
	return w.completed(cq)
}

// completed returns the status of the next completion as an error.
func (w *windows) completed(cq *ibv.CQ) error {
	wc, received, err := testbed.Poll(cq, opTimeout)
	w.Check(err)
	if !received {
		return failed("no completion")
	}
	return status(wc)
}
