// SPDX-License-Identifier: BSD-2-Clause

// Command valkey sends one command to a Valkey server over RDMA, with unmodified valkey-go:
//
//	valkey 10.0.0.1:6379 SET shelf books
//	valkey 10.0.0.1:6379 GET shelf
//
// With -listen, clients that support only TCP reach the server:
//
//	valkey -listen 127.0.0.1:6379 10.0.0.1:6379 &
//	valkey-cli GET shelf
//
// It is a separate module, so that only this example needs valkey-go.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/goverbs/goverbs/examples/valkey/valkeyrdma"
)

func main() {
	listen := flag.String("listen", "", "serve TCP at this `address`, forwarding connections to the server over RDMA")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: valkey HOST:PORT COMMAND [ARGUMENT...]\n"+
			"       valkey -listen ADDRESS HOST:PORT")
		flag.PrintDefaults()
	}
	flag.Parse()
	var err error
	switch {
	case *listen == "" && flag.NArg() >= 2:
		err = do(flag.Arg(0), flag.Args()[1:])
	case *listen != "" && flag.NArg() == 1:
		err = serve(*listen, flag.Arg(0))
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "valkey:", err)
		os.Exit(1)
	}
}

// do sends a command and prints the reply.
func do(address string, command []string) error {
	client, err := valkey.NewClient(options(nil, address))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := client.Do(ctx, client.B().Arbitrary(command...).Build()).ToAny()
	if err != nil && !valkey.IsValkeyNil(err) {
		return err
	}
	if text, ok := answer.(string); ok {
		fmt.Printf("%q\n", text) // quoted, because text of another process may contain terminal escape sequences
		return nil
	}
	fmt.Printf("%#v\n", answer)
	return nil
}

// options returns options with which valkey-go connects over RDMA. A nil config selects the defaults.
func options(config *valkeyrdma.Config, address string) valkey.ClientOption {
	return valkey.ClientOption{
		InitAddress:       []string{address},
		ForceSingleClient: true, // a single server, not a cluster
		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return config.Dial(ctx, address)
		},
	}
}

func serve(address, server string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	return forward(l, nil, server)
}

// forward connects each connection of a listener to a server, until the listener is closed.
func forward(l net.Listener, config *valkeyrdma.Config, server string) error {
	for {
		client, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer client.Close()
			conn, err := config.Dial(context.Background(), server)
			if err != nil {
				fmt.Fprintln(os.Stderr, "valkey:", err)
				return
			}
			join(client, conn)
		}()
	}
}
