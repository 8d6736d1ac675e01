// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/leave"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/page"
	"github.com/goverbs/goverbs/cmd/goverbs/internal/perf"
)

// perfCommand has perftest's options where it has their like.
type perfCommand struct {
	Verb string `arg:"" enum:"send,write,read,atomic" help:"What to measure: send, write, read or atomic."`
	Peer string `arg:"" optional:"" help:"Host of the server. Without it, this end is the server."`

	BW         bool   `name:"bw" xor:"kind" help:"Measure bandwidth; this is what it does."`
	Both       bool   `short:"b" name:"bidirectional" help:"Bandwidth of both ends at the same time."`
	Lat        bool   `name:"lat" xor:"kind" help:"Measure latency."`
	Device     string `short:"d" predictor:"device" name:"ib-dev" help:"Device; without it, GOVERBS_DEVICE or the first one."`
	GIDIndex   int    `short:"x" name:"gid-index" default:"-1" help:"Index of the GID; -1 is the best."`
	Connection string `short:"c" default:"RC" help:"Type of the connection: RC, UC or UD."`
	Size       string `short:"s" help:"Bytes of a message: 65536, 64k, 1M."`
	All        bool   `short:"a" help:"All powers of two from 2 bytes to 8 MiB."`
	Iterations int    `short:"n" name:"iters" default:"-1" help:"Messages a queue pair; -1: 5000, of a latency 1000."`
	Duration   int    `short:"D" help:"Seconds, in place of a number of messages."`
	QPs        int    `short:"q" name:"qp" default:"1" help:"Queue pairs."`
	MTU        int    `short:"m" name:"mtu" help:"Bytes: 256 to 4096."`
	TxDepth    int    `short:"t" name:"tx-depth" default:"128" help:"Depth of a send queue."`
	RxDepth    int    `short:"r" name:"rx-depth" default:"512" help:"Depth of a receive queue."`
	List       int    `short:"l" name:"post_list" default:"1" help:"Requests of a post."`
	Inline     int    `short:"I" name:"inline_size" default:"-1" help:"Messages of up to so many bytes are inline."`
	Moderate   int    `short:"Q" name:"cq-mod" default:"100" help:"Every so many messages have a completion."`
	Events     bool   `short:"e" help:"Sleep until there are completions."`
	Timeout    int    `short:"u" name:"qp-timeout" default:"18" help:"A lost packet is noticed after 4 µs * 2^this."`
	Manager    bool   `short:"R" name:"rdma_cm" help:"Connect by the connection manager."`
	Port       int    `short:"p" default:"18515" help:"TCP port of the exchange."`
	Silence    int    `default:"30" help:"Seconds after which a peer is given up from which nothing comes."`
	TCP        bool   `name:"tcp" help:"Measure the same over TCP, too, if goverbs is at both ends."`
	HDR        string `placeholder:"FILE" help:"Write latencies as a log of HdrHistogram, or FILE.hgrm, percentiles."`
	HTML       string `name:"html" placeholder:"FILE" help:"Write a page of plots for a browser; it needs no network."`
	Gbits      bool   `name:"report_gbits" hidden:"" help:"Both units are always there."`
	NoCPU      bool   `short:"F" name:"CPU-freq" hidden:"" help:"There is no warning that could be turned off."`
}

func (c perfCommand) Run(o output) error {
	options := &perf.Options{
		Verb: c.Verb, Latency: c.Lat, Both: c.Both, Connection: c.Connection, All: c.All, Iterations: c.Iterations,
		Duration: time.Duration(c.Duration) * time.Second, QPs: c.QPs, Device: c.Device, GIDIndex: c.GIDIndex,
		Peer: c.Peer, Port: c.Port, MTU: c.MTU, TxDepth: c.TxDepth, RxDepth: c.RxDepth, List: c.List, Inline: c.Inline,
		Moderate: c.Moderate, Events: c.Events, Timeout: c.Timeout, Manager: c.Manager,
		Silence: time.Duration(c.Silence) * time.Second,
		TCP:     c.TCP, HDR: c.HDR, Progress: onTerminal(o.problems), Leave: leave.Manager,
	}
	if options.Iterations == -1 {
		if options.Iterations = 5000; c.Lat {
			options.Iterations = 1000
		}
	}
	if !o.json {
		options.Waiting = func(at string) {
			page.Say(o.problems, "waiting at %s for %s or goverbs perf", at, options)
		}
	}
	if err := options.Complete(c.Size); err != nil {
		return err
	}
	ctx, stop := o.untilInterrupted()
	defer stop()
	report, err := perf.Run(ctx, options)
	if err != nil && (report == nil || !report.Interrupted || len(report.Rows) == 0) {
		return err
	}
	err = errors.Join(err, o.print(report)) // first: a file that cannot be written takes away nothing
	if c.HDR != "" && len(report.Rows) > 0 {
		err = errors.Join(err, report.SaveHistograms(c.HDR))
	}
	if c.HTML != "" {
		err = errors.Join(err, report.SaveWebPage(c.HTML))
	}
	return err
}
