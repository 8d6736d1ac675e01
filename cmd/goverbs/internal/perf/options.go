// SPDX-License-Identifier: BSD-2-Clause

// Package perf measures bandwidth and latency between two hosts. The peer is this package or a program of
// linux-rdma/perftest 4.5 or later (ib_send_bw, ib_read_lat, ...), as client or server. [Run] runs a test and returns a
// [Report].
package perf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Options describe a test. Both ends must have the same values of the fields above Device, which perftest's exchange
// does not transfer.
type Options struct {
	Verb       string        // "send", "write", "read", "atomic"
	Latency    bool          // otherwise bandwidth
	Both       bool          // both directions at once
	Connection string        // "RC", "UC", "UD"
	Sizes      []int         // message sizes in bytes, one test each
	All        bool          // Sizes are all powers of two, like perftest's -a
	Iterations int           // messages per queue pair
	Duration   time.Duration // 0: use Iterations
	QPs        int

	Device   string
	GIDIndex int // -1: choose automatically
	Peer     string
	Port     int // for the exchange over TCP
	MTU      int // bytes; 0: the port's
	TxDepth  int
	RxDepth  int
	List     int // work requests per post
	Inline   int // maximum size of inline messages; -1: perftest's default
	Moderate int // signal every Nth work request
	Events   bool
	Timeout  int  // ACK timeout: 4.096 µs * 2^Timeout; 0: infinite
	Manager  bool // connect and exchange with the connection manager

	Silence time.Duration // peer timeout; 0: 30 s

	TCP      bool              // also run over TCP; both ends must be goverbs
	HDR      string            // file for latency histograms, or ""
	Progress func(line string) // shows progress, "" at the end; may be nil
	Waiting  func(at string)   // called when a server waits; may be nil

	// Leave passes the open descriptors of the kernel's connection manager to another process, which closes them after
	// this one has ended, and reports whether there are any: after a failure with -R, closing may take Linux long. If
	// nil, Run closes them and waits.
	Leave func() (left bool, err error)
}

// Defaults of perftest.
const (
	DefaultPort      = 18515
	DefaultSilence   = 30 * time.Second
	defaultBandwidth = 65536 // bytes
	defaultLatency   = 2
	atomicSize       = 8
	maxQPs           = 16384
	maxSize          = 1 << 30
	maxDepth         = 1 << 15
)

