// SPDX-License-Identifier: BSD-2-Clause

// Package ping tests whether a peer answers over a reliable connection, datagrams and the connection manager, and
// explains failures. [Run] is the client and [Server] the other end, which may also be a program of rdma-core: rping
// for the connection manager, ibv_rc_pingpong and ibv_ud_pingpong for the others.
package ping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Kinds of pings.
const (
	RC = "rc" // sends over a reliable connection
	UD = "ud" // datagrams
	CM = "cm" // a connection by the connection manager; each ping is a send, a read and a write
)

// Kinds lists all kinds.
var Kinds = []string{RC, UD, CM}

// Default ports of a server.
const (
	DefaultPort = 18517 // TCP, for the exchange of endpoints
	DefaultCM   = 7174  // connection manager; the default of rping
)

// Options of a ping.
type Options struct {
	Device   string
	GIDIndex int // -1: choose automatically
	Peer     string
	Port     int
	CMPort   int
	Kinds    []string
	Count    int
	Size     int
	MTU      ibv.MTU       // path MTU of rc; 0: the smaller of both ports
	Timeout  time.Duration // for each answer
	PingPong bool          // the peer is a program of rdma-core, such as ibv_rc_pingpong
	// Leave passes descriptors that Linux may take long to close to another process, which closes them after this one
	// has ended. If nil, Run closes them and waits.
	Leave     func(descriptors ...int) error
	ownDevice *rdma.Device
	reached   bool       // RoCE packets have arrived
	other     netip.Addr // address of the peer's device, if exchanged
}

// alone reports whether the device reaches only its own process.
func (o *Options) alone() bool {
	return o.ownDevice != nil && o.ownDevice.Info().IsSoftware() && !o.wired()
}

// wired reports whether the device is a software device that reaches other processes.
func (o *Options) wired() bool {
	return o.ownDevice != nil && strings.HasPrefix(o.ownDevice.Name(), soft.Prefix)
}

// Result is the result of one kind.
type Result struct {
	Kind     string  `json:"kind"`
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	Min      float64 `json:"min_us,omitempty"`
	Median   float64 `json:"median_us,omitempty"`
	Max      float64 `json:"max_us,omitempty"`
	Own      string  `json:"own,omitempty"`  // endpoint, or address for the connection manager
	Other    string  `json:"peer,omitempty"` // the same of the peer
	// PKeys and PeerPKeys are the P_Keys of the ports, if known.
	PKeys     []string `json:"pkeys,omitempty"`
	PeerPKeys []string `json:"peer_pkeys,omitempty"`
	// Failure explains why the ping ended early, or is nil.
	Failure *Failure `json:"failure,omitempty"`
	took    []time.Duration
}

