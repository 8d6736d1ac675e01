// SPDX-License-Identifier: BSD-2-Clause

// Command http serves and downloads files over RDMA, with unmodified net/http:
//
//	http -listen 10.0.0.1:8080 DIRECTORY
//	http http://10.0.0.1:8080/FILE
//
// The address is that of a network interface with an RDMA device. Without an adapter and without root, set
// GOVERBS_DEVICE=soft@127.0.0.2 for one process, and use another address of this machine, such as soft@127.0.0.3, for
// the other.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/goverbs/goverbs/rdma/stream"
)

// config configures all streams. The zero value uses the defaults and the machine's RDMA devices.
var config stream.Config

func main() {
	listen := flag.String("listen", "", "serve at this `address`")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	var err error
	if *listen != "" {
		err = serve(*listen, http.FileServer(http.Dir(flag.Arg(0))))
	} else {
		err = get(flag.Arg(0), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "http:", err)
		os.Exit(1)
	}
}

// serve serves until the listener fails.
func serve(address string, handler http.Handler) error {
	lc := stream.ListenConfig{Config: config}
	l, err := lc.Listen(context.Background(), address)
	if err != nil {
		return err
	}
	defer l.Close()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	return server.Serve(l)
}

// client returns an HTTP client whose connections use RDMA.
func client() *http.Client {
	dialer := &stream.Dialer{Config: config}
	return &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
}

// get writes the content of a URL.
func get(url string, w io.Writer) error {
	c := client()
	defer c.CloseIdleConnections()
	answer, err := c.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %q", url, answer.Status)
	}
	_, err = io.Copy(w, answer.Body)
	return err
}
