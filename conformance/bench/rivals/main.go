// SPDX-License-Identifier: BSD-2-Clause

// Command rivals compares a stream on the software device, with copied or lent memory, with loopback TCP and a Unix
// socket in Go, in interleaved rounds with both ends in this process. It measures a round trip of 64 bytes, how often
// threads slept for it, and writes of 1 MiB.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// rival is one kind of connection, with the results of each round.
type rival struct {
	name                  string
	near, far             net.Conn
	write                 func([]byte) (int, error) // Write of the near end
	trip, slept, megabyte []float64
}

func main() {
	rounds := flag.Int("rounds", 9, "number of measurements of each kind")
	span := flag.Duration("time", 200*time.Millisecond, "duration of each measurement")
	only := flag.String("only", "stream,lends,tcp,unix", "kinds to measure; the first is the baseline")
	busy := flag.Duration("busy", 0, "BusyPoll of the stream; -1ns is learned")
	flag.Parse()
	var all []*rival
	for _, name := range strings.Split(*only, ",") {
		r, err := connect(name, *busy)
		if err != nil {
			log.Fatal(err)
		}
		all = append(all, r)
	}
	for range *rounds {
		for _, r := range all {
			if err := r.round(*span); err != nil {
				log.Fatal(err)
			}
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\t64 B: µs, least\tmedian\t× %s\tsleeps\t1 MiB: MB/s, most\tmedian\t× %[1]s\t\n", all[0].name)
	for _, r := range all {
		fmt.Fprintf(w, "%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t%.0f\t%.2f\t\n", r.name, slices.Min(r.trip), median(r.trip),
			median(r.trip)/median(all[0].trip), median(r.slept), slices.Max(r.megabyte), median(r.megabyte),
			median(r.megabyte)/median(all[0].megabyte))
	}
	w.Flush()
}

// connect opens a connection whose far end echoes pieces of 64 bytes and discards the rest.
func connect(name string, busy time.Duration) (*rival, error) {
	r := &rival{name: name}
	var l net.Listener
	var err error
	dial := net.Dial
	switch name {
	case "stream", "lends":
		var fabric *soft.Fabric
		if fabric, err = soft.New(soft.Options{}); err != nil {
			return nil, err
		}
		config := stream.Config{Backend: fabric, BusyPoll: busy}
		lc := stream.ListenConfig{Config: config}
		l, err = lc.Listen(context.Background(), "127.0.0.1:0")
		dialer := stream.Dialer{Config: config}
		dial = func(network, address string) (net.Conn, error) {
			return dialer.DialContext(context.Background(), network, address)
		}
	case "tcp":
		l, err = net.Listen("tcp", "127.0.0.1:0")
	case "unix":
		var dir string
		if dir, err = os.MkdirTemp("", "rivals"); err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		l, err = net.Listen("unix", filepath.Join(dir, "s"))
	default:
		err = fmt.Errorf("unknown kind %q; use stream, lends, tcp or unix", name)
	}
	if err != nil {
		return nil, err
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		var err error
		r.far, err = l.Accept()
		accepted <- err
	}()
	if r.near, err = dial(l.Addr().Network(), l.Addr().String()); err != nil {
		return nil, err
	}
	if err := <-accepted; err != nil {
		return nil, err
	}
	read := r.far.Read
	r.write = r.near.Write
	if name == "lends" {
		remote := r.far.(*stream.Conn)
		read = func(p []byte) (int, error) {
			return remote.ReadLent(func(lent []byte) (int, error) { return min(len(lent), len(p)), nil })
		}
		r.write = r.near.(*stream.Conn).WriteLent
	}
	go r.serve(read)
	return r, nil
}

const (
	word  = 64
	block = 1 << 20
)

// serve echoes 64-byte pieces, and acknowledges a block with one byte.
func (r *rival) serve(read func([]byte) (int, error)) {
	p := make([]byte, block)
	for {
		n, err := read(p)
		if err != nil {
			return
		}
		answer := p[:n]
		if n != word {
			for n < block {
				more, err := read(p[n:])
				if err != nil {
					return
				}
				n += more
			}
			answer = p[:1]
		}
		if _, err := r.far.Write(answer); err != nil {
			return
		}
	}
}

// round measures for twice the span.
func (r *rival) round(span time.Duration) error {
	before := sleeps()
	each, n, err := r.repeat(span, make([]byte, word), word)
	if err != nil {
		return err
	}
	r.trip = append(r.trip, each.Seconds()*1e6)
	r.slept = append(r.slept, float64(sleeps()-before)/float64(n))
	each, _, err = r.repeat(span, make([]byte, block), 1)
	r.megabyte = append(r.megabyte, block/each.Seconds()/1e6)
	return err
}

// repeat sends p and reads a reply until span is over, and returns the time for each exchange.
func (r *rival) repeat(span time.Duration, p []byte, answer int) (each time.Duration, n int, err error) {
	for start := time.Now(); ; {
		for range 16 {
			if _, err = r.write(p); err == nil {
				_, err = io.ReadFull(r.near, p[:answer])
			}
			if err != nil {
				return 0, 0, err
			}
			n++
		}
		if elapsed := time.Since(start); elapsed >= span {
			return elapsed / time.Duration(n), n, nil
		}
	}
}

// sleeps returns the number of voluntary context switches of this process.
func sleeps() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return int64(u.Nvcsw)
}

func median[T cmp.Ordered](all []T) T { return slices.Sorted(slices.Values(all))[len(all)/2] }
