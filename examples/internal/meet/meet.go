// SPDX-License-Identifier: BSD-2-Clause

// Package meet connects the two ends of an example over TCP, where they exchange the values that they need before they
// can use RDMA.
package meet

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Options are the flags of every example.
type Options struct {
	Device string

	port   int
	listen bool
	host   string
}

// Flags adds the flags to a set. usage describes the example.
func (o *Options) Flags(set *flag.FlagSet) {
	set.StringVar(&o.Device, "device", "soft0", "RDMA `device`: rxe0, mlx5_0, soft0 for both ends in this process, "+
		"or soft@ADDRESS, with an address of this machine")
	set.BoolVar(&o.listen, "listen", false, "wait for the other end")
	set.IntVar(&o.port, "port", 18515, "TCP `port` where the two ends meet")
	set.Usage = func() {
		fmt.Fprintf(set.Output(),
			"usage: %s [flags]          both ends, in this process\n"+
				"       %[1]s [flags] -listen  one end\n"+
				"       %[1]s [flags] HOST     the other end\n",
			set.Name())
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
		return errors.New("give at most one host, and none with -listen")
	}
	return nil
}

// Main is the main function of an example: it reads the flags and runs the requested end, or both.
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

// // Run runs the requested end, or both, over a TCP connection. called is true for the end that accepts the
// connection; both is true if both ends are in this process.
func (o *Options) Run(end func(conn net.Conn, called, both bool) error) error {
	port := ":" + strconv.Itoa(o.port)
	if o.host != "" || o.listen {
		if err := o.reachesOthers(); err != nil {
			return err
		}
		device, err := rdma.Open(o.Device) // report errors now, not when the other end connects
		if err != nil {
			return err
		}
		defer device.Close()
	}
	switch {
	case o.host != "":
		return dial(net.JoinHostPort(o.host, strconv.Itoa(o.port)),
			func(conn net.Conn) error { return end(conn, false, false) })
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
		return err // do not wait for the other end, which may never return
	}
	return <-ended
}

// reachesOthers returns an error if other processes cannot reach the device.
func (o *Options) reachesOthers() error {
	if strings.HasPrefix(o.Device, soft.Prefix) {
		return nil
	}
	all, err := rdma.Devices()
	for _, info := range all {
		if info.Name == o.Device {
			if info.IsSoftware() {
				return fmt.Errorf("%s is a software device inside this process, which other processes cannot reach: "+
					"omit -listen and HOST to run both ends in this process, or use a device with a network, "+
					"such as -device rxe0 or -device soft@ with an address of this machine", o.Device)
			}
			return nil
		}
	}
	return err // the error of Open has details
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

// Send sends a value to the other end.
func (p *Peer) Send(v any) error { return p.encoder.Encode(v) }

// Receive receives a value from the other end.
func (p *Peer) Receive(v any) error { return p.decoder.Decode(v) }

// Exchange sends a value to the other end and waits for a value of the same type.
func Exchange[T any](p *Peer, own T) (other T, err error) {
	if err = p.Send(own); err == nil {
		err = p.Receive(&other)
	}
	return other, err
}
