// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Bind binds the ID to a local address. An unspecified address means all devices, and port 0 means a free port.
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
	if err := isAddress(verb, "the address", local); err != nil {
		return err
	}
	err := id.withIDUpdatingName(func() error { return librdmacm.BindAddr(id.c, header(sockaddr(local))) })
	if err == nil {
		return nil
	}
	reason := id.noAddress(local, err)
	if errors.Is(err, syscall.EINVAL) && id.LocalAddr().IsValid() {
		reason = "already bound"
	}
	return verberr.Explain(verb, "ID "+local.String(), reason, err)
}

// BindIB is Bind to an AF_IB address. Link layers other than InfiniBand support only the zero GID: see [IBAddr].
//
// C: rdma_bind_addr
//
// Man: rdma_bind_addr(3)
func (id *ID) BindIB(local IBAddr) error {
	const verb = "rdma_bind_addr"
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	err := id.withIDUpdatingName(func() error { return librdmacm.BindAddr(id.c, header(local.sockaddr())) })
	if err == nil {
		return nil
	}
	reason := noIBAddress(local, err)
	if errors.Is(err, syscall.EINVAL) {
		if reason = "the kernel does not support AF_IB"; addressString(librdmacm.GetLocalAddr(id.c)) != "" {
			reason = "already bound"
		}
	}
	return verberr.Explain(verb, "ID "+local.String(), reason, err)
}

// noIBAddress explains why an ID cannot use an AF_IB address.
func noIBAddress(at IBAddr, err error) string {
	switch {
	case errors.Is(err, syscall.ENODEV):
		return "no port with link layer InfiniBand has this GID; RoCE and iWARP use IP addresses"
	case errors.Is(err, syscall.EPROTONOSUPPORT):
		return fmt.Sprintf("service ID %#x with mask %#x is not in a port space that the ID accepts", at.ServiceID,
			at.ServiceMask)
	case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
		return "the service ID is in use"
	case errors.Is(err, syscall.EACCES):
		return "ports below 1024 need CAP_NET_BIND_SERVICE"
	}
	return ""
}

// noAddress explains why an ID cannot use an address, or returns "".
func (id *ID) noAddress(at netip.AddrPort, err error) string {
	all := at.Addr().IsUnspecified()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return id.owner(at, "address in use")
	case errors.Is(err, syscall.EADDRNOTAVAIL): // Linux returns it for several reasons
		switch others := addressesOf(id.backend); {
		case !all && others != "" && !strings.Contains(others, at.Addr().Unmap().String()+" ("):
			return "not an address of this machine" + others
		case all && at.Port() == 0:
			return "no port is free"
		case all:
			return "another ID uses the port at one of the addresses"
		case at.Port() == 0:
			return "not an address of this machine, or no port is free"
		}
		return "not an address of this machine, or another ID uses the port at all addresses"
	case errors.Is(err, syscall.EINVAL) && at.Addr().Is6() && at.Addr().IsLinkLocalUnicast() && at.Addr().Zone() == "":
		return fmt.Sprintf("a link-local address needs an interface, such as %v%%eth0", at.Addr())
	case errors.Is(err, syscall.ENODEV):
		return "the address's network interface has no RDMA device"
	case errors.Is(err, syscall.EACCES):
		return "ports below 1024 need CAP_NET_BIND_SERVICE"
	}
	return ""
}

// noSource explains why an ID cannot use a source address, or returns "" if the source is not the reason. from is nil
// for any source.
func (id *ID) noSource(from *rdmacm.Sockaddr, err error) string {
	if from == nil {
		return ""
	}
	why := ""
	if a, ok := ibAddr(from); ok {
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) ||
			errors.Is(err, syscall.EACCES) {
			why = noIBAddress(a, err)
		}
	} else if at := addrPort(from); !errors.Is(err, syscall.ENODEV) || at.Addr().IsLinkLocalUnicast() {
		why = id.noAddress(at, err) // ENODEV concerns the route to the peer, except with a link-local source
	}
	if why == "" {
		return ""
	}
	return "source " + addressString(from) + ": " + why
}

// owner returns text about the ID that uses an address if the backend knows it, or else otherwise.
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

