// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// Join joins a multicast group. The ID must be bound, or an address of the group's network resolved. The event has the
// address of the group (UD), and its Group is the number that Join returns. By then the queue pair of CreateQP is
// attached. A synchronous ID waits for the event and returns it. Over RoCE v2, Linux joins only groups of IPv4; others
// return [rdma.ErrNotSupported].
//
// To send, create an address handle from the event's UD.AHAttr, and pass it to PostUDSend with UD.QPNum. A receive
// needs 40 bytes before the message, which rdma.Datagram splits off. A member also receives its own messages, unless
// its queue pair has IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, which not every device supports.
//
// C: rdma_join_multicast
//
// Man: rdma_join_multicast(3)
func (id *ID) Join(ctx context.Context, group netip.AddrPort) (number uint64, e Event, err error) {
	const verb = "rdma_join_multicast"
	if err := isAddress(verb, "the group's address", group); err != nil {
		return 0, Event{}, err
	}
	return id.joinPlain(ctx, verb, sockaddr(group))
}

// JoinIB is Join for a group by its GID, on ports with InfiniBand's link layer. It ignores the other fields of the
// address.
//
// C: rdma_join_multicast
//
// Man: rdma_join_multicast(3)
func (id *ID) JoinIB(ctx context.Context, group IBAddr) (number uint64, e Event, err error) {
	return id.joinPlain(ctx, "rdma_join_multicast", group.sockaddr())
}

func (id *ID) joinPlain(ctx context.Context, verb string, group *rdmacm.SockaddrStorage) (number uint64, e Event,
	err error) {
	return id.join(ctx, verb, group, func(number uint64) error {
		id.begun.Store(true)
		return librdmacm.JoinMulticast(id.c, header(group), uintptr(number))
	})
}

// JoinEx is Join with flags. With RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, the queue pair is not attached and can only
// send to the group.
//
// C: rdma_join_multicast_ex
//
// Man: rdma_join_multicast_ex(3)
func (id *ID) JoinEx(ctx context.Context, group netip.AddrPort, flags rdmacm.CMMCJoinFlags) (number uint64, e Event,
	err error) {
	const verb = "rdma_join_multicast_ex"
	if err := isAddress(verb, "the group's address", group); err != nil {
		return 0, Event{}, err
	}
	return id.joinEx(ctx, verb, sockaddr(group), flags)
}

// JoinIBEx is JoinEx of a group by its GID, as JoinIB.
//
// C: rdma_join_multicast_ex
//
// Man: rdma_join_multicast_ex(3)
func (id *ID) JoinIBEx(ctx context.Context, group IBAddr, flags rdmacm.CMMCJoinFlags) (number uint64, e Event,
	err error) {
	return id.joinEx(ctx, "rdma_join_multicast_ex", group.sockaddr(), flags)
}

func (id *ID) joinEx(ctx context.Context, verb string, group *rdmacm.SockaddrStorage,
	flags rdmacm.CMMCJoinFlags) (number uint64, e Event, err error) {
	// C dereferences the address, so the structure and the address are in one piece of memory that does not move.
	attr := new(struct {
		rdmacm.CMJoinMCAttrEx
		address rdmacm.SockaddrStorage
	})
	attr.CompMask, attr.JoinFlags = rdmacm.CM_JOIN_MC_ATTR_ADDRESS|rdmacm.CM_JOIN_MC_ATTR_JOIN_FLAGS, flags
	attr.address = *group
	attr.Addr = ibv.Ptr[rdmacm.Sockaddr](uintptr(unsafe.Pointer(&attr.address)))
	return id.join(ctx, verb, group, func(number uint64) error {
		id.begun.Store(true)
		return librdmacm.JoinMulticastEx(id.c, &attr.CMJoinMCAttrEx, uintptr(number))
	})
}

func (id *ID) join(ctx context.Context, verb string, group *rdmacm.SockaddrStorage,
	do func(number uint64) error) (number uint64, e Event, err error) {
	id.mu.Lock()
	id.joins++
	number = id.joins
	id.mu.Unlock()
	e, err = id.beginEvent(ctx, verb, func() error {
		err := id.failed(verb, do(number),
			because{syscall.EINVAL,
				"it needs the address of a multicast group, and an ID for datagrams that is bound to a device"})
		if err == nil {
			id.mu.Lock()
			defer id.mu.Unlock()
			if id.groups == nil {
				id.groups = map[rdmacm.SockaddrStorage]int{}
			}
			id.groups[*group]++
		}
		return err
	}, rdmacm.CM_EVENT_MULTICAST_JOIN)
	return number, e, err
}

// Leave leaves a multicast group. Closing the ID leaves all groups. Its queue pair cannot be closed while it is
// attached to one.
//
// C: rdma_leave_multicast
//
// Man: rdma_leave_multicast(3)
func (id *ID) Leave(group netip.AddrPort) error { return id.leaveGroup(sockaddr(group)) }

// LeaveIB is Leave for a group of JoinIB.
//
// C: rdma_leave_multicast
//
// Man: rdma_leave_multicast(3)
func (id *ID) LeaveIB(group IBAddr) error { return id.leaveGroup(group.sockaddr()) }

func (id *ID) leaveGroup(group *rdmacm.SockaddrStorage) error {
	const verb = "rdma_leave_multicast"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	return id.failed(verb, id.leave(group), because{syscall.EADDRNOTAVAIL, "it has not joined the group"})
}

// leaveGroups leaves all groups, and counts them.
func (id *ID) leaveGroups(left *int) error {
	for {
		id.mu.Lock()
		var group rdmacm.SockaddrStorage
		for group = range id.groups {
			break
		}
		none := len(id.groups) == 0
		id.mu.Unlock()
		if none {
			return nil
		}
		if err := id.leave(&group); err != nil {
			return err
		}
		*left++
	}
}

func (id *ID) leave(group *rdmacm.SockaddrStorage) error {
	id.record.RLock()
	defer id.record.RUnlock()
	defer id.lockCalls().Unlock() // C waits for acknowledgements
	if err := librdmacm.LeaveMulticast(id.c, header(group)); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.groups[*group]--; id.groups[*group] <= 0 {
		delete(id.groups, *group)
	}
	return nil
}
