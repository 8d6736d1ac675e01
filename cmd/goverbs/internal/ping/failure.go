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

// Failure says at which step a ping failed, where, what happened, and what mends it, the likeliest first.
type Failure struct {
	Step  string   `json:"step"`
	Where string   `json:"where"`
	What  string   `json:"what"`
	Mend  []string `json:"mend"`
	// Answered says that what failed is the peer's: goverbs serve there said What.
	Answered bool `json:"answered,omitempty"`
	err      error
}

func (f *Failure) Error() string {
	s := f.Step + ": " + f.Where + ": " + f.What
	if len(f.Mend) > 0 {
		s += "; " + f.Mend[0]
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
	for i, mend := range f.Mend {
		label := "  mend"
		if i > 0 {
			label = "  or"
		}
		err = errors.Join(err, page.Paragraph(w, label, mend, 9))
	}
	return err
}

// failed is an error with its place.
type failed struct {
	step, where string
	err         error
}

func (f *failed) Error() string { return f.step + ": " + f.where + ": " + f.err.Error() }
func (f *failed) Unwrap() error { return f.err }

func at(step, where string, err error) error { return &failed{step, where, err} }

// explained says what an error means for this ping.
func explained(err error, o *Options, r *Result) *Failure {
	f := &Failure{Step: r.Kind, Where: o.Peer, What: err.Error(), err: err}
	if at := new(failed); errors.As(err, &at) {
		f.Step, f.Where, f.What = at.step, at.where, at.err.Error()
	}
	f.Answered = errors.As(err, new(*answer))
	f.Mend = mends(f, o, r)
	return f
}

// roce says that packets of RoCE are lost while the peer can be reached otherwise.
const roce = "let UDP port 4791 through on both hosts and between them: nft list ruleset, iptables -S show who " +
	"drops it; in a cloud, the security group"

// mends lists what may mend a failure, the likeliest first.
func mends(f *Failure, o *Options, r *Result) (all []string) {
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
	case f.Answered:
		add("goverbs doctor, on %s, says what that host lacks", o.Peer)
	case errors.As(err, &name):
		add("%s is no name that this host knows: give an address", o.Peer)
	case errors.Is(err, syscall.ECONNREFUSED):
		add("start %s there; -p and --cm-port are the same at both ends", serves)
	case f.Step == "meet over TCP":
		add("make the host reachable: ip route get %s, and a firewall that lets TCP port %d through", o.Peer, o.Port)
	case errors.As(err, &status):
		all = statusMends(status.Status, r, serves)
	case errors.Is(err, errSilence) || f.Step == "ping" && errors.Is(err, context.DeadlineExceeded):
		all = lost(r)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM):
		add("goverbs doctor says which right is missing here")
	case errors.Is(err, syscall.ENODATA) && o.GIDIndex >= 0:
		add("-x chooses one of the GIDs that goverbs gids %s lists; without it, the best is chosen", f.Where)
	case errors.Is(err, syscall.ENOMEM):
		add("raise the limit of locked memory: ulimit -l unlimited; goverbs doctor checks it")
	case errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.ENODEV):
		add("%s must be an address of an RDMA interface there, with a way to it from %s here: ip route get %s", o.Peer,
			r.Own, o.Peer)
		add("with a software device, GOVERBS_DEVICE=soft@ADDRESS has to be set at both ends, for addresses that differ")
	case errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, context.DeadlineExceeded):
		add("start %s there; -p and --cm-port are the same at both ends", serves)
		if !o.reached {
			return append(all, lost(r)...)
		}
		add("remove Soft-RoCE's device and add it again, at either end, if a firewall may have dropped what its host " +
			"sent: after that, Linux 6.12 sends nothing of the connection manager. rdma link delete, rdma link add")
	}
	return all
}

// statusMends are those of a completion that failed.
func statusMends(status ibv.WCStatus, r *Result, serves string) (all []string) {
	switch status {
	case ibv.WC_RETRY_EXC_ERR:
		all = lost(r)
	case ibv.WC_RNR_RETRY_EXC_ERR:
		all = append(all, "the peer has no receive posted: it has ended or hangs; start "+serves+" there again")
	case ibv.WC_REM_ACCESS_ERR, ibv.WC_REM_INV_REQ_ERR, ibv.WC_REM_OP_ERR:
		all = append(all, "the peer refused the message: both ends need the same size (-s), and the same program")
	case ibv.WC_WR_FLUSH_ERR:
		all = append(all, "the connection ended: the peer says why, see what "+serves+" printed there")
	}
	return append(all, "goverbs explain "+strings.TrimPrefix(status.String(), "IBV_WC_")+" has more")
}

// lost are the reasons why packets of RoCE do not come through although the ends have met.
func lost(r *Result) (all []string) {
	var own, other rdma.Endpoint
	if own.UnmarshalText([]byte(r.Own)) == nil && other.UnmarshalText([]byte(r.Other)) == nil {
		here, there := rdma.GIDAddress(own.GID), rdma.GIDAddress(other.GID)
		switch {
		case here.Is4() != there.Is4():
			all = append(all, fmt.Sprintf("choose GIDs of one family with -x: %s here and %s there cannot reach each "+
				"other", here, there))
		case linkLocal(here) || linkLocal(there):
			all = append(all, fmt.Sprintf("choose GIDs of addresses that are routed with -x: %s here and %s there "+
				"reach each other on one link only", here, there))
		}
	}
	if r.Received > 0 {
		return append(all, "packets are lost on the way: see counters with goverbs query DEVICE, and flow control "+
			"(PFC) of the switches")
	}
	return append(all, roce, "both devices must have the same MTU, and the network between them more: goverbs doctor "+
		"PEER measures it", "GIDs must be of RoCE v2 at both ends: goverbs gids")
}

func linkLocal(a netip.Addr) bool { return a.IsLinkLocalUnicast() }
