// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// endpoint has the attributes that IDs of requests get.
type endpoint struct {
	pd      *rdma.PD
	attr    ibv.QPInitAttr
	options rdma.QueueOptions
}

// CreateEP creates a synchronous ID from a result of [GetAddrInfo]. A passive ID is bound and ready for Listen and
// GetRequest. For other IDs, CreateEP resolves the address and route, ready for Connect. If attr is not nil, CreateEP
// creates a queue pair as CreateQP does; for a passive ID, one for each request. A nil pd means [ID.PD]. If ctx ends
// first, CreateEP returns, and C times out after some seconds.
//
// C: rdma_create_ep
//
// Man: rdma_create_ep(3)
func CreateEP(ctx context.Context, info *AddrInfo, pd *rdma.PD, attr *ibv.QPInitAttr, o rdma.QueueOptions) (*ID,
	error) {
	if info == nil {
		return nil, verberr.Invalid("rdma_create_ep", "", "the AddrInfo is nil")
	}
	if !info.list.use() {
		return nil, closedError("rdma_create_ep", "AddrInfo")
	}
	if attr != nil { // copied: the caller may change attr after ctx has ended
		own := *attr
		attr = &own
	}
	return inBackground(ctx, func() (*ID, error) {
		defer info.list.done() // info may be closed after ctx has ended
		return createEP(info, pd, attr, o)
	}, func(id *ID) { id.Close() })
}

// createEP is CreateEP. It needs no lock: the ID is not yet shared.
func createEP(info *AddrInfo, pd *rdma.PD, attr *ibv.QPInitAttr, o rdma.QueueOptions) (*ID, error) {
	const verb = "rdma_create_ep"
	backend := info.list.backend
	c := new(ibv.Ptr[rdmacm.CMID])
	if err := librdmacm.CreateEP(c, info.C, nil, nil); err != nil {
		return nil, verberr.Explain(verb, info.name(), info.reason(err), err)
	}
	// Waiting on C's own event channel would block a thread, so move the ID to one of ours.
	ch, err := CreateEventChannelOn(backend)
	if err != nil {
		return nil, errors.Join(err, librdmacm.DestroyEP(c.Deref()))
	}
	if err := librdmacm.MigrateID(c.Deref(), ch.c); err != nil {
		return nil, errors.Join(verberr.Wrap("rdma_migrate_id", "", err), librdmacm.DestroyEP(c.Deref()), ch.Close())
	}
	id := newID(ch, c.Deref(), nil)
	id.sync, id.preface = true, int(info.C.AiConnectLen)
	if attr == nil {
		return id, nil
	}
	own := *attr
	own.QPType = info.C.AiQPType
	if info.C.AiFlags&rdmacm.RAI_PASSIVE != 0 {
		id.passive = &endpoint{pd, own, o}
		return id, nil
	}
	if _, err := id.CreateQP(pd, &own, o); err != nil {
		return nil, errors.Join(err, id.Close())
	}
	return id, nil
}

// GetRequest waits for a request to a synchronous listener and returns its ID, which is also synchronous, for Accept or
// Reject. The ID has a queue pair if CreateEP received attributes for one. The event contains the peer's private data.
//
// C: rdma_get_request
//
// Man: rdma_get_request(3)
func (id *ID) GetRequest(ctx context.Context) (*ID, Event, error) {
	const verb = "rdma_get_request"
	if err := id.use(verb, id.name); err != nil {
		return nil, Event{}, err
	}
	defer id.done()
	if !id.Synchronous() {
		return nil, Event{}, verberr.Invalid(verb, id.name(),
			"the ID is asynchronous: requests arrive at its event channel")
	}
	e, err := id.await(ctx, verb, rdmacm.CM_EVENT_CONNECT_REQUEST)
	if err != nil {
		return nil, e, err
	}
	child := e.ID
	if err := child.Migrate(nil); err != nil {
		return nil, e, errors.Join(err, child.Close())
	}
	if p := child.passive; p != nil {
		if _, err := child.CreateQP(p.pd, &p.attr, p.options); err != nil {
			return nil, e, errors.Join(err, child.Close())
		}
	}
	return child, e, nil
}