// Complete sets defaults and validates the options.
func (o *Options) Complete(size string) error {
	switch o.Verb {
	case "send", "write", "read", "atomic":
	default:
		return fmt.Errorf("unknown test %q; use send, write, read or atomic", o.Verb)
	}
	o.Connection = strings.ToUpper(o.Connection)
	if _, ok := transports[o.Connection]; !ok {
		return fmt.Errorf("unknown transport %q; use RC, UC or UD", o.Connection)
	}
	switch {
	case o.Connection == "UD" && o.Verb != "send":
		return fmt.Errorf("UD does not support %s; use send, or RC", o.Verb)
	case o.Connection == "UC" && (o.Verb == "read" || o.Verb == "atomic"):
		return fmt.Errorf("UC does not support %s; use send or write, or RC", o.Verb)
	case o.Duration < 0:
		return fmt.Errorf("duration %v is negative; see -D", o.Duration)
	case o.Duration > 0 && o.All:
		return fmt.Errorf("-a and -D cannot be combined; give one size with -s")
	case o.Manager && o.Connection == "UC":
		return errors.New("-R does not support UC, which has no port space; use RC or UD")
	case o.Latency && o.Both:
		return errors.New("--lat and -b cannot be combined; leave out one")
	case o.Both && o.Events && o.Verb == "send":
		return errors.New("send with -b polls two completion queues and cannot sleep; leave out -e or -b")
	case o.Latency && o.QPs > 1:
		return fmt.Errorf("--lat uses one queue pair, not %d; leave out -q", o.QPs)
	case o.Latency && o.List > 1:
		return fmt.Errorf("--lat posts one message at a time, not %d; leave out -l", o.List)
	}
	for _, n := range []struct {
		flag        string
		n, from, to int
	}{
		{"--qp", o.QPs, 1, maxQPs}, {"--tx-depth", o.TxDepth, 1, maxDepth}, {"--rx-depth", o.RxDepth, 1, maxDepth},
		{"--post_list", o.List, 1, o.TxDepth}, {"--iters", o.Iterations, 1, 1 << 30}, {"--port", o.Port, 1, 65535},
		{"--qp-timeout", o.Timeout, 0, 31}, {"--silence", int(o.Silence / time.Second), 0, 1 << 30},
	} {
		if n.n < n.from || n.n > n.to {
			return fmt.Errorf("%s %d: not in %d to %d", n.flag, n.n, n.from, n.to)
		}
	}
	if o.MTU != 0 && ibvMTU(o.MTU) == 0 {
		return fmt.Errorf("invalid MTU %d; use 256, 512, 1024, 2048 or 4096", o.MTU)
	}
	if o.Iterations%o.List != 0 {
		return fmt.Errorf("%d iterations are not a multiple of the list length %d", o.Iterations, o.List)
	}
	if o.Silence == 0 {
		o.Silence = DefaultSilence
	}
	o.Moderate = max(1, min(o.Moderate, o.TxDepth, o.Iterations))
	if o.Latency || o.Verb == "read" && o.TxDepth == 1 {
		o.Moderate = 1
	}
	if o.Moderate%o.List != 0 { // signal the last request of a list
		o.Moderate = max(o.List, o.Moderate/o.List*o.List)
	}
	if err := o.histograms(); err != nil {
		return err
	}
	return o.sizes(size)
}

func (o *Options) sizes(size string) error {
	switch {
	case o.Verb == "atomic":
		if size != "" && size != strconv.Itoa(atomicSize) {
			return fmt.Errorf("atomic operations use %d bytes, not %s", atomicSize, size)
		}
		o.Sizes, o.All = []int{atomicSize}, false
	case o.All:
		for n := 2; n <= 1<<23; n *= 2 {
			o.Sizes = append(o.Sizes, n)
		}
	case size != "":
		n, err := bytesOf(size)
		if err != nil {
			return err
		}
		o.Sizes = []int{n}
	case o.Latency:
		o.Sizes = []int{defaultLatency}
	default:
		o.Sizes = []int{defaultBandwidth}
	}
	return nil
}

// bytesOf parses a size such as "65536", "64k" or "1M".
func bytesOf(s string) (int, error) {
	digits, unit := strings.TrimRight(s, "kKmM"), 1
	switch strings.ToLower(s[len(digits):]) {
	case "":
	case "k":
		unit = 1 << 10
	case "m":
		unit = 1 << 20
	default:
		digits = ""
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > maxSize/unit {
		return 0, fmt.Errorf("invalid message size %q; use 1 to 1 GiB, such as 65536, 64k or 1M", s)
	}
	return n * unit, nil
}

var transports = map[string]ibv.QPType{"RC": ibv.QPT_RC, "UC": ibv.QPT_UC, "UD": ibv.QPT_UD}

// ibvMTU returns the enumerator for an MTU in bytes, or 0.
func ibvMTU(bytes int) ibv.MTU {
	for m := ibv.MTU_256; m <= ibv.MTU_4096; m++ {
		if 128<<m == bytes {
			return m
		}
	}
	return 0
}

// oneSided reports whether the server's program is idle during the test.
func (o *Options) oneSided() bool {
	return o.Verb == "read" || o.Verb == "atomic" || o.Verb == "write" && !o.Latency
}

func (o *Options) client() bool { return o.Peer != "" }

// String returns the name of the equivalent perftest program.
func (o *Options) String() string {
	kind := "bw"
	if o.Latency {
		kind = "lat"
	}
	return "ib_" + o.Verb + "_" + kind
}
