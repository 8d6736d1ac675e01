// SPDX-License-Identifier: BSD-2-Clause

// Package pingpong is shared by the ping-pong examples: flags, the exchange of endpoints over TCP, and the report. The
// exchange is compatible with rdma-core's ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong, each of which can be
// the other end.
package pingpong

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/goverbs/goverbs/examples/internal/meet"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Options are the flags. They have the same meaning as in rdma-core's programs.
type Options struct {
	meet.Options
	Size   int  // bytes of a message
	Depth  int  // largest number of posted receives
	Iters  int  // round trips
	Events bool // sleep until a completion arrives, instead of polling
	Check  bool // check the received data

	csv      bool
	busyPoll time.Duration
}

// Main is the main function of an example. end runs one end; own adds flags of this example.
func Main(name string, size int, end func(o *Options, l *Link) error, own ...func(*flag.FlagSet)) {
	o, set := new(Options), flag.NewFlagSet(name, flag.ExitOnError)
	o.Options.Flags(set)
	set.IntVar(&o.Size, "size", size, "message `bytes`")
	set.IntVar(&o.Depth, "rx-depth", 500, "largest number of posted receives")
	set.IntVar(&o.Iters, "iters", 1000, "round trips")
	set.BoolVar(&o.Events, "events", false, "sleep until a completion arrives, instead of polling")
	set.DurationVar(&o.busyPoll, "busy-poll", rdma.DefaultBusyPoll, "with -events, time to poll before sleeping")
	set.BoolVar(&o.Check, "check", false, "check the received data")
	set.BoolVar(&o.csv, "csv", false, "print a last line of latencies in nanoseconds: mean,p50,p99")
	for _, add := range own {
		add(set)
	}
	err := o.Parse(set, os.Args[1:])
	if err == nil && (o.Size < 1 || o.Iters < 1 || o.Depth < 1) {
		err = errors.New("-size, -iters and -rx-depth must be at least 1")
	}
	if err == nil {
		err = o.Run(func(conn net.Conn, called, both bool) error {
			return end(o, &Link{conn: conn, Client: !called, quiet: called && both})
		})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Wait returns the function that waits for completions, as selected by the flags.
func (o *Options) Wait(cq *rdma.CQ) func(ctx context.Context, dst []ibv.WC) (int, error) {
	if !o.Events {
		return cq.WaitBusy
	}
	cq.SetBusyPoll(o.busyPoll)
	return cq.Wait
}

// Report prints the round-trip times.
func (o *Options) Report(l *Link, took []time.Duration) {
	var sum time.Duration
	for _, t := range took {
		sum += t
	}
	mean := sum / time.Duration(len(took))
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	switch {
	case l.quiet:
	case o.csv:
		fmt.Printf("%d,%d,%d\n", mean.Nanoseconds(), p50.Nanoseconds(), p99.Nanoseconds())
	default:
		fmt.Printf("%d round trips of %d bytes: mean %v, p50 %v, p99 %v\n", len(took), o.Size, mean, p50,
			p99)
	}
}

// Fill fills message n. The bytes differ between messages, except that ibv_rc_pingpong -c expects zeros at some
// offsets.
func Fill(message []byte, n int) {
	for i := range message {
		message[i] = byte(i*7 + n)
	}
	for i := 0; i < len(message); i += page {
		message[i] = 0
	}
}

// Check checks the zeros of a received message and overwrites them for the next message.
func Check(message []byte) error {
	for i := 0; i < len(message); i += page {
		if message[i] != 0 {
			return fmt.Errorf("invalid data in page %d", i/page)
		}
		message[i] = 0xff
	}
	return nil
}

const page = 4096
