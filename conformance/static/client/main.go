// SPDX-License-Identifier: BSD-2-Clause

// Command client sends a byte to an echo server over rdma/stream, and prints the time at which it came back:
//
//	client HOST:PORT
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/goverbs/goverbs/rdma/stream"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run(server string) error {
	conn, err := stream.Dial(context.Background(), server)
	if err != nil {
		return err
	}
	b := []byte{'x'}
	if _, err := conn.Write(b); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return err
	}
	fmt.Println(time.Now().UnixNano())
	return conn.Close()
}
