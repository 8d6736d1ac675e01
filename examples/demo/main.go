// SPDX-License-Identifier: BSD-2-Clause

// Command demo runs every RDMA operation between two peers in this process, checks the data, and prints the operations
// per second:
//
//	demo                    between soft0 and soft1, the software devices that are always available
//	demo -device rxe0       between two peers on another device
package main

import (
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

type options struct {
	device, peer string
	time         time.Duration // for each operation
	only         string        // names of operations, separated by commas
	write        string        // file to write the speeds to
	baseline     string        // file with the speeds of another run
}

func main() {
	var o options
	flag.StringVar(&o.device, "device", "soft0", "the RDMA `device` of the peer that posts")
	flag.StringVar(&o.peer, "peer", "", "the `device` of the other peer; by default soft1 if the device is soft0, "+
		"otherwise the same device")
	flag.DurationVar(&o.time, "time", 300*time.Millisecond, "time for each operation")
	flag.StringVar(&o.only, "only", "", "comma-separated operations; by default all")
	flag.StringVar(&o.write, "write", "", "write the operations per second to a new `file`")
	flag.StringVar(&o.baseline, "baseline", "", "`file` of another run to compare with")
	flag.Parse()
	if o.peer == "" {
		if o.peer = o.device; o.device == "soft0" {
			o.peer = "soft1"
		}
	}
	if err := run(&o); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run measures the operations and prints the results.
func run(o *options) error {
	other, err := readSpeeds(o.baseline)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Printf("From %s to %s, both in this process: operations per second, and whether the data arrived.\n\n",
		o.device, o.peer)
	fmt.Fprintf(t, "operation\tqueue pair\tbytes\t%12s\tdata\t", "ops/s")
	if o.baseline != "" {
		fmt.Fprintf(t, "ops/s, %s\t", strings.TrimSuffix(o.baseline[strings.LastIndexByte(o.baseline, '/')+1:], ".csv"))
	}
	fmt.Fprintln(t)
	var speeds [][]string
	var failed error
	for i := range operations {
		op := &operations[i]
		if o.only != "" && !strings.Contains(","+o.only+",", ","+op.name+",") {
			continue
		}
		speed, err := measure(o, op)
		value, data := strconv.Itoa(int(speed)), "ok"
		switch {
		case errors.Is(err, rdma.ErrNotSupported) && !strings.HasPrefix(o.device, "soft"):
			value, data = "-", "not supported by the device"
		case err != nil:
			value, data = "-", "fails"
			failed = errors.Join(failed, fmt.Errorf("%s on %s: %w", op.name, op.on, err))
		}
		fmt.Fprintf(t, "%s\t%s\t%5d\t%12s\t%s\t", op.name, op.on, op.bytes, value, data)
		if o.baseline != "" {
			fmt.Fprintf(t, "%s\t", other[op.name+" "+op.on])
		}
		fmt.Fprintln(t)
		speeds = append(speeds, []string{op.name + " " + op.on, value})
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if o.write != "" {
		failed = errors.Join(failed, write(o.write, speeds))
	}
	return failed
}

// measure runs an operation between two new peers.
func measure(o *options, op *operation) (perSecond float64, err error) {
	s := new(stage)
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(o, op); err != nil {
		return 0, err
	}
	// The median of short measurements excludes those that other programs disturb.
	const rounds = 64
	var speeds []float64
	for start := time.Now(); time.Since(start) < o.time || len(speeds) == 0; {
		if err := s.prepare(len(speeds)); err != nil {
			return 0, err
		}
		began := time.Now()
		for round := range rounds {
			if err := s.round(); err != nil {
				return 0, err
			}
			if round == 0 { // check the data while the clock is stopped
				looked := time.Now()
				if err := s.checkData(); err != nil {
					return 0, fmt.Errorf("round %d: %w", len(speeds)*rounds, err)
				}
				began = began.Add(time.Since(looked))
			}
			if op.count != 0 {
				if err := s.fill(); err != nil {
					return 0, err
				}
			}
		}
		speeds = append(speeds, float64(rounds*s.posted())/time.Since(began).Seconds())
	}
	slices.Sort(speeds)
	return speeds[len(speeds)/2], nil
}

// readSpeeds reads the speeds of another run, by operation.
func readSpeeds(name string) (map[string]string, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	speeds := map[string]string{}
	for _, row := range rows {
		speeds[row[0]] = row[1]
	}
	return speeds, nil
}

func write(name string, rows [][]string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) // O_EXCL: do not follow an existing link
	if err != nil {
		return err
	}
	return errors.Join(csv.NewWriter(f).WriteAll(rows), f.Close())
}

// poll waits for n completions and fails if one of them failed.
func poll(cq *rdma.CQ, s *stage, n int) error {
	var deadline time.Time
	for n > 0 {
		got, err := cq.Poll(s.wcs[:min(n, len(s.wcs))])
		if err != nil {
			return err
		}
		for i := range got {
			if err := rdma.CompletionErr(&s.wcs[i]); err != nil {
				return err
			}
		}
		if n -= got; got > 0 || n == 0 {
			continue
		}
		switch now := time.Now(); {
		case deadline.IsZero():
			deadline = now.Add(5 * time.Second)
		case now.After(deadline):
			return fmt.Errorf("%d completions are missing", n)
		}
	}
	return nil
}
