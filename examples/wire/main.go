// SPDX-License-Identifier: BSD-2-Clause

// Command wire connects two processes by RDMA without an adapter, a kernel module or root. It starts a second process
// of itself with another address of this machine, exchanges data over streams and HTTP, checks the data, and then kills
// the other process:
//
//	wire                                      between 127.0.0.2 and 127.0.0.3
//	wire -local 192.0.2.1 -peer 192.0.2.2     between other addresses of this machine
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// peerAt is the environment variable that makes this program the other process. Its value is the address to serve at.
const peerAt = "WIRE_PEER"

const (
	echoPort = "7471"
	httpPort = "8080"
	messages = 1000
	message  = 64
	large    = 64 << 20
)

func main() {
	if address := os.Getenv(peerAt); address != "" {
		exit(serve(address))
	}
	local := flag.String("local", "127.0.0.2", "`address` of this process")
	peer := flag.String("peer", "127.0.0.3", "`address` of the other process")
	flag.Parse()
	exit(run(*local, *peer, os.Stdout))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "wire:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve runs the other process: it echoes stream data, and answers HTTP requests with the digest of their data, until
// its input ends. GOVERBS_DEVICE names its device.
func serve(address string) error {
	echo, err := stream.Listen(context.Background(), net.JoinHostPort(address, echoPort))
	if err != nil {
		return err
	}
	web, err := stream.Listen(context.Background(), net.JoinHostPort(address, httpPort))
	if err != nil {
		return err
	}
	go http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		io.Copy(h, r.Body)
		fmt.Fprint(w, hex.EncodeToString(h.Sum(nil)))
	}))
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// run starts the other process and communicates with it.
func run(local, peer string, out io.Writer) error {
	fabric, device, err := soft.Named(soft.Prefix + local)
	if err != nil {
		return err
	}
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), peerAt+"="+peer, "GOVERBS_DEVICE="+soft.Prefix+peer)
	other.Stderr = os.Stderr
	in, err := other.StdinPipe() // closed when this process ends
	if err != nil {
		return err
	}
	defer in.Close()
	ready, err := other.StdoutPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	defer other.Wait()
	defer other.Process.Kill()
	if _, err := io.ReadFull(ready, make([]byte, len("ready\n"))); err != nil {
		return errors.New("the other process did not start")
	}
	fmt.Fprintf(out, "%s in process %d, %s in process %d, RoCE v2 over UDP port 4791 between them:\n",
		device, os.Getpid(), soft.Prefix+peer, other.Process.Pid)
	// Short heartbeats and acknowledgement timeouts detect soon that the peer has ended.
	config := stream.Config{Backend: fabric, Heartbeat: 200 * time.Millisecond, AckTimeout: 15}
	dialer := &stream.Dialer{Config: config}
	c, err := dialer.Dial(context.Background(), net.JoinHostPort(peer, echoPort))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := pingpong(c, out); err != nil {
		return err
	}
	if err := echo(c, out); err != nil {
		return err
	}
	if err := post(dialer, "http://"+net.JoinHostPort(peer, httpPort), out); err != nil {
		return err
	}
	counters := fabric.HWCounters(device)
	fmt.Fprintf(out, "  packets    %d sent, %d received, %d retransmitted\n", counters["sent_pkts"],
		counters["rcvd_pkts"], counters["retrans_pkts"])
	return killed(c, other.Process, out)
}

// pingpong sends each message after the previous one has returned.
func pingpong(c net.Conn, out io.Writer) error {
	sent, got := make([]byte, message), make([]byte, message)
	start := time.Now()
	for n := range messages {
		sent[n%message]++
		if _, err := c.Write(sent); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if !bytes.Equal(sent, got) {
			return fmt.Errorf("message %d returned with wrong bytes", n)
		}
	}
	fmt.Fprintf(out, "  ping-pong  %d messages of %d bytes, %v per round trip\n", messages, message,
		(time.Since(start) / messages).Round(time.Microsecond))
	return nil
}

// echo sends a long stream and receives it back at the same time.
func echo(c net.Conn, out io.Writer) error {
	data, got := random(large), make([]byte, large)
	written := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := c.Write(data)
		written <- err
	}()
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if err := <-written; err != nil {
		return err
	}
	took := time.Since(start)
	if !bytes.Equal(data, got) {
		return errors.New("the stream returned with wrong bytes")
	}
	fmt.Fprintf(out, "  stream     %d MiB in both directions at once, %.0f MB/s each, the same bytes\n", large>>20,
		large/1e6/took.Seconds())
	return nil
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// post posts data over HTTP and compares digests.
func post(dialer *stream.Dialer, url string, out io.Writer) error {
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	defer client.CloseIdleConnections()
	body := random(1 << 20)
	answer, err := client.Post(url, "", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	digest, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if want := sha256.Sum256(body); string(digest) != hex.EncodeToString(want[:]) {
		return fmt.Errorf("HTTP: the server computed another digest: %s", digest)
	}
	fmt.Fprintf(out, "  HTTP       POST of %d bytes: %s, the same digest\n", len(body), answer.Status)
	return nil
}

// killed kills the other process and waits until the connection ends.
func killed(c net.Conn, other *os.Process, out io.Writer) error {
	start := time.Now()
	if err := other.Kill(); err != nil {
		return err
	}
	c.SetReadDeadline(start.Add(time.Minute))
	n, err := c.Read(make([]byte, 1))
	if timeout := net.Error(nil); err == nil || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("after the other process was killed, Read returns %d, %v", n, err)
	}
	fmt.Fprintf(out, "  killed     the other process; %v later: %v\n", time.Since(start).Round(time.Millisecond), err)
	return nil
}
