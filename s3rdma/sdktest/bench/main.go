// SPDX-License-Identifier: BSD-2-Clause

//go:build linux

// Command bench compares GetObject and PutObject by RDMA with the same client and server by HTTP over loopback: on
// software devices in one process, and between two processes. Each round measures both, one after the other. It prints
// a Markdown table with medians, and the minimum and median of the rounds' ratios.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/s3rdma"
)

var (
	rounds   = flag.Int("rounds", 5, "`number` of rounds")
	long     = flag.Duration("time", 150*time.Millisecond, "`duration` of each measurement, at least one request")
	largest  = flag.Int("most", 256, "largest object, in `MiB`")
	protocol = flag.String("protocol", "direct", "`name`: hipobj-rc-v2, direct or dynamic")
	serve    = flag.String("serve", "", "serve on a `device` until standard input ends")
)

func main() {
	flag.Parse()
	run := compare
	if *serve != "" {
		run = serveUntilEOF
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func isDirect() bool  { return *protocol == "direct" }
func isDynamic() bool { return *protocol == "dynamic" }

// objects is an S3 server that keeps one object in memory. It answers with the processor time of its process if asked
// for that.
type objects struct{ memory []byte }

func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/time" {
		fmt.Fprint(w, int64(processorTime()))
		return
	}
	size, err := strconv.Atoi(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
	if err != nil || size > len(o.memory) {
		http.Error(w, "no such size", http.StatusBadRequest)
		return
	}
	w.Header().Set("ETag", `"1"`)
	if r.Method == http.MethodPut {
		if _, err := io.ReadFull(r.Body, o.memory[:size]); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(size))
	if r.Method == http.MethodGet {
		w.Write(o.memory[:size])
	}
}

// processorTime returns the time that the process has used, in user and system mode.
func processorTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// startServer serves on a device, and returns its URL.
func startServer(name string) (url string, stop func() error, err error) {
	device, err := rdma.Open(name)
	if err != nil {
		return "", nil, err
	}
	handler, err := s3rdma.NewHandler(&objects{make([]byte, *largest<<20)}, s3rdma.HandlerOptions{Device: device,
		Idle: 1 << 30, Direct: isDirect(), Dynamic: isDynamic()})
	if err != nil {
		return "", nil, errors.Join(err, device.Close())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, errors.Join(err, handler.Close(), device.Close())
	}
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	return "http://" + listener.Addr().String(), func() error {
		return errors.Join(server.Close(), handler.Close(), device.Close())
	}, nil
}

// serveUntilEOF is the server's process.
func serveUntilEOF() error {
	url, stop, err := startServer(*serve)
	if err != nil {
		return err
	}
	fmt.Println(url)
	io.Copy(io.Discard, os.Stdin)
	return stop()
}

// startProcess starts a process that serves on a device.
func startProcess(device string) (url string, stop func() error, err error) {
	c := exec.Command(os.Args[0], "-serve", device, "-most", strconv.Itoa(*largest), "-protocol", *protocol)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := c.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error { return errors.Join(in.Close(), c.Wait()) }
	if url, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return strings.TrimSpace(url), stop, nil
}

// client is a client of aws-sdk-go-v2 for a server.
type client struct {
	*s3.Client
	url       string
	apart     bool // the server is another process
	transport *s3rdma.Transport
	device    *rdma.Device
	base      *http.Transport
	buffer    *s3rdma.Buffer
	data      []byte
}

var keys = aws.Credentials{AccessKeyID: "key", SecretAccessKey: "secret"}

// newClient returns a client by HTTP, or by RDMA on a device.
func newClient(url, device string, apart bool, buffer *s3rdma.Buffer, data []byte) (c *client, err error) {
	c = &client{url: url, apart: apart, base: &http.Transport{}, buffer: buffer, data: data}
	over := http.RoundTripper(c.base)
	if device != "" {
		if c.device, err = rdma.Open(device); err != nil {
			return nil, err
		}
		sign := func(ctx context.Context, r *http.Request) error {
			return v4.NewSigner().SignHTTP(ctx, keys, r, r.Header.Get("X-Amz-Content-Sha256"), "s3", "us-east-1", time.Now())
		}
		if c.transport, err = s3rdma.NewTransport(c.base, s3rdma.Options{Device: c.device, Idle: 1 << 30,
			Signer: s3rdma.SignerFunc(sign), Direct: isDirect(), Dynamic: isDynamic()}); err != nil {
			return nil, errors.Join(err, c.device.Close())
		}
		over = c.transport
	}
	c.Client = s3.New(s3.Options{Region: "us-east-1", UsePathStyle: true, BaseEndpoint: &url, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(keys.AccessKeyID, keys.SecretAccessKey, ""),
		HTTPClient:  &http.Client{Transport: over}})
	return c, nil
}

func (c *client) close() (err error) {
	if c.transport != nil {
		err = errors.Join(c.transport.Close(), c.device.Close())
	}
	c.base.CloseIdleConnections()
	return err
}

func (c *client) put(ctx context.Context, size int) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("b"), Key: aws.String(strconv.Itoa(size)),
		Body: bytes.NewReader(c.data[:size])}, func(o *s3.Options) {
		o.APIOptions = append(o.APIOptions, v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware)
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
	})
	return err
}

