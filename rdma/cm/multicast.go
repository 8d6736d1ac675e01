package cm

import (
	"context"
	"net/netip"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// Join joins a multicast group; the ID is bound, or an address of the group's network is resolved. The event tells how the group is reached
// (UD), and has the number that Join gives as its Group; by then the queue pair that CreateQP made is attached. A synchronous ID waits for
// it and gives it.
//
// C: rdma_join_multicast
//
// Man: rdma_join_multicast(3)
func (id *ID) Join(ctx context.Context, group netip.AddrPort) (number uint64, e Event, err error) {
	address := header(sockaddr(group))
	return id.join(ctx, "rdma_join_multicast", group, func(number uint64) error {
		return librdmacm.JoinMulticast(id.c, address, uintptr(number))
	})
}

// JoinEx is Join with flags: with RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER the queue pair is not attached, and only sends to the group.
//
// C: rdma_join_multicast_ex
//
// Man: rdma_join_multicast_ex(3)
func (id *ID) JoinEx(ctx context.Context, group netip.AddrPort, flags rdmacm.CMMCJoinFlags) (number uint64, e Event, err error) {
	// C follows the address, so the structure and what it names stay in one piece of memory that does not move.
	attr := new(struct {
		rdmacm.CMJoinMCAttrEx
		address rdmacm.SockaddrStorage
	})
	attr.CompMask, attr.JoinFlags = rdmacm.CM_JOIN_MC_ATTR_ADDRESS|rdmacm.CM_JOIN_MC_ATTR_JOIN_FLAGS, flags
	attr.address = *sockaddr(group)
	attr.Addr = ibv.Ptr[rdmacm.Sockaddr](uintptr(unsafe.Pointer(&attr.address)))
	return id.join(ctx, "rdma_join_multicast_ex", group, func(number uint64) error {
		return librdmacm.JoinMulticastEx(id.c, &attr.CMJoinMCAttrEx, uintptr(number))
	})
}

func (id *ID) join(ctx context.Context, verb string, group netip.AddrPort, do func(number uint64) error) (number uint64, e Event, err error) {
	if err := isAddress(verb, "the group's address", group); err != nil {
		return 0, Event{}, err
	}
	id.mu.Lock()
	id.joins++
	number = id.joins
	id.mu.Unlock()
	e, err = id.beginEvent(ctx, verb, func() error {
		err := id.failed(verb, do(number), because{einval, "it takes the address of a multicast group, and an ID of datagrams that is bound to a device"})
		if err == nil {
			id.mu.Lock()
			defer id.mu.Unlock()
			if id.groups == nil {
				id.groups = map[netip.AddrPort]int{}
			}
			id.groups[asInC(group)]++
		}
		return err
	}, rdmacm.CM_EVENT_MULTICAST_JOIN)
	return number, e, err
}

// Leave leaves a multicast group. Closing the ID leaves all; its queue pair cannot be closed before while it is attached to one.
//
// C: rdma_leave_multicast
//
// Man: rdma_leave_multicast(3)
func (id *ID) Leave(group netip.AddrPort) error {
	const verb = "rdma_leave_multicast"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	return id.failed(verb, id.leave(group), because{eaddrnotavail, "it has not joined the group"})
}

// asInC is an address as it is found in C's memory: there are several ways to write it.
func asInC(a netip.AddrPort) netip.AddrPort { return addrPort(header(sockaddr(a))) }

// leaveGroups leaves all groups.
func (id *ID) leaveGroups() error {
	for {
		id.mu.Lock()
		var group netip.AddrPort
		for group = range id.groups {
			break
		}
		id.mu.Unlock()
		if !group.IsValid() {
			return nil
		}
		if err := id.leave(group); err != nil {
			return err
		}
	}
}

func (id *ID) leave(group netip.AddrPort) error {
	defer id.lockCalls().calls.Unlock() // C waits for acknowledgements
	if err := librdmacm.LeaveMulticast(id.c, header(sockaddr(group))); err != nil {
		return err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	group = asInC(group)
	if id.groups[group]--; id.groups[group] <= 0 {
		delete(id.groups, group)
	}
	return nil
}