// Report is the result of a ping.
type Report struct {
	Peer    string   `json:"peer"`
	Device  string   `json:"device"`
	GID     string   `json:"gid,omitempty"`
	Results []Result `json:"results"`
	// Interrupted reports that the context ended; the last result is incomplete.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Failed returns the number of failed kinds.
func (r *Report) Failed() (n int) {
	for _, one := range r.Results {
		if one.Failure != nil {
			n++
		}
	}
	return n
}

// Run pings the peer. If pings fail, the error is nil and the report has the failures.
func Run(ctx context.Context, o *Options) (*Report, error) {
	d, err := open(o)
	if err != nil {
		return nil, &Failure{Step: "open the device", Where: cmp.Or(o.Device, "the first device"), What: err.Error(),
			Fixes: []string{"list devices with goverbs devices; diagnose them with goverbs doctor"}, err: err}
	}
	defer d.Close()
	o.ownDevice = d
	r := &Report{Peer: o.Peer, Device: d.Name()}
	if e, err := ownGID(o); err == nil {
		r.GID = e.GID.String()
	}
	for _, kind := range o.Kinds {
		one := Result{Kind: kind}
		if kind == CM {
			err = one.pingManager(ctx, o)
		} else {
			err = one.pingQP(ctx, o)
		}
		one.computeStatistics()
		o.reached = o.reached || one.Received > 0
		r.Interrupted = ctx.Err() != nil
		if err != nil && !r.Interrupted {
			one.Failure = explained(err, o, &one)
		}
		if r.Results = append(r.Results, one); r.Interrupted {
			break
		}
	}
	return r, nil
}

func open(o *Options) (*rdma.Device, error) {
	d, err := rdma.Open(o.Device)
	if err != nil {
		return nil, err
	}
	if _, _, err := d.ActivePort(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// pkeys returns the first P_Keys of the first active port.
func pkeys(d *rdma.Device) (all []string) {
	n, port, err := d.ActivePort()
	if err != nil {
		return nil
	}
	for i := range min(int(port.PKeyTblLen), 128) {
		if key, err := d.PKey(n, i); err == nil && key != 0 {
			all = append(all, fmt.Sprintf("%#04x", key.Host()))
		}
	}
	return all
}

// ownGID returns the local GID.
func ownGID(o *Options) (ibv.GIDEntry, error) {
	if o.GIDIndex < 0 {
		return o.ownDevice.FindGID(rdma.GIDQuery{})
	}
	port, _, err := o.ownDevice.ActivePort()
	if err != nil {
		return ibv.GIDEntry{}, err
	}
	e, err := o.ownDevice.GID(port, o.GIDIndex)
	if err != nil {
		return ibv.GIDEntry{}, err
	}
	return *e, nil
}

// pingQP pings over a queue pair whose endpoint is exchanged over TCP.
func (r *Result) pingQP(ctx context.Context, o *Options) error {
	e, err := newEnd(o, r.Kind, o.Size)
	if err != nil {
		return at("create the queue pair", o.ownDevice.Name(), err)
	}
	defer e.Close()
	r.Own = e.own.String()
	address := net.JoinHostPort(o.Peer, strconv.Itoa(o.Port))
	dialer := net.Dialer{Timeout: o.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return at("connect over TCP", address, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	reply, err := exchangeEndpoints(conn, o, r.Kind, e)
	if reply.Endpoint != nil {
		r.Other = reply.Endpoint.String()
	}
	if err != nil {
		return at("exchange endpoints", address, err)
	}
	peer := *reply.Endpoint
	o.other = rdma.GIDAddress(peer.GID)
	r.PKeys, r.PeerPKeys = pkeys(o.ownDevice), reply.PKeys
	if err := e.connect(peer, o.MTU, o.PingPong); err != nil {
		return at("connect the queue pair", r.Other, err)
	}
	for range o.Count {
		r.Sent++
		start := time.Now()
		if err := e.ping(ctx, o.Timeout, byte(r.Sent)); err != nil {
			if text := reportedError(conn); text != "" {
				err = fmt.Errorf("%w; peer: %s", err, text)
			}
			return at("ping", r.Other, err)
		}
		r.took = append(r.took, time.Since(start))
	}
	return nil
}

// computeStatistics computes the statistics of the answers.
func (r *Result) computeStatistics() {
	r.Received = len(r.took)
	if r.Received == 0 {
		return
	}
	slices.Sort(r.took)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	r.Min, r.Median, r.Max = us(r.took[0]), us(r.took[len(r.took)/2]), us(r.took[len(r.took)-1])
}

// WriteText writes a row for each kind, followed by the failures.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s, from %s %s\n\n", r.Peer, r.Device, r.GID)
	var rows [][]string
	for _, one := range r.Results {
		us := func(v float64) string {
			if one.Received == 0 {
				return "-"
			}
			return strconv.FormatFloat(v, 'f', 1, 64)
		}
		rows = append(rows, []string{one.Kind, strconv.Itoa(one.Sent), strconv.Itoa(one.Received), us(one.Min),
			us(one.Median), us(one.Max)})
	}
	err := page.Table(w, []string{"KIND", "SENT", "ANSWERED", "MIN µs", "MEDIAN", "MAX"}, rows)
	for _, one := range r.Results {
		if one.Failure != nil {
			fmt.Fprintln(w)
			err = cmp.Or(err, one.Failure.write(w, one.Kind))
		}
	}
	return err
}
