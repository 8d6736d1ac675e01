// SPDX-License-Identifier: BSD-2-Clause

// Package perf measures bandwidth and latency between two hosts. The other end is this package or a program of
// linux-rdma/perftest (ib_send_bw, ib_read_lat, and so on) from 4.5 on: it speaks their exchange in both roles.
package perf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Options say what to measure. Both ends must be told the same of everything above Device: perftest's exchange has no
// place for it.
type Options struct {
	Verb       string        // "send", "write", "read", "atomic"
	Latency    bool          // otherwise bandwidth
	Both       bool          // both ends send, write, read or add at the same time
	Connection string        // "RC", "UC", "UD"
	Sizes      []int         // bytes of a message, one test each
	All        bool          // Sizes are all powers of two, as of perftest's -a
	Iterations int           // messages of each queue pair
	Duration   time.Duration // 0: Iterations count
	QPs        int

	Device   string
	GIDIndex int // -1: the best
	Peer     string
	Port     int // of the exchange over TCP
	MTU      int // bytes; 0: the port's
	TxDepth  int
	RxDepth  int
	List     int // requests of a post
	Inline   int // messages up to so many bytes are inline; -1: what is usual for the test
	Moderate int // every so many requests of a queue pair have a completion
	Events   bool
	Timeout  int  // of an acknowledgement: 4.096 µs * 2^Timeout; 0 is none
	Manager  bool // queue pairs connect by the connection manager, and the exchange is over one of its connections

	Silence time.Duration // how long the peer may have nothing to say where it is its turn; 0: 30 s

	TCP      bool              // the same over TCP beside it, if both ends are this program
	HDR      string            // file for histograms of latencies, or ""
	Progress func(line string) // shows how far a long test is, "" at its end; nil: nobody looks
	Waiting  func(at string)   // told where a server waits, once it does; nil: nobody is

	// Leave has another process close what this one has open of the kernel's connection manager, when this one has
	// ended, and says if there is something: with -R, that may take Linux long after something failed. With nil, this
	// one closes it and waits.
	Leave func() (left bool, err error)
}

// Defaults are perftest's.
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

// Complete fills what is not set, and refuses what cannot be measured.
func (o *Options) Complete(size string) error {
	switch o.Verb {
	case "send", "write", "read", "atomic":
	default:
		return fmt.Errorf("there is no test of %q: send, write, read and atomic can be measured", o.Verb)
	}
	o.Connection = strings.ToUpper(o.Connection)
	if _, ok := transports[o.Connection]; !ok {
		return fmt.Errorf("a connection of type %q cannot be measured: RC, UC and UD can", o.Connection)
	}
	switch {
	case o.Connection == "UD" && o.Verb != "send":
		return fmt.Errorf("UD has no %s: measure send, or RC", o.Verb)
	case o.Connection == "UC" && (o.Verb == "read" || o.Verb == "atomic"):
		return fmt.Errorf("UC has no %s: measure send or write, or RC", o.Verb)
	case o.Duration < 0:
		return fmt.Errorf("a test of %v cannot end", o.Duration)
	case o.Duration > 0 && o.All:
		return fmt.Errorf("all sizes and a duration exclude each other: name one size")
	case o.Manager && o.Connection == "UC":
		return errors.New("with -R, RC and UD can be measured, not UC: the connection manager has no port space for it")
	case o.Latency && o.Both:
		return errors.New("latency is that of one message after the other: leave out -b, or measure bandwidth")
	case o.Both && o.Events && o.Verb == "send":
		return errors.New("an end that sends and receives asks two completion queues: leave out -e or -b")
	case o.Latency && o.QPs > 1:
		return fmt.Errorf("latency is that of one queue pair, not of %d", o.QPs)
	case o.Latency && o.List > 1:
		return fmt.Errorf("latency is that of one message, not of lists of %d", o.List)
	}
	for _, n := range []struct {
		what        string
		n, from, to int
	}{
		{"the number of queue pairs", o.QPs, 1, maxQPs}, {"the depth of the send queue", o.TxDepth, 1, maxDepth},
		{"the depth of the receive queue", o.RxDepth, 1, maxDepth}, {"the length of lists", o.List, 1, o.TxDepth},
		{"the number of iterations", o.Iterations, 1, 1 << 30}, {"the port", o.Port, 1, 65535},
		{"the timeout", o.Timeout, 0, 31}, {"the silence of a peer", int(o.Silence / time.Second), 0, 1 << 30},
	} {
		if n.n < n.from || n.n > n.to {
			return fmt.Errorf("%s is %d: it is from %d to %d", n.what, n.n, n.from, n.to)
		}
	}
	if o.MTU != 0 && ibvMTU(o.MTU) == 0 {
		return fmt.Errorf("an MTU has 256, 512, 1024, 2048 or 4096 bytes, not %d", o.MTU)
	}
	if o.Iterations%o.List != 0 {
		return fmt.Errorf("%d iterations are no whole number of lists of %d", o.Iterations, o.List)
	}
	if o.Silence == 0 {
		o.Silence = DefaultSilence
	}
	o.Moderate = max(1, min(o.Moderate, o.TxDepth, o.Iterations))
	if o.Latency || o.Verb == "read" && o.TxDepth == 1 {
		o.Moderate = 1
	}
	if o.Moderate%o.List != 0 { // whole lists have a completion
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
			return fmt.Errorf("atomic operations have %d bytes, not %s", atomicSize, size)
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

// bytesOf reads a size: "65536", "64k", "1M".
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
		return 0, fmt.Errorf("%q is no size of a message: it is from 1 to 1 GiB, as 65536, 64k or 1M", s)
	}
	return n * unit, nil
}

var transports = map[string]ibv.QPType{"RC": ibv.QPT_RC, "UC": ibv.QPT_UC, "UD": ibv.QPT_UD}

// ibvMTU is the enumerator of a number of bytes; 0: there is none.
func ibvMTU(bytes int) ibv.MTU {
	for m := ibv.MTU_256; m <= ibv.MTU_4096; m++ {
		if 128<<m == bytes {
			return m
		}
	}
	return 0
}

// oneSided says that the server's program has nothing to do while the test runs.
func (o *Options) oneSided() bool {
	return o.Verb == "read" || o.Verb == "atomic" || o.Verb == "write" && !o.Latency
}

func (o *Options) client() bool { return o.Peer != "" }

// String names the test as perftest's program for it is called.
func (o *Options) String() string {
	kind := "bw"
	if o.Latency {
		kind = "lat"
	}
	return "ib_" + o.Verb + "_" + kind
}
