// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/runtime"
)

// Side is the side of a connection to which an address belongs.
type Side uint8

const (
	Local  Side = iota // the device's own address
	Remote             // the address of a host that the device can reach
)

// manager is the connection manager of rdma-core or of a backend.
type manager struct {
	createID           func(rdmacm.PortSpace) (*cm.ID, error)
	createEventChannel func() (*cm.EventChannel, error)
	getAddrInfo        func(ctx context.Context, node, service string, h cm.Hints) (*cm.AddrInfo, error)
}

// Device is an RDMA device that FindDevice has found. It must stay open until its peers are closed.
type Device struct {
	*rdma.Device
	manager manager
	id      *cm.ID
	local   netip.Addr // the address passed to FindDevice with Local, or invalid
}

// FindDevice returns the device that has an IP address (Local), or that the route to an address uses (Remote). host is
// an address, or a name to resolve. With Local, connections use the address as source. ctx limits the wait. The
// environment variable GOVERBS_DEVICE selects software devices, for example soft0: see package rdma/cm.
//
// C: rpma_utils_get_ibv_context
func FindDevice(ctx context.Context, side Side, host string) (*Device, error) {
	return manager{cm.CreateID, cm.CreateEventChannel, cm.GetAddrInfo}.find(ctx, side, host)
}

// FindDeviceOn is FindDevice on a software backend. A nil backend selects by GOVERBS_DEVICE, like FindDevice;
// runtime.Native selects rdma-core.
func FindDeviceOn(ctx context.Context, backend runtime.Backend, side Side, host string) (*Device, error) {
	return manager{
		func(ps rdmacm.PortSpace) (*cm.ID, error) { return cm.CreateIDOn(backend, ps) },
		func() (*cm.EventChannel, error) { return cm.CreateEventChannelOn(backend) },
		func(ctx context.Context, node, service string, h cm.Hints) (*cm.AddrInfo, error) {
			return cm.GetAddrInfoOn(ctx, backend, node, service, h)
		},
	}.find(ctx, side, host)
}

func (m manager) find(ctx context.Context, side Side, host string) (*Device, error) {
	const op = "FindDevice"
	if side != Local && side != Remote {
		return nil, invalid(op, "side %d is neither Local nor Remote", side)
	}
	at, err := m.lookup(ctx, side, net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, failed(op, err)
	}
	if at.Addr().IsUnspecified() {
		return nil, invalid(op, "%v is not the address of a single device", at.Addr())
	}
	id, err := m.createID(rdmacm.PS_TCP)
	if err != nil {
		return nil, failed(op, err)
	}
	d := &Device{manager: m, id: id}
	if side == Local {
		d.local = at.Addr()
		err = id.Bind(at)
	} else {
		err = id.ResolveAddr(ctx, netip.AddrPort{}, at, defaultTimeout)
	}
	if err == nil {
		d.Device, err = id.Device()
	}
	if err != nil {
		id.Close()
		return nil, failed(op, err)
	}
	return d, nil
}

const defaultTimeout = defaultTimeoutMS * time.Millisecond

func (d *Device) created() bool { return d != nil && d.Device != nil && d.id != nil }

// Close closes the device. Close its peers first.
func (d *Device) Close() error {
	const op = "Device.Close"
	if !d.created() {
		return notCreated(op)
	}
	return failed(op, d.id.Close())
}

// lookup resolves "host:port". An empty host means all addresses.
func (m manager) lookup(ctx context.Context, side Side, address string) (netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" && side == Local {
		host = netip.IPv6Unspecified().String()
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if port, err := strconv.ParseUint(service, 10, 16); err == nil {
			return netip.AddrPortFrom(ip, uint16(port)), nil
		}
	}
	h := cm.Hints{PortSpace: rdmacm.PS_TCP}
	if side == Local {
		h.Flags = rdmacm.RAI_PASSIVE
	}
	answer, err := m.getAddrInfo(ctx, host, service, h)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer answer.Close()
	if side == Local {
		return answer.Source(), nil
	}
	return answer.Destination(), nil
}
