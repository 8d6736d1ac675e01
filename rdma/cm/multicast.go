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

// Join joins a multicast group. The ID must be bound, or have resolved an address of the group's network. A synchronous
// ID waits for the event and returns it. In the event, UD is the group's address, and Group is the number that Join
// returns; the queue pair of CreateQP is attached by then. Over RoCE v2, Linux joins only IPv4 groups and returns
// [rdma.ErrNotSupported] for others.
//
// To send, create an address handle from the event's UD.AHAttr, and pass it to PostUDSend with UD.QPNum. Receive
// buffers need 40 extra bytes at the front, which rdma.Datagram splits off. A member also receives its own messages,
// unless its queue pair has IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, which not every device supports.
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

// JoinIB is Join by the group's GID, on ports whose link layer is InfiniBand. It ignores the address's other fields.
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
		id.attempted.Store(true)
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

// JoinIBEx is JoinEx by the group's GID, like JoinIB.
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
	// C dereferences the address, so it is part of the same allocation, which does not move.
	attr := new(struct {
		rdmacm.CMJoinMCAttrEx
		address rdmacm.SockaddrStorage
	})
	attr.CompMask, attr.JoinFlags = rdmacm.CM_JOIN_MC_ATTR_ADDRESS|rdmacm.CM_JOIN_MC_ATTR_JOIN_FLAGS, flags
	attr.address = *group
	attr.Addr = ibv.Ptr[rdmacm.Sockaddr](uintptr(unsafe.Pointer(&attr.address)))
	return id.join(ctx, verb, group, func(number uint64) error {
		id.attempted.Store(true)
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
			errnoReason{syscall.EINVAL,
				"needs a multicast address, and a datagram ID that is bound to a device"})
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

// Leave leaves a multicast group. Closing the ID leaves all groups. The ID's queue pair cannot be closed while it is
// attached to a group.
//
// C: rdma_leave_multicast
//
// Man: rdma_leave_multicast(3)
func (id *ID) Leave(group netip.AddrPort) error { return id.leaveGroup(sockaddr(group)) }

// LeaveIB is Leave for a group joined with JoinIB.
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
	return id.failed(verb, id.leave(group), errnoReason{syscall.EADDRNOTAVAIL, "the ID has not joined the group"})
}

// leaveGroups leaves all groups and adds their number to left.
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
	defer id.lockCalls().Unlock() // C waits for its events to be acknowledged
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
