// Package meet is what the examples need beside RDMA: the two ends of an example meet over TCP, where they tell each other what they have to
// know before they can talk by RDMA.
package meet

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
)

// Options are the flags that every example has.
type Options struct {
	Device string

	port   int
	listen bool
	host   string
}

// Flags adds the flags to a set. usage is what the example does.
func (o *Options) Flags(set *flag.FlagSet) {
	set.StringVar(&o.Device, "device", "soft0", "RDMA `device`: rxe0, mlx5_0, or soft0, which every machine has")
	set.BoolVar(&o.listen, "listen", false, "be the end that waits for the other one")
	set.IntVar(&o.port, "port", 18515, "TCP port to meet at")
	set.Usage = func() {
		fmt.Fprintf(set.Output(), "usage: %s [flags]          both ends, in this process\n       %[1]s [flags] -listen  one end\n       %[1]s [flags] HOST     the other end\n", set.Name())
		set.PrintDefaults()
	}
}

// Parse reads the flags.
func (o *Options) Parse(set *flag.FlagSet, args []string) error {
	if err := set.Parse(args); err != nil {
		return err
	}
	o.host = set.Arg(0)
	if set.NArg() > 1 || o.host != "" && o.listen {
		return errors.New("one host at most, and not with -listen")
	}
	return nil
}

// Main is an example's main: it reads the flags and runs the end that they ask for, or both.
func Main(name string, serve, call func(device string, peer *Peer) error) {
	o, set := new(Options), flag.NewFlagSet(name, flag.ExitOnError)
	o.Flags(set)
	err := o.Parse(set, os.Args[1:])
	if err == nil {
		err = o.Run(func(conn net.Conn, called, _ bool) error {
			end, peer := call, &Peer{json.NewEncoder(conn), json.NewDecoder(conn)}
			if called {
				end = serve
			}
			return end(o.Device, peer)
		})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Run runs the end that the flags ask for, or both, with a connection to the other one. called says which of the two it is, and both whether
// they are in one process.
func (o *Options) Run(end func(conn net.Conn, called, both bool) error) error {
	port := ":" + strconv.Itoa(o.port)
	switch {
	case o.host != "":
		return dial(net.JoinHostPort(o.host, strconv.Itoa(o.port)), func(conn net.Conn) error { return end(conn, false, false) })
	case o.listen:
		listener, err := net.Listen("tcp", port)
		if err != nil {
			return err
		}
		return accept(listener, func(conn net.Conn) error { return end(conn, true, false) })
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- accept(listener, func(conn net.Conn) error { return end(conn, true, true) }) }()
	go func() {
		ended <- dial(listener.Addr().String(), func(conn net.Conn) error { return end(conn, false, true) })
	}()
	if err = <-ended; err != nil {
		return err // the other end may wait for ever
	}
	return <-ended
}

func dial(address string, end func(conn net.Conn) error) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	return end(conn)
}

func accept(listener net.Listener, end func(conn net.Conn) error) error {
	conn, err := listener.Accept()
	listener.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	return end(conn)
}

// Peer is the other end.
type Peer struct {
	encoder *json.Encoder
	decoder *json.Decoder
}

// Tell tells the other end something.
func (p *Peer) Tell(what any) error { return p.encoder.Encode(what) }

// Hear waits for what the other end tells.
func (p *Peer) Hear(what any) error { return p.decoder.Decode(what) }

// Exchange tells the other end something and hears the same of it.
func Exchange[T any](p *Peer, own T) (other T, err error) {
	if err = p.Tell(own); err == nil {
		err = p.Hear(&other)
	}
	return other, err
}
