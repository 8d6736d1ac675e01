// SPDX-License-Identifier: BSD-2-Clause

package valkeyrdma

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/stream"
)

// Dial connects to a server at "host:port", with the defaults of [Config].
func Dial(ctx context.Context, address string) (*Conn, error) {
	return (*Config)(nil).Dial(ctx, address)
}

// Dial connects to a server at "host:port". If a host has several addresses, Dial tries them in order.
func (c *Config) Dial(ctx context.Context, address string) (*Conn, error) {
	config, err := c.complete()
	if err != nil {
		return nil, err
	}
	all, err := lookup(ctx, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "rdma", Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, config.HandshakeTimeout)
	defer cancel()
	for _, to := range all {
		var conn *Conn
		if conn, err = config.dial(ctx, to); err == nil {
			return conn, nil
		}
		err = &net.OpError{Op: "dial", Net: "rdma", Addr: stream.Addr{AddrPort: to}, Err: err}
	}
	return nil, err
}

// lookup resolves "host:port". An empty host means all addresses.
func lookup(ctx context.Context, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	ips := []netip.Addr{netip.IPv6Unspecified()}
	if host != "" {
		if ips, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
			return nil, err
		}
	}
	var all []netip.AddrPort
	for _, ip := range ips {
		all = append(all, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
	return all, nil
}

// dial connects to one address.
func (c Config) dial(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	id, err := cm.CreateIDOn(c.Backend, rdmacm.PS_TCP)
	if err != nil {
		return nil, err
	}
	conn := newConn(id, c, false)
	if err := conn.connect(ctx, to); err != nil {
		if left := conn.release(); left != nil {
			err = errors.Join(err, left)
		}
		return nil, err
	}
	conn.start()
	return conn, nil
}

func (c *Conn) connect(ctx context.Context, to netip.AddrPort) error {
	err := c.id.ResolveAddr(ctx, netip.AddrPortFrom(c.config.Local, 0), to, c.config.HandshakeTimeout)
	if err != nil {
		return err
	}
	if err := c.id.SetAckTimeout(ackTimeout); err != nil {
		return err
	}
	if err := c.id.ResolveRoute(ctx, c.config.HandshakeTimeout); err != nil {
		return err
	}
	if err := c.open(); err != nil {
		return err
	}
	return c.id.Connect(ctx, connParam(), nil)
}

// open creates the objects of a connection. Its ID must have a device.
func (c *Conn) open() error {
	return c.link.open(c.id, c.config.Buffer)
}

// connParam returns the parameters of connections. Soft-RoCE treats 7 retries as infinite.
func connParam() *rdmacm.ConnParam {
	return &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 6, RNRRetryCount: infiniteRetry}
}
