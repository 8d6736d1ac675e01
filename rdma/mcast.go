// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// mcastGroup is a multicast group that a queue pair is attached to.
type mcastGroup struct {
	gid ibv.GID
	lid uint16
}

// AttachMcast attaches a queue pair of type UD to a multicast group, so that it receives the group's messages. The
// first byte of gid is ff; for an IPv4 group on Ethernet, gid is the IPv4-mapped address (::ffff:224.0.0.1). On
// InfiniBand, lid is the LID that the subnet manager assigned to the group; on Ethernet it is 0. Attaching again does
// nothing. AttachMcast does not join the group on the network: use package rdma/cm for that.
//
// Closing the queue pair detaches it from all groups.
//
// C: ibv_attach_mcast
//
// Man: ibv_attach_mcast(3)
func (q *QP) AttachMcast(gid ibv.GID, lid uint16) error {
	return q.mcast("ibv_attach_mcast", gid, lid, libibverbs.AttachMcast, func(g mcastGroup) {
		if q.groups == nil {
			q.groups = map[mcastGroup]bool{}
		}
		q.groups[g] = true
	})
}

// DetachMcast detaches the queue pair from a group.
//
// C: ibv_detach_mcast
//
// Man: ibv_attach_mcast(3)
func (q *QP) DetachMcast(gid ibv.GID, lid uint16) error {
	return q.mcast("ibv_detach_mcast", gid, lid, libibverbs.DetachMcast, func(g mcastGroup) { delete(q.groups, g) })
}

func (q *QP) mcast(verb string, gid ibv.GID, lid uint16, call func(*ibv.QP, *ibv.GID, uint16) error,
	record func(mcastGroup)) error {
	if kind := q.kind; kind != ibv.QPT_UD {
		return q.cannot(verb, fmt.Sprintf("type %s cannot receive multicasts; only UD can",
			refusal.ShortName(kind)))
	}
	if err := q.use(verb); err != nil {
		return err
	}
	defer q.done()
	q.changes.Lock()
	defer q.changes.Unlock()
	if err := call(q.c, &gid, lid); err != nil {
		return wrap(verb, q.name, err)
	}
	record(mcastGroup{gid, lid})
	return nil
}

// leaveGroups detaches the queue pair from all multicast groups, because C does not destroy an attached queue pair. The
// caller holds changes.
func (q *QP) leaveGroups() {
	for g := range q.groups {
		if libibverbs.DetachMcast(q.c, &g.gid, g.lid) == nil {
			delete(q.groups, g)
		}
	}
}
