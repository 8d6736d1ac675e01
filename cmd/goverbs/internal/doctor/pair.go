// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"cmp"
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

// Pair is the result between this host and a peer.
type Pair struct {
	Peer    string       `json:"peer"`
	Pings   *ping.Report `json:"pings"`
	PathMTU int          `json:"path_mtu,omitempty"` // payload of the largest packets that arrived
}

func (p *Pair) write(w io.Writer) {
	fmt.Fprintf(w, "peer     %s", p.Peer)
	for _, r := range p.Pings.Results {
		state := "ok"
		if r.Failure != nil {
			state = "failed"
		}
		fmt.Fprintf(w, ", %s %s", r.Kind, state)
	}
	if p.PathMTU != 0 {
		fmt.Fprintf(w, ", path MTU %d", p.PathMTU)
	}
	fmt.Fprintln(w)
}

// Probes examine a pair; tests replace them.
type Probes struct {
	Ping func(ctx context.Context, o *ping.Options) (*ping.Report, error)
	// UDP sends a datagram to the RoCE port. It returns EPERM if a firewall of this host drops it, ECONNREFUSED or
	// similar if it is rejected on the path, nil if nothing comes back.
	UDP func(ctx context.Context, peer string) error
	// TCP checks whether a port is reachable from a local address to an address of the peer.
	TCP func(ctx context.Context, from, to netip.Addr, port int) error
}

// Real probes use the network.
var Real = Probes{Ping: ping.Run, UDP: probeUDP, TCP: reach}

