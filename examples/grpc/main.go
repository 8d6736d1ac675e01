// SPDX-License-Identifier: BSD-2-Clause

// Command grpc checks a server's health over RDMA, with unmodified google.golang.org/grpc:
//
//	grpc -listen 10.0.0.1:8080
//	grpc 10.0.0.1:8080
//
// It is a separate module, so that only this example needs gRPC. The address is that of a network interface with an
// RDMA device.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/goverbs/goverbs/rdma/stream"
)

// config configures all streams. The zero value uses the defaults and the machine's RDMA devices.
var config stream.Config

func main() {
	listen := flag.String("listen", "", "serve at this `address`")
	flag.Parse()
	var err error
	switch {
	case *listen != "":
		err = serve(*listen)
	case flag.NArg() == 1:
		err = check(flag.Arg(0))
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "grpc:", err)
		os.Exit(1)
	}
}

func serve(address string) error {
	lc := stream.ListenConfig{Config: config}
	l, err := lc.Listen(context.Background(), address)
	if err != nil {
		return err
	}
	return newServer().Serve(l)
}

func newServer() *grpc.Server {
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	return s
}

// dial returns a client whose connections use RDMA.
func dial(address string) (*grpc.ClientConn, error) {
	dialer := &stream.Dialer{Config: config}
	return grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.Dial(ctx, address)
		}))
}

func check(address string) error {
	conn, err := dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	fmt.Println(answer.Status)
	return nil
}
