// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/ping"
	"github.com/goverbs/goverbs/internal/printable"
)

// pingDefaults are options of both ends.
type pingDefaults struct {
	Device   string `short:"d" predictor:"device" help:"Device; without it, GOVERBS_DEVICE or the first one."`
	GIDIndex int    `short:"x" name:"gid-index" default:"-1" help:"Index of the GID; -1 is the best."`
	Port     int    `short:"p" default:"18517" help:"TCP port where the ends meet."`
	CMPort   int    `name:"cm-port" default:"7174" help:"Port of the connection manager."`
}

// inRange says which number cannot be meant. The connection manager's port may be 0 at a server alone: none.
func (d pingDefaults) inRange(leastCM int) error {
	switch {
	case d.Port < 1 || d.Port > 65535:
		return fmt.Errorf("a TCP port is from 1 to 65535, not %d: see -p", d.Port)
	case d.CMPort < leastCM || d.CMPort > 65535:
		return fmt.Errorf("a port of the connection manager is from %d to 65535, not %d: see --cm-port", leastCM,
			d.CMPort)
	}
	return nil
}

// ofPeer says which option about a peer cannot be meant.
func (d pingDefaults) ofPeer(peer string, timeout time.Duration) error {
	switch {
	case peer == "":
		return errors.New("the peer has no name: give its address, or its host's name")
	case timeout <= 0:
		return fmt.Errorf("an answer takes more than %v: see -t", timeout)
	}
	return d.inRange(1)
}

type pingCommand struct {
	Peer string `arg:"" help:"Host where goverbs serve runs; or a program of rdma-core, see --pingpong and --kind cm."`
	pingDefaults
	Kind     []string      `short:"k" enum:"rc,ud,cm" default:"rc,ud,cm" help:"What to ping with: rc, ud, cm."`
	Count    int           `short:"n" default:"10" help:"Messages of each kind."`
	Size     int           `short:"s" default:"64" help:"Bytes of a message."`
	Timeout  time.Duration `short:"t" default:"5s" help:"How long to wait for an answer."`
	PingPong bool          `name:"pingpong" help:"The peer is ibv_rc_pingpong or ibv_ud_pingpong, with -g."`
}

func (c pingCommand) Run(o output) error {
	if err := c.ofPeer(c.Peer, c.Timeout); err != nil {
		return err
	}
	if c.Count < 1 {
		return fmt.Errorf("%d messages tell nothing: see -n", c.Count)
	}
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
		return fmt.Errorf("%d of %d kinds of pings failed: see above", n, len(report.Results))
	}
	return nil
}

type serveCommand struct {
	pingDefaults
	PingPong string `name:"pingpong" enum:"rc,ud" default:"rc" help:"What programs of rdma-core are served: rc or ud."`
}

func (c serveCommand) Run(o output) error {
	if err := c.inRange(0); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	s := &ping.Server{Device: c.Device, GIDIndex: c.GIDIndex, Port: c.Port, CMPort: c.CMPort, PingPong: c.PingPong,
		Leave: leave.Descriptors,
		Said:  func(line string) { fmt.Fprintln(os.Stderr, printable.Text(strings.TrimSpace(line))) }}
	if err := s.Listen(); err != nil {
		return err
	}
	return o.serving(ctx, "pings are answered", func(ctx context.Context, at func(string)) error {
		at(net.JoinHostPort("", strconv.Itoa(c.Port)))
		return s.Run(ctx)
	})
}
