// SPDX-License-Identifier: BSD-2-Clause

package remote

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/goverbs/goverbs/rpma"
)

// Command is an example's command line.
type Command struct {
	File   string // file that the server offers; by default a temporary file
	Listen string // "host:port" to serve at, instead of running the command
	To     string // "host:port" of the server to connect to
	Size   int64  // of the file
	Room   int    // largest transfer in bytes
}

// Main parses the flags, connects and calls use. Without -listen and -to, both sides are in this process.
func Main(name string, c Command, use func(ctx context.Context, m *Memory, args []string) error) {
	flag.StringVar(&c.File, "file", "", "the server's `file`; by default a temporary one")
	flag.StringVar(&c.Listen, "listen", "", "serve at an address of an RDMA device, `host:port`, until interrupted")
	flag.StringVar(&c.To, "to", "", "connect to a server at `host:port`")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := c.Run(ctx, func(ctx context.Context, m *Memory) error { return use(ctx, m, flag.Args()) }); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Run executes the command line.
func (c Command) Run(ctx context.Context, use func(ctx context.Context, m *Memory) error) (err error) {
	if c.File == "" && c.To == "" {
		dir, err := os.MkdirTemp("", "goverbs-rpma")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		c.File = filepath.Join(dir, "memory")
	}
	if c.Listen != "" {
		return c.serve(ctx)
	}
	var memory *Memory
	if c.To == "" {
		server, own, err := Both(ctx, c.File, c.Size, c.Room)
		if err != nil {
			return err
		}
		defer server.Close()
		memory = own
	} else if memory, err = c.dial(ctx); err != nil {
		return err
	}
	return errors.Join(use(ctx, memory), memory.Close())
}

func (c Command) serve(ctx context.Context) error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return err
	}
	device, err := rpma.FindDevice(ctx, rpma.Local, host)
	if err != nil {
		return err
	}
	server, err := Serve(ctx, device, c.Listen, c.File, c.Size)
	if err != nil {
		return err
	}
	fmt.Printf("%s at %s\n", c.File, server.Address())
	<-ctx.Done()
	return server.Close()
}

func (c Command) dial(ctx context.Context) (*Memory, error) {
	host, _, err := net.SplitHostPort(c.To)
	if err != nil {
		return nil, err
	}
	device, err := rpma.FindDevice(ctx, rpma.Remote, host)
	if err != nil {
		return nil, err
	}
	return Dial(ctx, device, c.To, c.Room)
}
