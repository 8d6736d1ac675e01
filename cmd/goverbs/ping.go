// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/ping"
	"github.com/goverbs/goverbs/internal/printable"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/soft"
)

// pingDefaults are the flags that ping, serve and doctor share.
type pingDefaults struct {
	Device   string `short:"d" predictor:"device" help:"Device; default: GOVERBS_DEVICE or the first device."`
	GIDIndex int    `short:"x" name:"gid-index" default:"-1" help:"GID index; -1: choose automatically."`
	Port     int    `short:"p" default:"18517" help:"TCP port for the exchange."`
	CMPort   int    `name:"cm-port" default:"7174" help:"Port of the RDMA connection manager."`
}

// check checks the values. Only a server may have port 0 for the connection manager, which disables it.
func (d pingDefaults) check(leastCM int) error {
	return cmp.Or(within("--gid-index", d.GIDIndex, -1, maxGIDIndex), within("--port", d.Port, 1, math.MaxUint16),
		within("--cm-port", d.CMPort, leastCM, math.MaxUint16))
}

// checkPeer checks the flags that concern the peer.
func (d pingDefaults) checkPeer(peer string, timeout time.Duration) error {
	if peer == "" {
		return usageError{errors.New("peer name is empty; give a host name or an address")}
	}
	return cmp.Or(within("--timeout", timeout, time.Millisecond, unlimited), d.check(1))
}

// warnAlone warns about a software device that no other process can reach. name is "" for the default.
func (o output) warnAlone(name string) {
	if name = cmp.Or(name, rights.Getenv("GOVERBS_DEVICE")); strings.HasPrefix(name, "soft") &&
		!strings.HasPrefix(name, soft.Prefix) {
		page.Log(o.problems, "%s reaches only this process; give each process a device %sADDRESS", name, soft.Prefix)
	}
}

type pingCommand struct {
	Peer string `arg:"" help:"Host that runs goverbs serve, rping -s (-k cm) or an rdma-core pingpong (--pingpong)."`
	pingDefaults
	Kind     []string      `short:"k" enum:"rc,ud,cm" default:"rc,ud,cm" help:"Transports to test: rc, ud, cm."`
	Count    int           `short:"n" default:"10" help:"Messages per transport."`
	Size     int           `short:"s" default:"64" help:"Message size in bytes."`
	Timeout  time.Duration `short:"t" default:"5s" help:"Timeout for each answer."`
	PingPong bool          `name:"pingpong" help:"The peer is ibv_rc_pingpong -g or ibv_ud_pingpong -g."`
}

func (c pingCommand) Run(o output) error {
	if err := c.checkPeer(c.Peer, c.Timeout); err != nil {
		return err
	}
	if err := cmp.Or(within("--count", c.Count, 1, unlimited), within("--size", c.Size, 1, ping.MaxMessage)); err != nil {
		return err
	}
	o.warnAlone(c.Device)
	ctx, stop := o.untilInterrupted()
	defer stop()
	if c.PingPong && len(c.Kind) == len(ping.Kinds) {
		c.Kind = []string{ping.RC}
	}
	report, err := ping.Run(ctx, &ping.Options{Device: c.Device, GIDIndex: c.GIDIndex, Peer: c.Peer, Port: c.Port,
		CMPort: c.CMPort, Kinds: c.Kind, Count: c.Count, Size: c.Size, Timeout: c.Timeout, PingPong: c.PingPong,
		Leave: leave.Descriptors})
	if err != nil {
		return err
	}
	if err := errors.Join(o.print(report), ctx.Err()); err != nil {
		return err
	}
	if n := report.Failed(); n > 0 {
		return fmt.Errorf("%d of %d transports failed", n, len(report.Results))
	}
	return nil
}

type serveCommand struct {
	pingDefaults
	PingPong string `name:"pingpong" enum:"rc,ud" default:"rc" help:"Which rdma-core pingpong to answer: rc or ud."`
}

func (c serveCommand) Run(o output) error {
	if err := c.check(0); err != nil {
		return err
	}
	o.warnAlone(c.Device)
	ctx, stop := o.untilInterrupted()
	defer stop()
	s := &ping.Server{Device: c.Device, GIDIndex: c.GIDIndex, Port: c.Port, CMPort: c.CMPort, PingPong: c.PingPong,
		Leave: leave.Descriptors,
		Log:   func(line string) { fmt.Fprintln(os.Stderr, printable.Text(strings.TrimSpace(line))) }}
	if err := s.Listen(); err != nil {
		return err
	}
	return o.runServer(ctx, "listening", func(ctx context.Context, at func(string)) error {
		at(net.JoinHostPort("", strconv.Itoa(c.Port)))
		return s.Run(ctx)
	})
}
