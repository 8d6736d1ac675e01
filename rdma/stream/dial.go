// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/internal/chosen"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
	"github.com/goverbs/goverbs/runtime"
)

// Dialer connects to listeners. The zero value means the defaults.
type Dialer struct {
	Config
	// LocalAddr is the source address. The zero value selects the address of the route to the peer and a free port. A
	// port without an address is allowed. On the software devices the default source is the peer's own address, so both
	// sides are on one device; with 127.0.0.1 here and a listener at 127.0.0.2, they are on soft0 and soft1.
	LocalAddr netip.AddrPort
}

// Dial connects to the listener at "host:port", with the defaults of [Dialer].
func Dial(ctx context.Context, address string) (*Conn, error) {
	return new(Dialer).Dial(ctx, address)
}

// Dial connects to the listener at "host:port". If the host has several addresses, Dial tries them in order.
func (d *Dialer) Dial(ctx context.Context, address string) (*Conn, error) {
	return d.dialHost(ctx, "ip", address)
}

// DialContext is Dial with the signature of net.Dialer's method, for example for http.Transport. The network is "tcp"
// or "rdma"; a suffix 4 or 6 selects the address family. The result is a [*Conn].
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	family, ok := networks[network]
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
	}
	c, err := d.dialHost(ctx, family, address)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// networks maps the networks of DialContext to those of net.Resolver.
var networks = map[string]string{
	"tcp": "ip", "tcp4": "ip4", "tcp6": "ip6", "rdma": "ip", "rdma4": "ip4", "rdma6": "ip6",
}

func (d *Dialer) dialHost(ctx context.Context, family, address string) (*Conn, error) {
	config, err := d.Config.complete()
	if err != nil {
		return nil, err
	}
	all, err := config.lookup(ctx, family, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "rdma", Err: err}
	}
	var errs []error
	for _, to := range all {
		conn, err := config.dial(ctx, d.LocalAddr, Addr{to})
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return nil, errors.Join(errs...)
}

// DialIB connects to a listener of [ListenConfig.ListenIB] at an AF_IB address, on ports whose link layer is
// InfiniBand: see [cm.IBAddr].
func (d *Dialer) DialIB(ctx context.Context, to cm.IBAddr) (*Conn, error) {
	config, err := d.Config.completeIB()
	if err != nil {
		return nil, err
	}
	return config.dial(ctx, d.LocalAddr, to)
}

// lookup resolves "host:port" to addresses of a family. An empty host means all addresses. On a software backend,
// device names are host names.
func (c *Config) lookup(ctx context.Context, family, address string) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		n, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
		if err != nil {
			return nil, err
		}
		port = uint64(n)
	}
	if host == "" {
		all := netip.IPv6Unspecified()
		if family == "ip4" {
			all = netip.IPv4Unspecified()
		}
		return []netip.AddrPort{netip.AddrPortFrom(all, uint16(port))}, nil
	}
	ips := make([]netip.Addr, 1)
	if ips[0], err = netip.ParseAddr(host); err != nil && chosen.IsSoftware(c.Backend) {
		if ips[0], err = softHost(ctx, c.Backend, host); err != nil {
			return nil, err
		}
	} else if err != nil {
		if ips, err = net.DefaultResolver.LookupNetIP(ctx, family, host); err != nil {
			return nil, err
		}
	}
	var all []netip.AddrPort
	for _, ip := range ips {
		if ip = ip.Unmap(); family == "ip" || ip.Is4() == (family == "ip4") {
			all = append(all, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	if len(all) == 0 {
		return nil, &net.AddrError{Err: "no suitable address found", Addr: host}
	}
	return all, nil
}

// softHost returns the address of a device name on a software backend.
func softHost(ctx context.Context, backend runtime.Backend, name string) (netip.Addr, error) {
	found, err := cm.GetAddrInfoOn(ctx, backend, name, "", cm.Hints{})
	if err != nil {
		return netip.Addr{}, err
	}
	defer found.Close()
	return found.Destination().Addr(), nil
}

// dial connects to one address, an [Addr] or an [cm.IBAddr].
func (c Config) dial(ctx context.Context, from netip.AddrPort, to net.Addr) (*Conn, error) {
	conn, err := c.dialOnce(ctx, from, to)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "rdma", Addr: to, Err: err}
	}
	return conn, nil
}

