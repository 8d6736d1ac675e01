// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/doctor"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/ping"
)

type doctorCommand struct {
	Peer *string `arg:"" optional:"" help:"Host where goverbs serve runs: what is between it and this one, too."`
	pingDefaults
	Interval time.Duration `short:"i" default:"1s" help:"How long to watch counters."`
	Timeout  time.Duration `short:"t" default:"5s" help:"How long to wait for an answer of the peer."`
}

func (c doctorCommand) Run(o output) error {
	if c.Peer != nil {
		if err := c.ofPeer(*c.Peer, c.Timeout); err != nil {
			return err
		}
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	host, err := doctor.Here(ctx, c.Interval)
	if err != nil {
		return err
	}
	if host.Chosen = c.Device; c.Device != "" && !host.Knows(c.Device) {
		return fmt.Errorf("no device here is called %q: goverbs devices lists those that are, and soft@ADDRESS is one "+
			"in software at an address of this host; without -d, goverbs doctor says what keeps others away", c.Device)
	}
	report := doctor.Examine(host)
	var apart error
	if c.Peer != nil {
		apart = doctor.ExaminePair(ctx, doctor.Real, ping.Options{Device: c.Device, GIDIndex: c.GIDIndex, Peer: *c.Peer,
			Port: c.Port, CMPort: c.CMPort, Size: 64, Timeout: c.Timeout,
			Leave: leave.Descriptors}, report)
		if ctx.Err() != nil {
			return apart
		}
	}
	if err := o.print(report); err != nil { // also without what is between both: it may say why
		return err
	}
	if apart != nil {
		return fmt.Errorf("nothing between this host and %s was tried: %w", *c.Peer, apart)
	}
	if n := report.Problems(); n > 0 {
		return fmt.Errorf("problems: %d", n)
	}
	return nil
}
