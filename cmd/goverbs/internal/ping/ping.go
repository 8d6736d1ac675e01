// SPDX-License-Identifier: BSD-2-Clause

// Package ping asks a peer for answers, on a reliable connection, by datagrams, and on a connection of the connection
// manager, and explains what goes wrong. The other end is a [Server]. It may also be a program of rdma-core: rping for
// the connection manager, ibv_rc_pingpong and ibv_ud_pingpong for the others.
package ping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Kinds of pings.
const (
	RC = "rc" // sends on a reliable connection
	UD = "ud" // datagrams
	CM = "cm" // a connection of the connection manager: a send, a read and a write each time
)

// Kinds are all of them.
var Kinds = []string{RC, UD, CM}

// Ports that a server listens to unless it is told otherwise.
const (
	DefaultPort = 18517 // TCP: ends exchange there what queue pairs need
	DefaultCM   = 7174  // of the connection manager: rping's
)

// Options of a ping.
type Options struct {
	Device   string
	GIDIndex int // -1: the best one
	Peer     string
	Port     int
	CMPort   int
	Kinds    []string
	Count    int
	Size     int
	MTU      ibv.MTU       // path MTU of rc; 0: the smaller one of both ports
	Timeout  time.Duration // for each answer
	PingPong bool          // the peer is a program of rdma-core, such as ibv_rc_pingpong
	// Leave has another process close descriptors that Linux may take long to close, when this one has ended. With nil,
	// this one closes them and waits.
	Leave     func(descriptors ...int) error
	ownDevice *rdma.Device
	reached   bool // packets of RoCE come through
}

// Result is what came of one kind.
type Result struct {
	Kind     string  `json:"kind"`
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	Min      float64 `json:"min_us,omitempty"`
	Median   float64 `json:"median_us,omitempty"`
	Max      float64 `json:"max_us,omitempty"`
	Own      string  `json:"own,omitempty"`  // endpoint, or address of the connection manager
	Other    string  `json:"peer,omitempty"` // of the peer
	// PKeys are those of both ends' ports, as far as they said.
	PKeys     []string `json:"pkeys,omitempty"`
	PeerPKeys []string `json:"peer_pkeys,omitempty"`
	// Failure is why it ended early, or nil.
	Failure *Failure `json:"failure,omitempty"`
	took    []time.Duration
}

// Report is what came of a ping.
type Report struct {
	Peer    string   `json:"peer"`
	Device  string   `json:"device"`
	GID     string   `json:"gid,omitempty"`
	Results []Result `json:"results"`
	// Interrupted says that the user wanted no more: the last kind has the answers until then.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Failed says how many kinds failed.
func (r *Report) Failed() (n int) {
	for _, one := range r.Results {
		if one.Failure != nil {
			n++
		}
	}
	return n
}

// Run pings. The error is nil if pings failed: the report has why.
func Run(ctx context.Context, o *Options) (*Report, error) {
	d, err := open(o)
	if err != nil {
		return nil, &Failure{Step: "open the device", Where: cmp.Or(o.Device, "the first one"), What: err.Error(),
			Mend: []string{"goverbs devices lists devices, and goverbs doctor says what they lack"}, err: err}
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
			err = one.manager(ctx, o)
		} else {
			err = one.pair(ctx, o)
		}
		one.sum()
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

// pkeys are those of the device's first active port. Few are enough.
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

// ownGID is the GID that a ping comes from.
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

// pair pings with a queue pair whose peer is found over TCP.
func (r *Result) pair(ctx context.Context, o *Options) error {
	e, err := newEnd(o, r.Kind, o.Size)
	if err != nil {
		return at("make a queue pair", o.ownDevice.Name(), err)
	}
	defer e.Close()
	r.Own = e.own.String()
	address := net.JoinHostPort(o.Peer, strconv.Itoa(o.Port))
	dialer := net.Dialer{Timeout: o.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return at("meet over TCP", address, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	said, err := ask(conn, o, r.Kind, e)
	if said.Endpoint != nil {
		r.Other = said.Endpoint.String()
	}
	if err != nil {
		return at("exchange endpoints", address, err)
	}
	peer := *said.Endpoint
	r.PKeys, r.PeerPKeys = pkeys(o.ownDevice), said.PKeys
	if err := e.connect(peer, o.MTU, o.PingPong); err != nil {
		return at("connect the queue pair", r.Other, err)
	}
	for range o.Count {
		r.Sent++
		start := time.Now()
		if err := e.ping(ctx, o.Timeout, byte(r.Sent)); err != nil {
			if said := complaint(conn); said != "" {
				err = fmt.Errorf("%w; the peer says: %s", err, said)
			}
			return at("ping", r.Other, err)
		}
		r.took = append(r.took, time.Since(start))
	}
	return nil
}

// sum counts answers and their times.
func (r *Result) sum() {
	r.Received = len(r.took)
	if r.Received == 0 {
		return
	}
	slices.Sort(r.took)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	r.Min, r.Median, r.Max = us(r.took[0]), us(r.took[len(r.took)/2]), us(r.took[len(r.took)-1])
}

// WriteText writes a row for each kind, and below what went wrong.
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
