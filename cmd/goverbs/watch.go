// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/exporter"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/resources"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/top"
)

// watchCommands watch the devices of the kernel.
type watchCommands struct {
	Top      topCommand      `cmd:"" help:"Show which objects programs have on devices, and what grows."`
	Exporter exporterCommand `cmd:"" help:"Serve metrics for Prometheus: of ports, and of programs' objects."`
}

// topCommand shows what programs have on devices.
type topCommand struct {
	Once     bool          `short:"1" help:"Print one report, and end."`
	Interval time.Duration `short:"i" default:"1s" help:"Time between reports."`
	Count    int           `short:"n" help:"End after so many reports."`
	Device   string        `short:"d" predictor:"device" name:"ib-dev" help:"Only this device of the kernel."`
	PID      []uint32      `short:"p" name:"pid" help:"Only these processes."`
	Name     string        `help:"Only programs whose names have this in them."`
	Sort     string        `short:"s" enum:"${sorts}" default:"objects" help:"Largest first: ${sorts}."`
	Grown    bool          `short:"g" help:"Only programs that have more than at the beginning, such as leaks."`
	Since    string        `placeholder:"FILE" type:"path" help:"The beginning: what goverbs --json top -1 printed."`
	Objects  bool          `short:"o" help:"List every object."`
	Stats    string        `placeholder:"DIR" env:"GOVERBS_STATS" help:"Ask programs started with GOVERBS_STATS=DIR."`
	Counters bool          `short:"c" help:"Show every counter, not only those that rise."`
}

func (c topCommand) Run(o output) error {
	if c.Interval < 10*time.Millisecond {
		return errors.New("the kernel should not be asked more often than every 10 ms: give a longer interval")
	}
	if c.Grown && c.Once && c.Since == "" {
		return errors.New("one report alone does not say what has grown: give one of before with --since, or leave " +
			"out --once")
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
	Listen    string `default:"127.0.0.1:9479" help:"Address of the server, HOST:PORT; :9479 is all of this host."`
	Once      bool   `short:"1" help:"Print the metrics, and end: a file for node_exporter's textfile collector."`
	By        string `enum:"name,pid,none" default:"name" help:"Tell processes apart by name, by name and PID, or not."`
	Stats     string `placeholder:"DIR" env:"GOVERBS_STATS" help:"Ask programs started with GOVERBS_STATS=DIR."`
	Processes int    `default:"50" help:"Most processes of a device; what the smaller ones have is added up."`
}

func (c exporterCommand) Run(o output) error {
	ctx, stop := o.untilInterrupted()
	defer stop()
	return c.export(ctx, resources.Here(), o)
}

func (c exporterCommand) export(ctx context.Context, host *resources.Host, o output) error {
	if c.Processes < 0 {
		return fmt.Errorf("there cannot be %d processes", c.Processes)
	}
	host.Publish(c.Stats)
	registry := (&exporter.Collector{Host: host, By: c.By, Processes: c.Processes}).Registry()
	switch {
	case c.Once && o.json:
		all, err := registry.Gather()
		if err != nil {
			return err
		}
		return o.print(exporter.Document(all))
	case c.Once:
		return exporter.Write(o.w, registry)
	}
	return o.serving(ctx, "metrics", func(ctx context.Context, at func(string)) error {
		return exporter.Serve(ctx, c.Listen, registry, func(a net.Addr) { at(fmt.Sprintf("http://%v/metrics", a)) })
	})
}
