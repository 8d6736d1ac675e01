// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// TestCalls makes many concurrent calls and a streaming call over one connection, with each protocol. It runs in a
// guest of conformance/vm (make vm WHAT=grpc), and elsewhere on the software device.
func TestCalls(t *testing.T) {
	own := os.Getenv("GOVERBS_ADDRESS")
	config = stream.Config{}
	if own == "" {
		fabric, err := soft.Default()
		if err != nil {
			t.Fatal(err)
		}
		own, config.Backend = "127.0.0.1", fabric
	}
	for name, protocol := range map[string]stream.Protocol{"stream": stream.Stream, "rsocket": stream.RSocket} {
		config.Protocol = protocol
		t.Run(name, func(t *testing.T) { calls(t, own) })
	}
}

func calls(t *testing.T, own string) {
	l, err := (&stream.ListenConfig{Config: config}).Listen(context.Background(), own+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer()
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := dial(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := healthpb.NewHealthClient(conn)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				answer, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
				if err != nil || answer.Status != healthpb.HealthCheckResponse_SERVING {
					t.Error(answer, err)
					return
				}
			}
		})
	}
	all.Wait()
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := watch.Recv(); err != nil || first.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatal(first, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	s.GracefulStop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
