// SPDX-License-Identifier: BSD-2-Clause

//go:build linux

// Command bare measures the baseline for a UDP wire: UDP sockets of Go between two processes on loopback, without RDMA.
//
//   - 1 MiB messages in datagrams of 4136 bytes, like RoCE with an MTU of 4096, with segmentation offload in both
//     directions. Both ends compute the CRC-32 of every datagram. The receiver acknowledges, so that none is lost.
//   - Round trips of 64 bytes, by the simplest calls of package net.
//
// It prints each result, and "operation,operations a second" for command ratios.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"
)

// messageSize is the payload of a message, without RoCE's headers.
const messageSize = 1 << 20

func main() {
	var (
		long = flag.Duration("time", 2*time.Second, "duration of each measurement")
		at   = flag.String("address", "127.0.0.1", "`address` of both processes")
		peer = flag.String("peer", "", "run as the peer for `messages` or echo")
	)
	flag.Parse()
	var err error
	if *peer != "" {
		err = serve(*peer, *at)
	} else {
		err = run(os.Stdout, *at, *long)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, at string, long time.Duration) error {
	for _, m := range []struct {
		name, peer string
		bytes      int
		measure    func(c *net.UDPConn, to netip.AddrPort, long time.Duration) (n int, err error)
	}{
		{"1 MiB message", "messages", messageSize, sendMessages},
		{"64 bytes and back", "echo", 0, pingPong},
	} {
		n, elapsed, err := withPeer(m.peer, at, func(c *net.UDPConn, to netip.AddrPort) (int, error) {
			return m.measure(c, to, long)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		each := elapsed / time.Duration(n)
		fmt.Fprintf(w, "%s: %v", m.name, each)
		if m.bytes > 0 {
			fmt.Fprintf(w, ", %.2f GB/s", float64(m.bytes)/float64(each.Nanoseconds()))
		}
		fmt.Fprintf(w, "\n%s,%.1f\n", m.name, float64(time.Second)/float64(each))
	}
	return nil
}

// withPeer starts this program as the peer process, and measures with a socket of this process.
func withPeer(peer, at string, measure func(*net.UDPConn, netip.AddrPort) (int, error)) (n int, elapsed time.Duration,
	err error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	other := exec.Command(exe, "-peer", peer, "-address", at)
	other.Stderr = os.Stderr
	output, err := other.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	alive, err := other.StdinPipe() // closed when this process exits
	if err != nil {
		return 0, 0, err
	}
	if err := other.Start(); err != nil {
		return 0, 0, err
	}
	defer func() { alive.Close(); err = errors.Join(err, other.Wait()) }()
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return 0, 0, fmt.Errorf("peer process: %w", err)
	}
	to, err := netip.ParseAddrPort(strings.TrimSpace(line))
	if err != nil {
		return 0, 0, err
	}
	c, err := listen(at)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	start := time.Now()
	n, err = measure(c, to)
	return n, time.Since(start), err
}

// serve is the peer process. It runs until its standard input is closed.
func serve(name, at string) error {
	c, err := listen(at)
	if err != nil {
		return err
	}
	window := 0
	if name == "messages" {
		if window, err = offload(c); err != nil {
			return err
		}
	}
	fmt.Println(c.LocalAddr()) // datagrams arrive from here on
	go func() {
		io.Copy(io.Discard, os.Stdin)
		c.Close()
	}()
	switch name {
	case "messages":
		err = receiveMessages(c, window)
	case "echo":
		err = echo(c)
	default:
		err = fmt.Errorf("unknown peer %q; use messages or echo", name)
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func listen(at string) (*net.UDPConn, error) {
	addr, err := netip.ParseAddr(at)
	if err != nil {
		return nil, err
	}
	return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
}

// pingPong repeatedly sends 64 bytes and waits for them to return.
func pingPong(c *net.UDPConn, to netip.AddrPort, long time.Duration) (int, error) {
	b := make([]byte, 64)
	for n, start := 0, time.Now(); ; n++ {
		if time.Since(start) > long {
			return n, nil
		}
		if _, err := c.WriteToUDPAddrPort(b, to); err != nil {
			return n, err
		}
		if _, _, err := c.ReadFromUDPAddrPort(b); err != nil {
			return n, err
		}
	}
}

func echo(c *net.UDPConn) error {
	b := make([]byte, 64)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		if _, err := c.WriteToUDPAddrPort(b[:n], from); err != nil {
			return err
		}
	}
}
