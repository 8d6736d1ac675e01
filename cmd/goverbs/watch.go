// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/exporter"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/top"
)

// watchCommands watch kernel devices.
type watchCommands struct {
	Top      topCommand      `cmd:"" help:"Show RDMA objects per process, live."`
	Exporter exporterCommand `cmd:"" help:"Export port counters and RDMA objects as Prometheus metrics."`
}

// topCommand shows RDMA objects per process.
type topCommand struct {
	Once     bool          `short:"1" help:"Print one report and exit."`
	Interval time.Duration `short:"i" default:"1s" help:"Time between reports."`
	Count    int           `short:"n" help:"Exit after this many reports."`
	Device   string        `short:"d" predictor:"device" name:"ib-dev" help:"Show only this kernel device."`
	PID      []uint32      `short:"p" name:"pid" help:"Show only these processes."`
	Name     string        `help:"Show only programs whose name contains this text."`
	Sort     string        `short:"s" enum:"${sorts}" default:"objects" help:"Sort key, in descending order: ${sorts}."`
	Grown    bool          `short:"g" help:"Show only programs whose object count has grown."`
	Since    string        `placeholder:"FILE" type:"path" help:"Compare with a report saved by goverbs --json top -1."`
	Objects  bool          `short:"o" help:"List every object."`
	Stats    string        `placeholder:"DIR" env:"GOVERBS_STATS" help:"Read statistics of programs started with GOVERBS_STATS=DIR."`
	Counters bool          `short:"c" help:"Show all counters, not only those that increase."`
}

func (c topCommand) Run(o output) error {
	if err := cmp.Or(within("--interval", c.Interval, 10*time.Millisecond, unlimited),
		within("--count", c.Count, 0, unlimited)); err != nil {
		return err
	}
	if c.Grown && c.Once && c.Since == "" {
		return usageError{errors.New("--grown needs an earlier report to compare with; give one with --since, or leave out --once")}
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	loop := top.Loop{Once: c.Once, Interval: c.Interval, Count: c.Count, Since: c.Since, JSON: o.json,
		Options: top.Options{Device: c.Device, PIDs: c.PID, Name: c.Name, Sort: c.Sort, Growing: c.Grown,
			Listed: c.Objects, Counters: c.Counters}}
	host := resources.Here()
	host.Publish(c.Stats)
	return loop.Run(ctx, host, o.w)
}

// exporterCommand serves metrics for Prometheus.
type exporterCommand struct {
	Listen    string `default:"127.0.0.1:9479" help:"Listen address, HOST:PORT; :9479 listens on all interfaces."`
	Once      bool   `short:"1" help:"Print the metrics and exit (for node_exporter's textfile collector)."`
	By        string `enum:"name,pid,none" default:"name" help:"Label processes by name, by name and PID, or not at all."`
	Stats     string `placeholder:"DIR" env:"GOVERBS_STATS" help:"Read statistics of programs started with GOVERBS_STATS=DIR."`
	Processes int    `default:"50" help:"Maximum number of processes per device; the rest are summed."`
}

func (c exporterCommand) Run(o output) error {
	ctx, stop := o.untilInterrupted()
	defer stop()
	return c.export(ctx, resources.Here(), o)
}

func (c exporterCommand) export(ctx context.Context, host *resources.Host, o output) error {
	if err := within("--processes", c.Processes, 0, unlimited); err != nil {
		return err
	}
	host.Publish(c.Stats)
	collector := &exporter.Collector{Host: host, By: c.By, Processes: c.Processes}
	if c.Once {
		all, err := exporter.Gather(collector)
		if err != nil {
			return err
		}
		if o.json {
			return o.print(all)
		}
		return all.WriteText(o.w) // not o.print, which escapes characters
	}
	return o.runServer(ctx, "serving metrics", func(ctx context.Context, at func(string)) error {
		return exporter.Serve(ctx, c.Listen, collector, func(a net.Addr) { at(fmt.Sprintf("http://%v/metrics", a)) })
	})
}
