// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Retry returns a new ID for another attempt to connect, and closes this one: C connects an ID only once, even after a
// rejection. The new ID takes over the queue pair, shared receive queue and completion queues, so memory regions in
// their domain stay usable. It is on the same event channel, or synchronous like this one, and has the same value. Set
// options again, and continue with ResolveAddr, which must find the same device.
//
// The queue pair is in RESET until ResolveRoute makes it ready for receives. Post receives again: the rejection has
// flushed the earlier ones, whose completions can still be polled. Retry is for the connecting side, and not for
// datagrams. If it fails to close this ID, it returns both the new ID and an error.
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
		return nil, verberr.Invalid(verb, id.name(), "the ID is for datagrams: only connections can be retried")
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
	if err := id.moveObjects(next); err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return next, nil
}

// moveObjects moves the ID's objects to next, which is not yet shared.
func (id *ID) moveObjects(next *ID) error {
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
	if s != nil { // the objects need the device, which the last ID on it closes
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

// rearm moves a queue pair that Retry has reset to INIT, which allows receives. It checks that the new route uses the
// same device.
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
			"the route to the peer uses another device than the ID's queue pair, %s", s.device.Name())
	}
	attr, mask, err := id.InitQPAttr(ibv.QPS_INIT)
	if err != nil {
		return err
	}
	return qp.Modify(attr, mask)
}
