package cm

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
)

// Bind binds the ID to an address of this machine; one that is not specified means all devices, port 0 one that is free.
//
// C: rdma_bind_addr
//
// Man: rdma_bind_addr(3)
func (id *ID) Bind(local netip.AddrPort) error {
	const verb = "rdma_bind_addr"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	err := librdmacm.BindAddr(id.c, header(sockaddr(local)))
	reason := ""
	switch {
	case errors.Is(err, eaddrinuse):
		reason = id.owner(local, "somebody listens there")
	case errors.Is(err, eaddrnotavail):
		reason = "it is no address of this machine"
	case errors.Is(err, enodev):
		reason = "there is no RDMA device on the network interface of that address"
	}
	return explain(verb, "ID "+local.String(), reason, err)
}

// owner says who has an address, where the backend knows.
func (id *ID) owner(at netip.AddrPort, otherwise string) string {
	if b, ok := id.backend.(interface {
		AddressOwner(*rdmacm.CMID, netip.AddrPort) string
	}); ok {
		if owner := b.AddressOwner(id.c, at); owner != "" {
			return owner
		}
	}
	return otherwise
}

// milliseconds is a timeout as C takes it: rounded up.
func milliseconds(d time.Duration) int {
	return int(min((d+time.Millisecond-1)/time.Millisecond, 1<<31-1))
}

// ResolveAddr finds the device and the own address by which a peer is reached, and binds the ID to it. source, which may be not valid, is
// the address to start from. timeout is for the network.
//
// C: rdma_resolve_addr
//
// Man: rdma_resolve_addr(3)
func (id *ID) ResolveAddr(ctx context.Context, source, peer netip.AddrPort, timeout time.Duration) error {
	const verb = "rdma_resolve_addr"
	var from *rdmacm.Sockaddr
	if source.IsValid() {
		from = header(sockaddr(source))
	}
	return id.begin(ctx, verb, func() error {
		err := librdmacm.ResolveAddr(id.c, from, header(sockaddr(peer)), milliseconds(timeout))
		reason := ""
		switch {
		case errors.Is(err, enodev):
			reason = "there is no RDMA device on the way to " + peer.Addr().String()
		case errors.Is(err, enetunreach), errors.Is(err, ehostunreach):
			reason = "there is no route to " + peer.Addr().String()
		}
		return explain(verb, id.name(), reason, err)
	}, rdmacm.CM_EVENT_ADDR_RESOLVED)
}

// ResolveRoute finds the path to the peer whose address was resolved.
//
// C: rdma_resolve_route
//
// Man: rdma_resolve_route(3)
func (id *ID) ResolveRoute(ctx context.Context, timeout time.Duration) error {
	const verb = "rdma_resolve_route"
	return id.begin(ctx, verb, func() error {
		if id.c.Verbs == 0 { // which C follows
			return invalid(verb, id.name(), "its address is not resolved yet")
		}
		return librdmacm.ResolveRoute(id.c, milliseconds(timeout))
	}, rdmacm.CM_EVENT_ROUTE_RESOLVED)
}
