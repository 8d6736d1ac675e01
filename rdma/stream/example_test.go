// SPDX-License-Identifier: BSD-2-Clause

package stream_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// must exits if there is an error.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A stream carries any protocol that runs over TCP. Backend selects the software devices of this process; without it,
// Listen and Dial use RDMA hardware.
func Example() {
	ctx := context.Background()
	config := stream.Config{Backend: must(soft.Default())}
	lc, dialer := stream.ListenConfig{Config: config}, stream.Dialer{Config: config}
	listener := must(lc.Listen(ctx, "127.0.0.1:0"))
	defer listener.Close()
	go func() {
		conn := must(listener.Accept())
		defer conn.Close()
		io.Copy(conn, conn)
	}()

	conn := must(dialer.Dial(ctx, listener.Addr().String()))
	defer conn.Close()
	fmt.Fprint(conn, "hello")
	check(conn.CloseWrite())
	fmt.Println(string(must(io.ReadAll(conn))))
	// Output: hello
}

// An unmodified HTTP server and client.
func ExampleDialer_DialContext() {
	config := stream.Config{Backend: must(soft.Default())}
	lc, dialer := stream.ListenConfig{Config: config}, stream.Dialer{Config: config}
	listener := must(lc.Listen(context.Background(), "127.0.0.1:0"))
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, "over RDMA")
	})}
	go server.Serve(listener)
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	defer client.CloseIdleConnections()
	answer := must(client.Get("http://" + listener.Addr().String()))
	defer answer.Body.Close()
	fmt.Println(string(must(io.ReadAll(answer.Body))))
	// Output: over RDMA
}

// RDMA does not encrypt. Run TLS over a stream, as over TCP.
func ExampleListenConfig_Listen() {
	config := stream.Config{Backend: must(soft.Default())}
	lc, dialer := stream.ListenConfig{Config: config}, stream.Dialer{Config: config}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "encrypted: ", r.TLS != nil)
	}))
	server.Listener.Close() // a TCP listener
	server.Listener = must(lc.Listen(context.Background(), "127.0.0.1:0"))
	server.StartTLS()
	defer server.Close()

	client := server.Client() // trusts the server's certificate
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
		return dialer.Dial(ctx, server.Listener.Addr().String())
	}
	answer := must(client.Get("https://example.com"))
	defer answer.Body.Close()
	fmt.Println(string(must(io.ReadAll(answer.Body))))
	// Output: encrypted: true
}
