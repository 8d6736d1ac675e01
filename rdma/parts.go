// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"slices"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
)

// QPParts holds the objects and options of a queue pair that [Device.NewRC], [Device.NewUC] or [Device.NewUD] creates.
// These methods create objects for nil fields; closing the queue pair closes them as well. The zero value suits most
// programs.
type QPParts struct {
	PD      *PD          // nil: a new one, which QP.PD returns
	CQ      *CQ          // for sends and receives; nil: a new one with a channel, which QP.SendCQ returns
	SRQ     *SRQ         // nil: the queue pair has its own receive queue
	Cap     ibv.QPCap    // the zero value: 64 sends and 64 receives of one entry each
	Options QueueOptions // for posting, and for polling a completion queue created here
}

// NewRC creates a queue pair of type RC in state RESET, and the objects that it needs. Call [QP.Connect] next. Closing
// the queue pair also closes the objects that NewRC created and the regions of [QP.RegMR]. If another object depends on
// one of these, such as a region of the queue pair's PD or another queue pair on its completion queue, Close fails and
// closes nothing.
//
// C: ibv_alloc_pd, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp
//
// Man: ibv_create_qp(3)
func (d *Device) NewRC(p QPParts) (*QP, error) { return d.newQP(ibv.QPT_RC, p) }

// NewUC is like NewRC, for a queue pair of type UC.
//
// Man: ibv_create_qp(3)
func (d *Device) NewUC(p QPParts) (*QP, error) { return d.newQP(ibv.QPT_UC, p) }

// NewUD is like NewRC, for a queue pair of type UD. The queue pair is in state RTS, because it needs no connection.
//
// Man: ibv_create_qp(3)
func (d *Device) NewUD(p QPParts) (*QP, error) {
	q, err := d.newQP(ibv.QPT_UD, p)
	if err != nil {
		return nil, err
	}
	if err = q.Ready(); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// owned holds the objects that are closed together with a queue pair.
type owned struct {
	mu  sync.Mutex
	all []Object
}

func (o *owned) add(one Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = slices.DeleteFunc(o.all, func(o Object) bool { return o.itself().life.IsGone() })
	o.all = append(o.all, one)
}

func (o *owned) objects() []Object {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all)
}

func (d *Device) newQP(kind ibv.QPType, p QPParts) (q *QP, err error) {
	own := new(owned)
	defer func() {
		if err != nil {
			CloseAll(nil, own.objects()...)
		}
	}()
	if p.Cap == (ibv.QPCap{}) {
		p.Cap = DefaultCap(kind, p.SRQ != nil)
	}
	attr := &ibv.QPInitAttr{QPType: kind, Cap: p.Cap}
	entries := int(p.Cap.MaxSendWR) + int(p.Cap.MaxRecvWR)
	if p.SRQ != nil {
		attr.SRQ, attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = p.SRQ.Ptr(), 0, 0
		entries = int(p.Cap.MaxSendWR) + int(p.SRQ.Cap().MaxWR)
	}
	if p.PD == nil {
		if p.PD, err = d.AllocPD(); err != nil {
			return nil, err
		}
		own.add(p.PD)
	}
	if p.CQ == nil {
		channel, err := d.CreateCompChannel()
		if err != nil {
			return nil, err
		}
		own.add(channel)
		if p.CQ, err = d.CreateCQ(max(entries, 1), channel, 0, p.Options); err != nil {
			return nil, err
		}
		own.add(p.CQ)
	}
	attr.SendCQ, attr.RecvCQ = p.CQ.Ptr(), p.CQ.Ptr()
	if q, err = p.PD.CreateQP(attr, p.Options); err != nil {
		return nil, err
	}
	q.owned.Store(own)
	return q, nil
}

// RegMR registers a Go slice in the queue pair's protection domain, like [PD.RegMR]. Closing the queue pair also closes
// the region, after the device has stopped using its memory.
//
// C: ibv_reg_mr
//
// Man: ibv_reg_mr(3)
func (q *QP) RegMR(b []byte, access ibv.AccessFlags) (*MR, error) {
	const verb = "ibv_reg_mr"
	if err := q.use(verb); err != nil {
		return nil, err
	}
	defer q.done()
	if q.pd == nil {
		return nil, q.cannot(verb, "it has no protection domain")
	}
	mr, err := q.pd.RegMR(b, access)
	if err != nil {
		return nil, err
	}
	q.owned.CompareAndSwap(nil, new(owned))
	q.owned.Load().add(mr)
	return mr, nil
}

// parts returns the objects that are closed together with the queue pair.
func (q *QP) parts() []Object {
	if own := q.owned.Load(); own != nil {
		return own.objects()
	}
	return nil
}
