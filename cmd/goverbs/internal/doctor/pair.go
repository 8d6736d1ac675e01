// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/ping"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Pair is what was found between this host and a peer.
type Pair struct {
	Peer    string       `json:"peer"`
	Pings   *ping.Report `json:"pings"`
	PathMTU int          `json:"path_mtu,omitempty"` // bytes of the largest packets that came through
}

func (p *Pair) write(w io.Writer) {
	fmt.Fprintf(w, "peer     %s", p.Peer)
	for _, r := range p.Pings.Results {
		state := "answers"
		if r.Failure != nil {
			state = "fails"
		}
		fmt.Fprintf(w, ", %s %s", r.Kind, state)
	}
	if p.PathMTU != 0 {
		fmt.Fprintf(w, ", path MTU %d", p.PathMTU)
	}
	fmt.Fprintln(w)
}

// Probes are how a pair is examined; tests replace them.
type Probes struct {
	Ping func(ctx context.Context, o *ping.Options) (*ping.Report, error)
	// UDP asks what becomes of a datagram to RoCE's port: EPERM when a firewall of this host drops it, ECONNREFUSED and
	// the like when it is refused on the way, nil for silence.
	UDP func(ctx context.Context, peer string) error
	// TCP tries if a port can be reached at an address of the peer's from one of this host.
	TCP func(ctx context.Context, from, to netip.Addr, port int) error
}

// Real probes use the network.
var Real = Probes{Ping: ping.Run, UDP: knock, TCP: reach}