func (c Config) dialOnce(ctx context.Context, from netip.AddrPort, to net.Addr) (*Conn, error) {
	id, err := newEndpoint(c.Backend)
	if err != nil {
		return nil, err
	}
	conn := newConn(id, c)
	if err := conn.connect(ctx, from, to); err != nil {
		if left := conn.release(); left != nil {
			err = errors.Join(err, left)
		}
		return nil, err // errors.Join would hide Timeout, which net.OpError calls
	}
	conn.start()
	return conn, nil
}

// options applies the configuration's options to an ID.
func (c *Config) options(id *cm.ID) error {
	if c.ToS != 0 {
		if err := id.SetToS(c.ToS); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) connect(ctx context.Context, from netip.AddrPort, to net.Addr) error {
	timeout := c.config.HandshakeTimeout
	if until, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(until), time.Millisecond))
	}
	if err := c.config.options(c.id.ID); err != nil {
		return err
	}
	if err := c.id.resolve(ctx, from, to, timeout); err != nil {
		return err
	}
	if err := c.id.SetAckTimeout(c.config.AckTimeout); err != nil {
		return err
	}
	if err := c.id.resolveRoute(ctx, timeout); err != nil {
		return err
	}
	if err := c.open(oneRead, false); err != nil {
		return err
	}
	step, cancel := context.WithTimeout(ctx, c.config.HandshakeTimeout)
	defer cancel()
	answer, err := c.id.connect(step, streamParam(c.link.Reads), c.protocol.Hello())
	switch {
	case err != nil && ctx.Err() == nil && step.Err() != nil:
		return noAnswer{c.id.NoAnswerHint()}
	case err != nil:
		return c.explainRejection(err)
	}
	c.mu.Lock() // messages of the peer may already have arrived
	defer c.mu.Unlock()
	c.link.Reads = c.link.Reads.AtMost(readsOf(answer))
	return c.protocol.ParseHello(answer.PrivateData)
}

// oneRead limits a stream to one outstanding RDMA READ: it fetches one piece at a time.
var oneRead = protocol.Reads{Ours: 1, Theirs: 1}

// readsOf returns the peer's read limits, which the event contains.
func readsOf(e cm.Event) protocol.Reads {
	return protocol.Reads{Ours: e.Conn.InitiatorDepth, Theirs: e.Conn.ResponderResources}
}

// open creates the connection's objects; its ID has a device. reads are the peer's read limits, if known. passive is true
// for an accepted connection.
func (c *Conn) open(reads protocol.Reads, passive bool) error {
	if err := c.share(); err != nil {
		return err
	}
	return c.protocol.Open(c.id, protocol.Options{Buffer: c.config.Buffer, Maps: c.config.Maps, CQ: c.poller.cq,
		Key: c.key, Pool: &c.shared.pool, Reads: reads.AtMost(c.shared.maxReads()), Passive: passive,
		// A software device does not copy or pin memory. Adapters pin it, because on-demand paging is slow.
		OnDemand: chosen.IsSoftware(c.config.Backend)})
}

// streamParam returns the connection parameters of streams. It limits reads, because a device allocates memory for each
// outstanding one, and retries to six, because Soft-RoCE treats 7 as unlimited.
func streamParam(reads protocol.Reads) *rdmacm.ConnParam {
	p := cm.DefaultConnParam()
	p.InitiatorDepth, p.ResponderResources = reads.Ours, reads.Theirs
	p.RetryCount = 6
	return &p
}

// noAnswer is the error for a listener that exceeds HandshakeTimeout. hint has likely causes.
type noAnswer struct{ hint string }

func (e noAnswer) Error() string {
	return "rdma_connect: no answer from the listener: " + e.hint + ": " + syscall.ETIMEDOUT.Error()
}
func (noAnswer) Unwrap() error { return syscall.ETIMEDOUT }
func (noAnswer) Timeout() bool { return true }

// explainRejection adds the listener's reason to a rejection.
func (c *Conn) explainRejection(err error) error {
	var e *cm.EventError
	if !errors.As(err, &e) || e.Event.Type != rdmacm.CM_EVENT_REJECTED {
		return err
	}
	why := e.Event.PrivateData
	for len(why) > 0 && why[len(why)-1] == 0 {
		why = why[:len(why)-1]
	}
	if len(why) == 0 {
		return err
	}
	return fmt.Errorf("%w: the listener's reason: %q", err, why)
}
