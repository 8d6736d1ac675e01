// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Retry returns a new ID for another attempt to connect, and closes this one: C connects an ID only once, even after a
// rejection. The new ID takes over everything that this one has created: its queue pair, its shared receive queue and
// their completion queues, and with them the memory regions in its domain. It has the same event channel, or is
// synchronous if this one is, and the same value. Continue with ResolveAddr, which must lead to the same device. Set
// options again.
//
// The queue pair is in RESET until ResolveRoute makes it ready for receives again. Post receives again: the rejection
// has flushed the earlier ones, whose completions can still be polled. Retry is for the connecting side, and not for
// datagrams. If it fails to close this ID, it returns the new one and the error.
//
// C: rdma_create_id, rdma_destroy_id
//
// Man: rdma_create_id(3)
func (id *ID) Retry() (*ID, error) {
	next, err := id.successor()
	if err != nil {
		return nil, err
	}
	return next, id.Close()
}

func (id *ID) successor() (*ID, error) {
	const verb = "rdma_create_id"
	if err := id.use(verb, id.name); err != nil {
		return nil, err
	}
	defer id.done()
	if id.c.QPType == ibv.QPT_UD {
		return nil, verberr.Invalid(verb, id.name(), "the ID is for datagrams, which have no connection")
	}
	var next *ID
	var err error
	if id.Synchronous() {
		next, err = CreateIDOn(id.backend, id.ps)
	} else {
		id.mu.Lock()
		ch := id.channel
		id.mu.Unlock()
		next, err = ch.CreateID(id.ps)
	}
	if err != nil {
		return nil, err
	}
	if v := id.Value(); v != nil {
		next.SetValue(v)
	}
	if err := id.hand(next); err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// hand moves the ID's objects to another one, which is not yet shared.
func (id *ID) hand(next *ID) error {
	id.changes.Lock()
	defer id.changes.Unlock()
	id.objects.forget()
	if qp := id.objects.qp; qp != nil {
		if err := qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE); err != nil {
			return err
		}
	}
	id.mu.Lock()
	s := id.shared
	id.mu.Unlock()
	if s != nil { // the objects keep their device; the last ID closes it
		if _, err := shareDevice(s.device.C()); err != nil {
			return err
		}
		next.shared = s
	}
	own := id.objects.owner
	qp, srq := id.c.QP, id.c.SRQ
	id.alter(func() error { id.c.QP, id.c.SRQ = 0, 0; return nil })
	next.alter(func() error { next.c.QP, next.c.SRQ = qp, srq; return nil })
	next.objects, id.objects = id.objects, objects{owner: next.objects.owner}
	own.Store(next)
	id.objects.owner.Store(id)
	return nil
}

// rearm makes a queue pair that Retry has reset ready for receives, on the device of the new route.
func (id *ID) rearm() error {
	const verb = "rdma_resolve_route"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	qp := id.QP()
	if qp == nil || qp.State() != ibv.QPS_RESET || id.c.Verbs == 0 {
		return nil
	}
	id.mu.Lock()
	s := id.shared
	id.mu.Unlock()
	if s != nil && id.c.Verbs != ibv.PtrTo(s.device.C()) {
		return verberr.Invalid(verb, id.name(),
			"the route to the peer uses another device than %s, which has the ID's queue pair", s.device.Name())
	}
	attr, mask, err := id.InitQPAttr(ibv.QPS_INIT)
	if err != nil {
		return err
	}
	return qp.Modify(attr, mask)
}
