// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"
)

const asEcho = "GOVERBS_UDP_ECHO"

// echo runs in another process and returns what it receives.
func echo() {
	s, err := Open(v4, Options{Port: AnyPort})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for b, a := make([]byte, MaxRead), (Arrival{}); ; {
		if s.Read(b, &a) == nil {
			_, _ = s.Write(a.From, b[:a.N], a.Segment)
		}
	}
}

// BenchmarkEcho measures round trips of 64 bytes to another process. conformance/bench/bare measures the same with
// package net.
func BenchmarkEcho(b *testing.B) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), asEcho+"=1")
	out, _ := c.StdoutPipe()
	in, _ := c.StdinPipe()
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer c.Wait()
	defer in.Close()
	output := bufio.NewScanner(out)
	output.Scan()
	to, err := netip.ParseAddrPort(output.Text())
	if err != nil {
		b.Fatal(err)
	}
	s, buffer, a := opened(b, v4, Options{}), make([]byte, MaxRead), Arrival{}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Write(to, buffer[:64], 64); err != nil {
			b.Fatal(err)
		}
		if err := s.Read(buffer, &a); err != nil {
			b.Fatal(err)
		}
	}
}
