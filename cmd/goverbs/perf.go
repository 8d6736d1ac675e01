// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"errors"
	"math"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/perf"
)

// perfCommand has perftest's flags where an equivalent exists.
type perfCommand struct {
	Verb string `arg:"" enum:"send,write,read,atomic" help:"Operation: send, write, read or atomic."`
	Peer string `arg:"" optional:"" help:"Server to connect to; without it, run as the server."`

	BW         bool   `name:"bw" xor:"kind" help:"Measure bandwidth (the default)."`
	Both       bool   `short:"b" name:"bidirectional" help:"Measure bandwidth in both directions at once."`
	Lat        bool   `name:"lat" xor:"kind" help:"Measure latency."`
	Device     string `short:"d" predictor:"device" name:"ib-dev" help:"Device; default: GOVERBS_DEVICE or the first device."`
	GIDIndex   int    `short:"x" name:"gid-index" default:"-1" help:"GID index; -1: choose automatically."`
	Connection string `short:"c" default:"RC" help:"Transport: RC, UC or UD."`
	Size       string `short:"s" help:"Message size, such as 65536, 64k or 1M."`
	All        bool   `short:"a" help:"Run all powers of two from 2 bytes to 8 MiB."`
	Iterations int    `short:"n" name:"iters" default:"-1" help:"Messages per queue pair; -1: 5000, or 1000 with --lat."`
	Duration   int    `short:"D" help:"Run for this many seconds instead of a message count."`
	QPs        int    `short:"q" name:"qp" default:"1" help:"Number of queue pairs."`
	MTU        int    `short:"m" name:"mtu" help:"Path MTU in bytes, 256 to 4096; default: the port's."`
	TxDepth    int    `short:"t" name:"tx-depth" default:"128" help:"Send queue depth."`
	RxDepth    int    `short:"r" name:"rx-depth" default:"512" help:"Receive queue depth."`
	List       int    `short:"l" name:"post_list" default:"1" help:"Work requests per post."`
	Inline     int    `short:"I" name:"inline_size" default:"-1" help:"Send messages of up to this size inline; -1: automatic."`
	Moderate   int    `short:"Q" name:"cq-mod" default:"100" help:"Signal every Nth message."`
	Events     bool   `short:"e" help:"Sleep on completion events instead of polling."`
	Timeout    int    `short:"u" name:"qp-timeout" default:"18" help:"Retransmission timeout: 4 µs * 2^N."`
	Manager    bool   `short:"R" name:"rdma_cm" help:"Connect with the RDMA connection manager."`
	Port       int    `short:"p" default:"18515" help:"TCP port for the exchange."`
	Silence    int    `default:"30" help:"Peer timeout in seconds."`
	TCP        bool   `name:"tcp" help:"Also run the test over TCP, for comparison."`
	HDR        string `placeholder:"FILE" help:"Write latencies as an HdrHistogram log, or percentiles if FILE ends in .hgrm."`
	HTML       string `name:"html" placeholder:"FILE" help:"Write an HTML page with plots."`
	Gbits      bool   `name:"report_gbits" hidden:"" help:"Accepted for perftest; both units are always printed."`
	NoCPU      bool   `short:"F" name:"CPU-freq" hidden:"" help:"Accepted for perftest; no effect."`
}

func (c perfCommand) Run(o output) error {
	options := &perf.Options{
		Verb: c.Verb, Latency: c.Lat, Both: c.Both, Connection: c.Connection, All: c.All, Iterations: c.Iterations,
		Duration: time.Duration(c.Duration) * time.Second, QPs: c.QPs, Device: c.Device, GIDIndex: c.GIDIndex,
		Peer: c.Peer, Port: c.Port, MTU: c.MTU, TxDepth: c.TxDepth, RxDepth: c.RxDepth, List: c.List, Inline: c.Inline,
		Moderate: c.Moderate, Events: c.Events, Timeout: c.Timeout, Manager: c.Manager,
		Silence: time.Duration(c.Silence) * time.Second,
		TCP:     c.TCP, HDR: c.HDR, Progress: statusLine(o.problems), Leave: leave.Manager,
	}
	if options.Iterations == -1 {
		if options.Iterations = 5000; c.Lat {
			options.Iterations = 1000
		}
	}
	if !o.json {
		options.Waiting = func(at string) {
			page.Log(o.problems, "waiting for %s or goverbs perf on %s", options, at)
		}
	}
	if err := cmp.Or(
		within("--gid-index", c.GIDIndex, -1, maxGIDIndex),
		within("--duration", c.Duration, 0, math.MaxInt32),
		within("--inline_size", c.Inline, -1, math.MaxInt32),
		within("--cq-mod", c.Moderate, 1, math.MaxInt32),
	); err != nil {
		return err
	}
	if err := options.Complete(c.Size); err != nil {
		return usageError{err}
	}
	o.warnAlone(c.Device)
	ctx, stop := o.untilInterrupted()
	defer stop()
	report, err := perf.Run(ctx, options)
	if err != nil && (report == nil || !report.Interrupted || len(report.Rows) == 0) {
		return err
	}
	err = errors.Join(err, o.print(report)) // print before writing files, which can fail
	if c.HDR != "" && len(report.Rows) > 0 {
		err = errors.Join(err, report.SaveHistograms(c.HDR))
	}
	if c.HTML != "" {
		err = errors.Join(err, report.SaveWebPage(c.HTML))
	}
	return err
}