// reach connects to where goverbs serve listens at all addresses of its host, and hangs up.
func reach(ctx context.Context, from, to netip.Addr, port int) error {
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(to, uint16(port)).String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// knock sends a datagram that is no packet of RoCE, which devices drop, and waits shortly for a refusal.
func knock(ctx context.Context, peer string) error {
	const port = "4791"
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", net.JoinHostPort(peer, port))
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := conn.Write([]byte("goverbs doctor")); err != nil {
		return err
	}
	if _, err = conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// troubled says if a problem of this host's device was found: then it is what has to be mended first.
func (r *Report) troubled(device string) bool {
	return device != "" && slices.ContainsFunc(r.Findings, func(f Finding) bool {
		name, _, _ := strings.Cut(f.Where, " ")
		return f.Level == Problem && name == device
	})
}

// ExaminePair tries what works between this host and a peer, where goverbs serve runs, and adds it to a report. What
// fails for a problem of this host's device is not said twice.
func ExaminePair(ctx context.Context, probes Probes, o ping.Options, r *Report) error {
	o.Kinds, o.Count = []string{ping.RC, ping.UD}, 3
	pings, err := probes.Ping(ctx, &o)
	if err != nil {
		return err
	}
	if pings.Failed() < len(pings.Results) {
		// Where nothing of RoCE comes through, the connection manager would tell nothing new, and could do harm: behind
		// a firewall that drops what its host sends, a message of it stays with Soft-RoCE of Linux 6.1 until the
		// firewall is gone, and breaks that of 6.12: no other one leaves the device any more.
		o.Kinds = []string{ping.CM}
		more, err := probes.Ping(ctx, &o)
		if err != nil {
			return err
		}
		pings.Results = append(pings.Results, more.Results...)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.Pair = &Pair{Peer: o.Peer, Pings: pings}
	r.Checks = append(r.Checks, "pair")
	if pings.Failed() > 0 && r.troubled(pings.Device) {
		return nil
	}
	x := &pair{ctx: ctx, probes: probes, o: o, report: r}
	x.keys()
	if x.pings() {
		x.mtu()
	}
	return nil
}

// pair is an examination.
type pair struct {
	ctx    context.Context
	probes Probes
	o      ping.Options
	report *Report
}

func (x *pair) found(id, detail string, facts ...any) {
	x.report.Findings = append(x.report.Findings, found(id, x.o.Peer, detail, facts...))
}

// of is the result of a kind.
func (x *pair) of(kind string) *ping.Result {
	all := x.report.Pair.Pings.Results
	if i := slices.IndexFunc(all, func(r ping.Result) bool { return r.Kind == kind }); i >= 0 {
		return &all[i]
	}
	return &ping.Result{}
}

// pings says what the failures of the pings have in common, and whether reliable connections may be tried further.
func (x *pair) pings() bool {
	rc, ud, cm := x.of(ping.RC), x.of(ping.UD), x.of(ping.CM)
	if f := rc.Failure; f != nil {
		switch f.Step {
		case "meet over TCP":
			x.found("pair.tcp", f.What, remedy(f))
			return false
		case "exchange endpoints":
			switch {
			case !f.Answered:
				x.found("pair.serve", f.What, "")
				return false
			case rc.Other == "":
				x.found("pair.answer", f.What, remedy(f))
				return false
			} // otherwise it could not connect its end to this one: the endpoints tell why
		}
	}
	own, other := endpoints(rc)
	here, there := rdma.GIDAddress(own.GID), rdma.GIDAddress(other.GID)
	both := rc.Failure != nil && ud.Failure != nil // the connection manager may go by another address
	switch {
	case both && here.IsValid() && there.IsValid() && here.Is4() != there.Is4():
		x.found("pair.gid", fmt.Sprintf("%v here, %v there", here, there), "")
	case both && here.IsValid() && there.IsValid() && rc.Failure.Step != "make a queue pair":
		x.silence(rc.Failure, here, there)
	case both:
		x.found("pair.roce", rc.Failure.What, remedy(rc.Failure))
	default:
		x.single("pair.rc", rc.Failure)
		x.single("pair.ud", ud.Failure)
		if !follows(cm.Failure, rc.Failure, ud.Failure) {
			x.single("pair.cm", cm.Failure)
		}
	}
	return rc.Failure == nil
}

// single says that one kind fails.
func (x *pair) single(id string, f *ping.Failure) {
	if f != nil {
		x.found(id, f.Step+": "+f.What, remedy(f))
	}
}

// follows says whether the connection manager fails for what another kind fails for: it meets by datagrams, and pings
// on a reliable connection.
func follows(cm, rc, ud *ping.Failure) bool {
	switch {
	case cm == nil:
		return true
	case cm.Step == "ping":
		return rc != nil
	case cm.Step == "connect":
		return ud != nil
	}
	return false
}

// silence says why nothing of RoCE comes back. TCP tells whether the addresses of the GIDs reach each other: where they
// do, it is RoCE alone that is kept back.
func (x *pair) silence(f *ping.Failure, here, there netip.Addr) {
	way := x.probes.TCP(x.ctx, here, there, x.o.Port)
	knock := x.probes.UDP(x.ctx, there.String())
	switch {
	case way == nil && errors.Is(knock, syscall.EPERM):
		x.found("pair.firewall", "this host's own drops them", "on this host")
	case way == nil && knock != nil:
		x.found("pair.firewall", "they are refused", "on "+there.String()+" and between the hosts")
	case way == nil:
		x.found("pair.firewall", "TCP comes through between the same addresses, they do not",
			"on both hosts and between them")
	case errors.Is(way, syscall.ECONNREFUSED) && errors.Is(knock, syscall.ECONNREFUSED):
		x.found("pair.refused", there.String(), there)
	case !errors.Is(way, syscall.ECONNREFUSED):
		x.found("pair.address", fmt.Sprintf("from %v to %v: %v", here, there, way), there, there, here)
	default:
		x.found("pair.roce", f.What, remedy(f))
	}
}

// remedy is the likeliest of a failed ping.
func remedy(f *ping.Failure) string {
	if len(f.Mend) == 0 {
		return "goverbs ping says more"
	}
	return strings.Join(f.Mend, "; or ")
}

// endpoints are those of both ends.
func endpoints(r *ping.Result) (own, other rdma.Endpoint) {
	_ = own.UnmarshalText([]byte(r.Own)) // it stays empty
	_ = other.UnmarshalText([]byte(r.Other))
	return own, other
}

// keys compares P_Keys: two ports talk in a partition of which both are members, one of them a full one.
func (x *pair) keys() {
	rc := x.of(ping.RC)
	if len(rc.PKeys) == 0 || len(rc.PeerPKeys) == 0 {
		return
	}
	const full = 0x8000
	for _, here := range rc.PKeys {
		for _, there := range rc.PeerPKeys {
			a, err := strconv.ParseUint(here, 0, 16)
			b, err2 := strconv.ParseUint(there, 0, 16)
			if err == nil && err2 == nil && (a^b)&^full == 0 && (a|b)&full != 0 {
				return
			}
		}
	}
	x.found("pair.pkey", "", strings.Join(rc.PKeys, " "), strings.Join(rc.PeerPKeys, " "))
}

// mtu finds the largest packets that come through, from those that both ports can have downwards.
func (x *pair) mtu() {
	own, other := endpoints(x.of(ping.RC))
	if own.MTU == 0 || other.MTU == 0 {
		return
	}
	most := min(own.MTU, other.MTU)
	if own.MTU != other.MTU {
		where := "this host"
		if other.MTU < own.MTU {
			where = x.o.Peer
		}
		x.found("pair.mtus", fmt.Sprintf("%d here, %d there", rdma.MTUBytes(own.MTU), rdma.MTUBytes(other.MTU)),
			strconv.Itoa(rdma.MTUBytes(max(own.MTU, other.MTU))+headers), where)
	}
	for m := most; m >= ibv.MTU_256; m-- {
		o := x.o
		o.Kinds, o.Count, o.MTU, o.Size = []string{ping.RC}, 1, m, rdma.MTUBytes(m)
		r, err := x.probes.Ping(x.ctx, &o)
		if err != nil || x.ctx.Err() != nil {
			return
		}
		if r.Failed() == 0 {
			x.report.Pair.PathMTU = rdma.MTUBytes(m)
			if m < most {
				passes, fails := rdma.MTUBytes(m), rdma.MTUBytes(m+1)
				what := fmt.Sprintf("packets with %d bytes come through, with %d they do not", passes, fails)
				x.found("pair.mtu", what, strconv.Itoa(rdma.MTUBytes(most)+headers), strconv.Itoa(passes))
			}
			return
		}
	}
}
