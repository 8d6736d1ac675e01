// SPDX-License-Identifier: BSD-2-Clause

// Command wire connects two processes by RDMA without an adapter, a kernel module or root. It starts itself once more,
// with another address of this machine, sends and receives over streams and HTTP, looks at the data, and then kills the
// other process:
//
//	wire                                      127.0.0.2 and 127.0.0.3
//	wire -here 192.0.2.1 -there 192.0.2.2     other addresses, both of this machine
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

// peerAt is the environment variable that makes this program the other process, with the address to serve at.
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
	here := flag.String("here", "127.0.0.2", "`address` of this process")
	there := flag.String("there", "127.0.0.3", "`address` of the other process")
	flag.Parse()
	exit(run(*here, *there, os.Stdout))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "wire:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve is the other process, whose GOVERBS_DEVICE names its device: it echoes stream data, and answers HTTP requests
// with the digest of their data, until its input ends.
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

// run demonstrates two communicating processes.
func run(here, there string, out io.Writer) error {
	fabric, device, err := soft.Named(soft.Prefix + here)
	if err != nil {
		return err
	}
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), peerAt+"="+there, "GOVERBS_DEVICE="+soft.Prefix+there)
	other.Stderr = os.Stderr
	in, err := other.StdinPipe() // it ends when this process does
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
		device, os.Getpid(), soft.Prefix+there, other.Process.Pid)
	// With heartbeats, and a second for acknowledgements, a peer that is gone is seen soon.
	config := stream.Config{Backend: fabric, Heartbeat: 200 * time.Millisecond, AckTimeout: 15}
	dialer := &stream.Dialer{Config: config}
	c, err := dialer.Dial(context.Background(), net.JoinHostPort(there, echoPort))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := pingpong(c, out); err != nil {
		return err
	}
	if err := thereAndBack(c, out); err != nil {
		return err
	}
	if err := post(dialer, "http://"+net.JoinHostPort(there, httpPort), out); err != nil {
		return err
	}
	counters := fabric.HWCounters(device)
	fmt.Fprintf(out, "  packets    %d sent, %d received, %d sent again\n", counters["sent_pkts"], counters["rcvd_pkts"],
		counters["retrans_pkts"])
	return killed(c, other.Process, out)
}

// pingpong sends a message when the one before has come back.
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
			return fmt.Errorf("message %d came back as other bytes", n)
		}
	}
	fmt.Fprintf(out, "  ping-pong  %d messages of %d bytes, each came back after %v\n", messages, message,
		(time.Since(start) / messages).Round(time.Microsecond))
	return nil
}

// thereAndBack sends a long stream, which comes back at the same time.
func thereAndBack(c net.Conn, out io.Writer) error {
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
		return errors.New("the stream came back as other bytes")
	}
	fmt.Fprintf(out, "  stream     %d MiB there and back at once, %.0f MB/s each way, the same bytes\n", large>>20,
		large/1e6/took.Seconds())
	return nil
}

func random(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// post posts data by HTTP, and compares digests.
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
		return fmt.Errorf("HTTP: the digest there is %s", digest)
	}
	fmt.Fprintf(out, "  HTTP       POST of %d bytes: %s, the same digest\n", len(body), answer.Status)
	return nil
}

// killed kills the other process, and waits until the connection ends.
func killed(c net.Conn, other *os.Process, out io.Writer) error {
	start := time.Now()
	if err := other.Kill(); err != nil {
		return err
	}
	c.SetReadDeadline(start.Add(time.Minute))
	n, err := c.Read(make([]byte, 1))
	if timeout := net.Error(nil); err == nil || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("the other process was killed, and Read returns %d, %v", n, err)
	}
	fmt.Fprintf(out, "  killed     the other process; %v later: %v\n", time.Since(start).Round(time.Millisecond), err)
	return nil
}
