// SPDX-License-Identifier: BSD-2-Clause

package ping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Failure describes a failed ping: the step, its object, the error and possible fixes, the likeliest first.
type Failure struct {
	Step  string   `json:"step"`
	Where string   `json:"where"`
	What  string   `json:"what"`
	Fixes []string `json:"fixes"`
	// Answered reports that goverbs serve on the peer sent the error in What.
	Answered bool `json:"answered,omitempty"`
	err      error
}

func (f *Failure) Error() string {
	s := f.Step + ": " + f.Where + ": " + f.What
	if len(f.Fixes) > 0 {
		s += "; " + f.Fixes[0]
	}
	return s
}

func (f *Failure) Unwrap() error { return f.err }

func (f *Failure) write(w io.Writer, kind string) error {
	fmt.Fprintf(w, "%s failed: %s\n", kind, f.Step)
	if err := page.Paragraph(w, "  where", f.Where, 9); err != nil {
		return err
	}
	err := page.Paragraph(w, "  what", f.What, 9)
	for i, fix := range f.Fixes {
		label := "  fix"
		if i > 0 {
			label = "  or"
		}
		err = errors.Join(err, page.Paragraph(w, label, fix, 9))
	}
	return err
}

// failed is an error with its step and object.
type failed struct {
	step, where string
	err         error
}

func (f *failed) Error() string { return f.step + ": " + f.where + ": " + f.err.Error() }
func (f *failed) Unwrap() error { return f.err }

func at(step, where string, err error) error { return &failed{step, where, err} }

// explained converts the error of a ping to a Failure.
func explained(err error, o *Options, r *Result) *Failure {
	f := &Failure{Step: r.Kind, Where: o.Peer, What: err.Error(), err: err}
	if at := new(failed); errors.As(err, &at) {
		f.Step, f.Where, f.What = at.step, at.where, at.err.Error()
	}
	f.Answered = errors.As(err, new(*peerError))
	f.Fixes = fixes(f, o, r)
	return f
}

// allowRoCE is the fix for lost RoCE packets between hosts that reach each other otherwise.
const allowRoCE = "allow UDP port 4791 on both hosts and between them: check nft list ruleset and iptables -S, or " +
	"the security group in a cloud"

// fixes returns possible fixes of a failure, the likeliest first.
func fixes(f *Failure, o *Options, r *Result) (all []string) {
	add := func(form string, args ...any) { all = append(all, fmt.Sprintf(form, args...)) }
	serves := "goverbs serve"
	if o.PingPong {
		serves = "ibv_" + r.Kind + "_pingpong -g INDEX"
	} else if r.Kind == CM {
		serves = "goverbs serve, or rping -s"
	}
	var status *rdma.CompletionError
	var name *net.DNSError
	switch err := f.err; {
	case errors.Is(err, context.Canceled):
	case o.alone() && f.Step != "connect over TCP":
		add("give both ends a device soft@ADDRESS, each its own address: %s reaches only its own process", o.ownDevice.Name())
	case f.Answered:
		add("run goverbs doctor on %s", o.Peer)
	case errors.As(err, &name):
		add("give an address: this host cannot resolve %s", o.Peer)
	case errors.Is(err, syscall.ECONNREFUSED):
		add("start %s on the peer, with the same -p and --cm-port", serves)
	case f.Step == "connect over TCP":
		add("check the route (ip route get %s) and that firewalls allow TCP port %d", o.Peer, o.Port)
	case errors.As(err, &status):
		all = statusFixes(status.Status, r, serves)
	case errors.Is(err, errSilence) || f.Step == "ping" && errors.Is(err, context.DeadlineExceeded):
		all = lossFixes(r)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM):
		add("run goverbs doctor here to find the missing privilege")
	case errors.Is(err, syscall.ENODATA) && o.GIDIndex >= 0:
		add("choose an index that goverbs gids %s lists, or leave out -x", f.Where)
	case errors.Is(err, syscall.ENOMEM):
		add("raise the limit of locked memory: ulimit -l unlimited (goverbs doctor checks it)")
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.ENODEV):
		add("give an address of an RDMA interface of the peer (not %s?) that is reachable from %s: ip route get %s",
			o.Peer, r.Own, o.Peer)
		add("for software devices, set GOVERBS_DEVICE=soft@ADDRESS on both ends, with different addresses")
	case errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, context.DeadlineExceeded):
		if to, err := netip.ParseAddrPort(r.Other); err == nil && r.Kind == CM && o.other.IsValid() && to.Addr() != o.other {
			add("give the address of the peer's device: %s, not %s", o.other, to.Addr())
		}
		add("start %s on the peer, with the same -p and --cm-port", serves)
		if !o.reached {
			return append(all, lossFixes(r)...)
		}
		if o.wired() {
			break
		}
		add("remove and add the Soft-RoCE device on either end (rdma link delete, rdma link add): once a firewall " +
			"has dropped its packets, Linux 6.12 no longer sends connection manager messages")
	}
	return all
}

// statusFixes returns possible fixes of a failed completion.
func statusFixes(status ibv.WCStatus, r *Result, serves string) (all []string) {
	switch status {
	case ibv.WC_RETRY_EXC_ERR:
		all = lossFixes(r)
	case ibv.WC_RNR_RETRY_EXC_ERR:
		all = append(all, "restart "+serves+" on the peer: it posts no receives")
	case ibv.WC_REM_ACCESS_ERR, ibv.WC_REM_INV_REQ_ERR, ibv.WC_REM_OP_ERR:
		all = append(all, "use the same program and size (-s) on both ends: the peer rejected the message")
	case ibv.WC_WR_FLUSH_ERR:
		all = append(all, "see the output of "+serves+" on the peer: the connection ended")
	}
	return append(all, "goverbs explain "+strings.TrimPrefix(status.String(), "IBV_WC_")+" explains the status")
}

// lossFixes returns fixes for RoCE packets that do not arrive although the TCP exchange worked.
func lossFixes(r *Result) (all []string) {
	var local, remote rdma.Endpoint
	if local.UnmarshalText([]byte(r.Own)) == nil && remote.UnmarshalText([]byte(r.Other)) == nil {
		localAddr, remoteAddr := rdma.GIDAddress(local.GID), rdma.GIDAddress(remote.GID)
		switch {
		case localAddr.Is4() != remoteAddr.Is4():
			all = append(all, fmt.Sprintf("choose GIDs of one address family with -x: here %s, peer %s", localAddr, remoteAddr))
		case linkLocal(localAddr) || linkLocal(remoteAddr):
			all = append(all, fmt.Sprintf("choose GIDs of routed addresses with -x: here %s, peer %s (link-local)",
				localAddr, remoteAddr))
		}
	}
	if r.Received > 0 {
		return append(all,
			"check counters for packet loss (goverbs query DEVICE) and flow control (PFC) of the switches")
	}
	return append(all, allowRoCE, "use the same MTU on both devices and a larger one on the network: goverbs doctor "+
		"PEER measures it", "use RoCE v2 GIDs on both ends: goverbs gids")
}

func linkLocal(a netip.Addr) bool { return a.IsLinkLocalUnicast() }
