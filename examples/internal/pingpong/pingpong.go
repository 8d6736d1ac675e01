// Package pingpong is what the two ping-pong examples need beside RDMA: flags, the exchange of endpoints over TCP, and what they print. The
// exchange is that of rdma-core's ibv_rc_pingpong and ibv_ud_pingpong, so that each of these can be the other end.
package pingpong

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"
)

// Options are the flags. Those that rdma-core's programs have too mean the same there.
type Options struct {
	Device string
	Port   int  // of TCP
	Size   int  // bytes of a message
	Depth  int  // receives that are posted at most
	Iters  int  // messages there and back
	Events bool // sleep until something completes, instead of polling
	Check  bool // look at the data
	CSV    bool

	listen bool
	host   string
}

// Parse reads the flags. What is in o are the defaults.
func (o *Options) Parse(set *flag.FlagSet, args []string) error {
	set.StringVar(&o.Device, "device", o.Device, "RDMA `device`: rxe0, mlx5_0, or soft0, which every machine has")
	set.BoolVar(&o.listen, "listen", false, "be the end that waits for the other one")
	set.IntVar(&o.Port, "port", 18515, "TCP port for the exchange of endpoints")
	set.IntVar(&o.Size, "size", o.Size, "bytes of a message")
	set.IntVar(&o.Depth, "rx-depth", 500, "receives that are posted")
	set.IntVar(&o.Iters, "iters", 1000, "messages there and back")
	set.BoolVar(&o.Events, "events", false, "sleep until something completes, instead of polling")
	set.BoolVar(&o.Check, "check", false, "look at the data, too")
	set.BoolVar(&o.CSV, "csv", false, "print the latencies as mean,p50,p99 in nanoseconds, and nothing else")
	set.Usage = func() {
		fmt.Fprintf(set.Output(), "usage: %s [flags]          both ends, in this process\n       %[1]s [flags] -listen  one end\n       %[1]s [flags] HOST     the other end\n", set.Name())
		set.PrintDefaults()
	}
	if err := set.Parse(args); err != nil {
		return err
	}
	o.host = set.Arg(0)
	if set.NArg() > 1 || o.host != "" && o.listen || o.Size < 1 || o.Iters < 1 || o.Depth < 1 {
		return errors.New("one host at most, and not with -listen; size, iters and rx-depth are at least 1")
	}
	return nil
}

// Run runs the end that the flags ask for, or both.
func (o *Options) Run(end func(o *Options, l *Link) error) error {
	port := ":" + strconv.Itoa(o.Port)
	if o.host != "" {
		return dial(o.host+port, func(l *Link) error { return end(o, l) })
	}
	if o.listen {
		listener, err := net.Listen("tcp", port)
		if err != nil {
			return err
		}
		return accept(listener, func(l *Link) error { return end(o, l) })
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- accept(listener, func(l *Link) error { l.quiet = true; return end(o, l) }) }()
	go func() { ended <- dial(listener.Addr().String(), func(l *Link) error { return end(o, l) }) }()
	if err = <-ended; err != nil {
		return err // the other end may wait for ever
	}
	return <-ended
}

func dial(address string, end func(l *Link) error) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	return end(&Link{conn: conn, Client: true})
}

func accept(listener net.Listener, end func(l *Link) error) error {
	conn, err := listener.Accept()
	listener.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	return end(&Link{conn: conn})
}

// Report prints how long the messages took there and back.
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
	case o.CSV:
		fmt.Printf("%d,%d,%d\n", mean.Nanoseconds(), p50.Nanoseconds(), p99.Nanoseconds())
	default:
		fmt.Printf("%d messages of %d bytes there and back: mean %v, p50 %v, p99 %v\n", len(took), o.Size, mean, p50, p99)
	}
}

// Fill writes what the sender of a message sends: different bytes each time, and 0 where ibv_rc_pingpong -c looks for it.
func Fill(message []byte, n int) {
	for i := range message {
		message[i] = byte(i*7 + n)
	}
	for i := 0; i < len(message); i += page {
		message[i] = 0
	}
}

// Check looks for the zeros of a message that was received, and spoils them for the next one.
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
