package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// mcastGroup is a multicast group that a queue pair receives.
type mcastGroup struct {
	gid ibv.GID
	lid uint16
}

// AttachMcast lets a queue pair of type UD receive what is sent to a multicast group: a GID that begins with ff, and on InfiniBand the LID of
// the group, which the subnet manager gives. On Ethernet lid is 0, and the GID of an IPv4 group is its address as IPv6 has it, behind
// ::ffff. To attach again does nothing. Joining the group on the network is another thing: on InfiniBand and Ethernet alike rdma_cm does it.
//
// Close of the queue pair detaches it from all its groups.
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

// DetachMcast ends what AttachMcast began.
//
// C: ibv_detach_mcast
//
// Man: ibv_attach_mcast(3)
func (q *QP) DetachMcast(gid ibv.GID, lid uint16) error {
	return q.mcast("ibv_detach_mcast", gid, lid, libibverbs.DetachMcast, func(g mcastGroup) { delete(q.groups, g) })
}

func (q *QP) mcast(verb string, gid ibv.GID, lid uint16, call func(*ibv.QP, *ibv.GID, uint16) error, note func(mcastGroup)) error {
	if kind := q.kind; kind != ibv.QPT_UD {
		return q.cannot(verb, fmt.Sprintf("only queue pairs of type UD receive multicasts, and not %s", wq.ShortName(kind)))
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
	note(mcastGroup{gid, lid})
	return nil
}

// leaveGroups detaches the queue pair from all multicast groups: C does not destroy one that is attached. The caller holds changes.
func (q *QP) leaveGroups() {
	for g := range q.groups {
		if libibverbs.DetachMcast(q.c, &g.gid, g.lid) == nil {
			delete(q.groups, g)
		}
	}
}