// milliseconds converts a timeout for C. It rounds up, and returns 0 for a negative timeout, which C would treat as a
// very long one.
func milliseconds(d time.Duration) int {
	const limit = (1<<31 - 1) * time.Millisecond
	return int((min(max(d, 0), limit) + time.Millisecond - 1) / time.Millisecond)
}

// ResolveAddr finds the device and local address that reach a peer, and binds the ID to them. source is the local
// address; if it is invalid, any is used. timeout limits the wait for the network's response.
//
// C: rdma_resolve_addr
//
// Man: rdma_resolve_addr(3)
func (id *ID) ResolveAddr(ctx context.Context, source, peer netip.AddrPort, timeout time.Duration) error {
	const verb = "rdma_resolve_addr"
	if err := isAddress(verb, "the peer's address", peer); err != nil {
		return err
	}
	var from *rdmacm.Sockaddr
	if source.IsValid() {
		from = header(sockaddr(source))
	}
	return id.resolveAddr(ctx, from, header(sockaddr(peer)), timeout,
		"no RDMA device has a route to "+peer.Addr().String())
}

// ResolveIBAddr is ResolveAddr with AF_IB addresses. A nil source selects a port with the peer's subnet prefix and
// partition; if there is none, the error is ENODEV. On link layers other than InfiniBand, ResolveRoute fails
// afterwards: see [IBAddr].
//
// C: rdma_resolve_addr
//
// Man: rdma_resolve_addr(3)
func (id *ID) ResolveIBAddr(ctx context.Context, source *IBAddr, peer IBAddr, timeout time.Duration) error {
	var from *rdmacm.Sockaddr
	if source != nil {
		from = header(source.sockaddr())
	}
	return id.resolveAddr(ctx, from, header(peer.sockaddr()), timeout,
		"no active port in the partition and subnet of "+
			""+peer.String()+", or the source port's link layer is not InfiniBand")
}

// resolveAddr resolves the address to; noDevice explains ENODEV.
func (id *ID) resolveAddr(ctx context.Context, from, to *rdmacm.Sockaddr, timeout time.Duration,
	noDevice string) error {
	const verb = "rdma_resolve_addr"
	_, err := id.beginBy(ctx, verb, id.withIDUpdatingName, func() error {
		err := librdmacm.ResolveAddr(id.c, from, to, milliseconds(timeout))
		reason := id.noSource(from, err)
		switch {
		case reason != "":
		case errors.Is(err, syscall.ENODEV):
			reason = noDevice
		case errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTUNREACH):
			reason = "no route to " + addressString(to)
		case errors.Is(err, syscall.EPROTONOSUPPORT):
			reason = "the service ID is not in a port space that the ID accepts"
		case errors.Is(err, syscall.EINVAL) && id.listens.Load():
			reason = "the ID is listening: connect with another ID"
		case errors.Is(err, syscall.EINVAL):
			reason = "an ID resolves only one address, of the family that it is bound to"
		}
		return verberr.Explain(verb, "", reason, err)
	}, rdmacm.CM_EVENT_ADDR_RESOLVED)
	if v, ok := err.(*rdma.VerbError); ok && v.Object == unbound {
		v.Object = "ID to " + addressString(to)
	}
	return err
}

// ResolveRoute finds the path to the peer, whose address must be resolved.
//
// C: rdma_resolve_route
//
// Man: rdma_resolve_route(3)
func (id *ID) ResolveRoute(ctx context.Context, timeout time.Duration) error {
	const verb = "rdma_resolve_route"
	if err := id.rearm(); err != nil {
		return err
	}
	return id.begin(ctx, verb, func() error {
		if id.c.Verbs == 0 { // C dereferences it
			return verberr.Invalid(verb, id.name(), "address not resolved: call ResolveAddr first")
		}
		noPath := ""
		if _, native := ibAddr(librdmacm.GetPeerAddr(id.c)); native {
			noPath = "AF_IB addresses need ports with link layer InfiniBand; RoCE uses IP addresses"
		}
		return id.failed(verb, librdmacm.ResolveRoute(id.c, milliseconds(timeout)),
			errnoReason{syscall.EINVAL, "address not resolved, or route already resolved"},
			errnoReason{syscall.ENODEV, noPath})
	}, rdmacm.CM_EVENT_ROUTE_RESOLVED)
}