// reach connects to the port of goverbs serve at one address of the peer.
func reach(ctx context.Context, from, to netip.Addr, port int) error {
	d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	conn, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(to, uint16(port)).String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// probeUDP sends a datagram that is not a RoCE packet, so that devices drop it, and waits briefly for a rejection.
func probeUDP(ctx context.Context, peer string) error {
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

// hasProblem reports whether this host's device has a problem, which must be fixed first.
func (r *Report) hasProblem(device string) bool {
	return device != "" && slices.ContainsFunc(r.Findings, func(f Finding) bool {
		name, _, _ := strings.Cut(f.Where, " ")
		return f.Level == Problem && name == device
	})
}

// ExaminePair examines the path to a peer that runs goverbs serve, and adds findings to the report. It omits failures
// that a problem of this host's device explains.
func ExaminePair(ctx context.Context, probes Probes, o ping.Options, r *Report) error {
	o.Kinds, o.Count = []string{ping.RC, ping.UD}, 3
	pings, err := probes.Ping(ctx, &o)
	if err != nil {
		return err
	}
	if pings.Failed() < len(pings.Results) {
		// If no RoCE packet arrives, a connection manager test finds nothing new and can do harm: if a firewall of this
		// host drops its message, Soft-RoCE of Linux 6.1 retains it until the firewall is removed, and Soft-RoCE of
		// Linux 6.12 never sends another.
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
	if pings.Failed() > 0 && r.hasProblem(pings.Device) {
		return nil
	}
	x := &pair{ctx: ctx, probes: probes, o: o, report: r}
	x.keys()
	if x.pings() {
		x.mtu()
	}
	return nil
}

// pair is the state of an examination.
type pair struct {
	ctx    context.Context
	probes Probes
	o      ping.Options
	report *Report
}

func (x *pair) found(id, detail string, facts ...any) {
	x.report.Findings = append(x.report.Findings, found(id, x.o.Peer, detail, facts...))
}

// of returns the result of a kind.
func (x *pair) of(kind string) *ping.Result {
	all := x.report.Pair.Pings.Results
	if i := slices.IndexFunc(all, func(r ping.Result) bool { return r.Kind == kind }); i >= 0 {
		return &all[i]
	}
	return &ping.Result{}
}

// pings classifies the failures. It reports whether reliable connections can be tested further.
func (x *pair) pings() bool {
	rc, ud, cm := x.of(ping.RC), x.of(ping.UD), x.of(ping.CM)
	if f := rc.Failure; f != nil {
		switch f.Step {
		case "connect over TCP":
			x.found("pair.tcp", f.What, fixes(f))
			return false
		case "exchange endpoints":
			switch {
			case !f.Answered:
				x.found("pair.serve", f.What, "")
				return false
			case rc.Other == "":
				x.found("pair.answer", f.What, fixes(f))
				return false
			} // otherwise connecting the peer's queue pair failed: compare the endpoints
		}
	}
	local, remote := endpoints(rc)
	localAddr, remoteAddr := rdma.GIDAddress(local.GID), rdma.GIDAddress(remote.GID)
	noneWorks := rc.Failure != nil && ud.Failure != nil // the connection manager may use another address
	switch {
	case noneWorks && localAddr.IsValid() && remoteAddr.IsValid() && localAddr.Is4() != remoteAddr.Is4():
		x.found("pair.gid", fmt.Sprintf("here %v, peer %v", localAddr, remoteAddr), "")
	case noneWorks && localAddr.IsValid() && remoteAddr.IsValid() && rc.Failure.Step != "create the queue pair":
		x.noPackets(rc.Failure, localAddr, remoteAddr)
	case noneWorks:
		x.found("pair.roce", rc.Failure.What, fixes(rc.Failure))
	default:
		x.reportFailure("pair.rc", rc.Failure)
		x.reportFailure("pair.ud", ud.Failure)
		if !isConsequence(cm.Failure, rc.Failure, ud.Failure) {
			x.reportFailure("pair.cm", cm.Failure)
		}
	}
	return rc.Failure == nil
}

// reportFailure reports the failure of one kind.
func (x *pair) reportFailure(id string, f *ping.Failure) {
	if f != nil {
		x.found(id, f.Step+": "+f.What, fixes(f))
	}
}

// isConsequence reports whether the failure of the connection manager follows from another one: it connects with
// datagrams and pings over a reliable connection.
func isConsequence(cm, rc, ud *ping.Failure) bool {
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

// noPackets reports the reason why no RoCE packet arrives. A TCP connection between the addresses of the GIDs shows
// whether only RoCE is blocked.
func (x *pair) noPackets(f *ping.Failure, local, remote netip.Addr) {
	tcpErr := x.probes.TCP(x.ctx, local, remote, x.o.Port)
	udpErr := x.probes.UDP(x.ctx, remote.String())
	switch {
	case tcpErr == nil && errors.Is(udpErr, syscall.EPERM):
		x.found("pair.firewall", "the firewall runs on this host", "on this host")
	case tcpErr == nil && udpErr != nil:
		x.found("pair.firewall", "packets are rejected", "on "+remote.String()+" and between the hosts")
	case tcpErr == nil:
		x.found("pair.firewall", "TCP works between the same addresses",
			"on both hosts and between them")
	case errors.Is(tcpErr, syscall.ECONNREFUSED) && errors.Is(udpErr, syscall.ECONNREFUSED):
		x.found("pair.refused", remote.String(), remote)
	case !errors.Is(tcpErr, syscall.ECONNREFUSED):
		x.found("pair.address", fmt.Sprintf("from %v to %v: %v", local, remote, tcpErr), remote, remote, local)
	default:
		x.found("pair.roce", f.What, fixes(f))
	}
}

// fixes returns the fixes of a failed ping.
func fixes(f *ping.Failure) string {
	return cmp.Or(strings.Join(f.Fixes, "; or "), "run goverbs ping for details")
}

// endpoints returns the endpoints of both ends.
func endpoints(r *ping.Result) (local, remote rdma.Endpoint) {
	_ = local.UnmarshalText([]byte(r.Own)) // stays zero on failure
	_ = remote.UnmarshalText([]byte(r.Other))
	return local, remote
}

// keys compares P_Keys: two ports need a common partition in which at least one is a full member.
func (x *pair) keys() {
	rc := x.of(ping.RC)
	if len(rc.PKeys) == 0 || len(rc.PeerPKeys) == 0 {
		return
	}
	const full = 0x8000
	for _, key := range rc.PKeys {
		for _, peerKey := range rc.PeerPKeys {
			a, err := strconv.ParseUint(key, 0, 16)
			b, err2 := strconv.ParseUint(peerKey, 0, 16)
			if err == nil && err2 == nil && (a^b)&^full == 0 && (a|b)&full != 0 {
				return
			}
		}
	}
	x.found("pair.pkey", "", strings.Join(rc.PKeys, " "), strings.Join(rc.PeerPKeys, " "))
}

// mtu finds the largest packets that arrive, starting from the smaller MTU of both ports.
func (x *pair) mtu() {
	local, remote := endpoints(x.of(ping.RC))
	if local.MTU == 0 || remote.MTU == 0 {
		return
	}
	most := min(local.MTU, remote.MTU)
	if local.MTU != remote.MTU {
		where := "this host"
		if remote.MTU < local.MTU {
			where = x.o.Peer
		}
		x.found("pair.mtus", fmt.Sprintf("here %d, peer %d", rdma.MTUBytes(local.MTU), rdma.MTUBytes(remote.MTU)),
			strconv.Itoa(rdma.MTUBytes(max(local.MTU, remote.MTU))+headers), where)
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
				finding := fmt.Sprintf("packets of %d bytes arrive, packets of %d do not", passes, fails)
				x.found("pair.mtu", finding, strconv.Itoa(rdma.MTUBytes(most)+headers), strconv.Itoa(passes))
			}
			return
		}
	}
}
