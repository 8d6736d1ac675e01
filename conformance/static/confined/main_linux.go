// SPDX-License-Identifier: BSD-2-Clause

// Command confined sends a message between two queue pairs of a device and polls for both completions:
//
//	confined [-root DIR] [-stream ADDRESS] DEVICE
//
// With -root, it opens the device as root, and gives up its rights and its view of the file system before it does the
// rest. With -stream, it also sends a message over a stream to itself, at an address of the device.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/stream"
)

const nobody = 65534

func main() {
	root := flag.String("root", "", "confine the program to `DIR`, as user 65534, after the device is open")
	address := flag.String("stream", "", "send over a stream to `ADDRESS`, too")
	flag.Parse()
	if err := run(flag.Arg(0), *root, *address); err != nil {
		fmt.Fprintln(os.Stderr, "confined:", err)
		os.Exit(1)
	}
}

func run(name, root, address string) error {
	device, err := rdma.Open(name)
	if err != nil {
		return err
	}
	defer device.Close()
	if root != "" {
		if err := confine(root); err != nil {
			return err
		}
	}
	if uid := os.Getuid(); uid != nobody {
		return fmt.Errorf("the program runs as user %d", uid)
	}
	if _, err := os.Stat("/proc/self"); err == nil {
		return errors.New("the program is not confined: there is /proc")
	}
	if err := exchange(device); err != nil {
		return err
	}
	if address != "" {
		if err := talk(device, address); err != nil {
			return fmt.Errorf("stream: %w", err)
		}
	}
	fmt.Printf("sent and received by %s\n", rdma.BackendName(device.Info().Backend))
	return nil
}

// talk sends a message over a stream from the program to itself.
func talk(device *rdma.Device, address string) error {
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	config := stream.Config{Backend: device.Info().Backend, Buffer: 1 << 16}
	listener, err := (&stream.ListenConfig{Config: config}).Listen(ctx, net.JoinHostPort(address, "0"))
	if err != nil {
		return err
	}
	defer listener.Close()
	echoed := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = io.Copy(conn, conn)
			err = errors.Join(err, conn.Close())
		}
		echoed <- err
	}()
	conn, err := (&stream.Dialer{Config: config}).Dial(ctx, listener.Addr().String())
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("hello"))
	if err == nil {
		err = conn.CloseWrite()
	}
	got, failed := io.ReadAll(conn)
	if err := errors.Join(err, failed, conn.Close(), <-echoed); err != nil {
		return err
	}
	if string(got) != "hello" {
		return fmt.Errorf("received %q", got)
	}
	return nil
}

func confine(root string) error {
	return errors.Join(syscall.Chroot(root), os.Chdir("/"), syscall.Setgroups(nil), syscall.Setgid(nobody),
		syscall.Setuid(nobody))
}

// exchange sends a message from one queue pair to another.
func exchange(device *rdma.Device) error {
	left, err := device.NewRC(rdma.QPParts{})
	if err != nil {
		return err
	}
	defer left.Close()
	right, err := device.NewRC(rdma.QPParts{})
	if err != nil {
		return err
	}
	defer right.Close()
	if err := connect(left, right); err != nil {
		return err
	}
	from, err := left.RegMR([]byte("hello"), 0)
	if err != nil {
		return err
	}
	to, err := right.RegMR(make([]byte, from.Len()), ibv.ACCESS_LOCAL_WRITE)
	if err != nil {
		return err
	}
	send, err := rdma.NewSendBatch(1, 1, 0)
	if err != nil {
		return err
	}
	receive, err := rdma.NewRecvBatch(1, 1)
	if err != nil {
		return err
	}
	receive.Recv(1).Add(to.SGEOf(to.Bytes()))
	if _, err := right.PostRecv(receive); err != nil {
		return err
	}
	send.Send(2).Add(from.SGEOf(from.Bytes())).Signaled()
	if _, err := left.PostSend(send); err != nil {
		return err
	}
	if err := errors.Join(completed(left.SendCQ()), completed(right.RecvCQ())); err != nil {
		return err
	}
	if got := string(to.Bytes()); got != "hello" {
		return fmt.Errorf("received %q", got)
	}
	return nil
}

func connect(a, b *rdma.QP) error {
	ea, err := a.Endpoint()
	if err != nil {
		return err
	}
	eb, err := b.Endpoint()
	if err != nil {
		return err
	}
	return errors.Join(a.Connect(eb), b.Connect(ea))
}

// completed polls for a completion.
func completed(cq *rdma.CQ) error {
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	for wc, err := range cq.All(ctx) {
		if err != nil {
			return err
		}
		return rdma.CompletionErr(&wc)
	}
	return nil
}