// get gets the object into the buffer, into which HTTP copies it.
func (c *client) get(ctx context.Context, size int) error {
	out, err := c.GetObject(s3rdma.Into(ctx, c.buffer), &s3.GetObjectInput{Bucket: aws.String("b"),
		Key: aws.String(strconv.Itoa(size))})
	if err != nil {
		return err
	}
	n, err := c.buffer.ReadFrom(out.Body)
	if err == nil && n != int64(size) {
		err = io.ErrUnexpectedEOF
	}
	return errors.Join(err, out.Body.Close())
}

// serverTime returns the processor time of the server's process, or 0 if that is this process.
func (c *client) serverTime() (time.Duration, error) {
	if !c.apart {
		return 0, nil
	}
	response, err := http.Get(c.url + "/time")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return time.Duration(n), err
}

// sample is a measurement. The processor times are in seconds for each GiB.
type sample struct{ mbps, client, server float64 }

// measure repeats a request for some time.
func (c *client) measure(do func(context.Context, int) error, size int) (s sample, err error) {
	before, err := c.serverTime()
	if err != nil {
		return s, err
	}
	own, began, n := processorTime(), time.Now(), 0
	for ; n == 0 || time.Since(began) < *long; n++ {
		if err := do(context.Background(), size); err != nil {
			return s, err
		}
	}
	took, used := time.Since(began), processorTime()-own
	after, err := c.serverTime()
	total := float64(n) * float64(size)
	return sample{total / 1e6 / took.Seconds(), used.Seconds() / total * (1 << 30),
		(after - before).Seconds() / total * (1 << 30)}, err
}

// median returns the median of a value of samples.
func median[T any](all []T, value func(T) float64) float64 {
	v := make([]float64, len(all))
	for i := range all {
		v[i] = value(all[i])
	}
	slices.Sort(v)
	return v[len(v)/2]
}

func compare() (err error) {
	buffer, err := s3rdma.NewBuffer(*largest << 20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buffer.Close()) }()
	data := bytes.Repeat([]byte("goverbs!"), *largest<<20/8)
	fmt.Printf("S3 by RDMA (%s) and by HTTP, medians of %d rounds. Processor time is that of client + server.\n\n",
		*protocol, *rounds)
	fmt.Println("| | MiB | HTTP MB/s | RDMA MB/s | RDMA ÷ HTTP, minimum | median | HTTP s/GiB | RDMA s/GiB |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|---:|")
	for _, where := range []struct {
		name, server, client string
		start                func(string) (string, func() error, error)
	}{
		{"one process", "soft1", "soft0", startServer},
		{"two processes", "soft@127.0.0.66", "soft@127.0.0.65", startProcess},
	} {
		url, stop, err := where.start(where.server)
		if err != nil {
			return err
		}
		err = table(where.name, url, where.client, where.name != "one process", buffer, data)
		if err = errors.Join(err, stop()); err != nil {
			return err
		}
	}
	return nil
}

// table prints the rows of a server.
func table(name, url, device string, apart bool, buffer *s3rdma.Buffer, data []byte) (err error) {
	var both [2]*client // by HTTP and by RDMA
	for i, on := range []string{"", device} {
		c, err := newClient(url, on, apart, buffer, data)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.close()) }()
		both[i] = c
	}
	for size := 1 << 20; size <= *largest<<20; size *= 4 {
		for _, op := range []string{"GET", "PUT"} {
			var samples [2][]sample
			var ratios []float64
			for round := range *rounds + 1 {
				var s [2]sample
				for i, c := range both {
					do := c.get
					if op == "PUT" {
						do = c.put
					}
					if s[i], err = c.measure(do, size); err != nil {
						return fmt.Errorf("%s of %d bytes, %s: %w", op, size, name, err)
					}
				}
				if round == 0 { // connections and memory
					continue
				}
				samples[0], samples[1] = append(samples[0], s[0]), append(samples[1], s[1])
				ratios = append(ratios, s[1].mbps/s[0].mbps)
			}
			speed := func(s sample) float64 { return s.mbps }
			used := func(all []sample) string {
				text := fmt.Sprintf("%.2f", median(all, func(s sample) float64 { return s.client }))
				if apart {
					text += fmt.Sprintf(" + %.2f", median(all, func(s sample) float64 { return s.server }))
				}
				return text
			}
			fmt.Printf("| %s, %s | %d | %.0f | %.0f | %.2f | %.2f | %s | %s |\n", op, name, size>>20,
				median(samples[0], speed), median(samples[1], speed), slices.Min(ratios),
				median(ratios, func(v float64) float64 { return v }), used(samples[0]), used(samples[1]))
		}
	}
	stats := both[1].transport.Stats()
	if stats.Declined > 1 || stats.Puts == 0 || stats.Gets == 0 { // the first request of a direct connection uses HTTP
		return fmt.Errorf("%s: moved by HTTP: %+v", name, stats)
	}
	return nil
}
