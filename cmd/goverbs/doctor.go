// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/doctor"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/ping"
)

type doctorCommand struct {
	Peer *string `arg:"" optional:"" help:"Host that runs goverbs serve; also diagnose the path to it."`
	pingDefaults
	Interval time.Duration `short:"i" default:"1s" help:"Time over which to compare counters."`
	Timeout  time.Duration `short:"t" default:"5s" help:"Timeout for each answer from the peer."`
}

func (c doctorCommand) Run(o output) error {
	if c.Peer != nil {
		if err := c.checkPeer(*c.Peer, c.Timeout); err != nil {
			return err
		}
	}
	if err := cmp.Or(within("--interval", c.Interval, 0, unlimited), within("--timeout", c.Timeout, time.Millisecond, unlimited),
		c.check(1)); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	host, err := doctor.Here(ctx, c.Interval)
	if err != nil {
		return err
	}
	if host.Chosen = c.Device; c.Device != "" && !host.HasDevice(c.Device) {
		return fmt.Errorf("device %q: not found; list devices with goverbs devices, use soft@ADDRESS for a software "+
			"device, or omit -d to see why devices are missing", c.Device)
	}
	report := doctor.Examine(host)
	var pairErr error
	if c.Peer != nil {
		pairErr = doctor.ExaminePair(ctx, doctor.Real, ping.Options{Device: c.Device, GIDIndex: c.GIDIndex,
			Peer: *c.Peer, Port: c.Port, CMPort: c.CMPort, Size: 64, Timeout: c.Timeout,
			Leave: leave.Descriptors}, report)
		if ctx.Err() != nil {
			return pairErr
		}
	}
	if err := o.print(report); err != nil { // even if the pair failed: the local findings may explain it
		return err
	}
	if pairErr != nil {
		return fmt.Errorf("checks between this host and %s did not run: %w", *c.Peer, pairErr)
	}
	if n := report.Problems(); n > 0 {
		return fmt.Errorf("problems found: %d", n)
	}
	return nil
}
