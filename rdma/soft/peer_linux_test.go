// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft/internal/testbed"
	"github.com/goverbs/goverbs/rdma/stream"
)

// A peer is the test binary running in another process, with a device at the address in its environment. It serves echo
// streams and HTTP (digests of request bodies), and executes commands from its standard input.
const (
	asPeer   = "GOVERBS_TEST_PEER"
	echoPort = "7471" // default; asEcho sets another
	httpPort = "8080" // not served with another echoPort
	asEcho   = "GOVERBS_TEST_ECHO"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(asPeer); at != "" {
		if err := serveAsPeer(at); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// the parent of a child process holds the lock; fuzz workers have distinct addresses
	if os.Getenv(asDelayed) == "" && !testbed.Namespaced() && !slices.Contains(os.Args, "-test.fuzzworker") {
		alone()
	}
	os.Exit(m.Run())
}

// alone waits until no other process runs these tests, because they bind fixed addresses and make test runs them in
// several configurations at once. The lock is released when the process exits.
func alone() {
	name := filepath.Join(os.TempDir(), "goverbs-wire-tests.lock")
	f, err := os.OpenFile(name, os.O_RDONLY|os.O_CREATE, 0o666)
	if err != nil { // created by another user
		f, err = os.Open(name)
	}
	if err == nil {
		for err = unix.EINTR; err == unix.EINTR; {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		held = f
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot exclude other test processes:", err)
	}
}

var held *os.File

func serveAsPeer(at string) error {
	port := echoPort
	if other := os.Getenv(asEcho); other != "" {
		port = other
	}
	echo, err := stream.Listen(context.Background(), net.JoinHostPort(at, port))
	if err != nil {
		return err
	}
	go serveEcho(echo)
	if port == echoPort {
		err = serveDigests(at)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return runCommands()
}

// serveDigests responds with the digest of the request body.
func serveDigests(at string) error {
	web, err := stream.Listen(context.Background(), net.JoinHostPort(at, httpPort))
	if err != nil {
		return err
	}
	go http.Serve(web, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		io.Copy(h, r.Body)
		fmt.Fprintf(w, "%x", h.Sum(nil))
	}))
	return nil
}

// runCommands executes commands.
func runCommands() error {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<16)
	for lines.Scan() {
		command, rest, _ := strings.Cut(lines.Text(), " ")
		switch command {
		case "send": // an endless stream
			if err := sendForever(rest); err != nil {
				return err
			}
		case "verbs":
			if err := verbsAsPeer(rest); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

func serveEcho(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			io.Copy(c, c)
			c.Close()
		}()
	}
}

// sendForever connects to an address and sends without end.
func sendForever(to string) error {
	c, err := stream.Dial(context.Background(), to)
	if err != nil {
		return err
	}
	fmt.Println("connected")
	go func() {
		for b := make([]byte, 1<<16); err == nil; {
			_, err = c.Write(b)
		}
	}()
	return nil
}

// place identifies a queue pair and its memory to the other side.
type place struct {
	Endpoint rdma.Endpoint
	Address  uint64
	RKey     uint32
}

// verbsEnd is a queue pair with memory.
type verbsEnd struct {
	device *rdma.Device
	qp     *rdma.QP
	mr     *rdma.MR
	sends  *rdma.SendBatch
	recvs  *rdma.RecvBatch
}

const verbsMemory = 4 << 20

func newVerbsEnd(device *rdma.Device) (e *verbsEnd, local place, err error) {
	e = &verbsEnd{device: device}
	e.qp, err = device.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return e, local, err
	}
	if e.mr, err = e.qp.RegMR(make([]byte, verbsMemory), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|
		ibv.ACCESS_REMOTE_READ|ibv.ACCESS_REMOTE_ATOMIC); err != nil {
		return e, local, err
	}
	if e.sends, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return e, local, err
	}
	if e.recvs, err = rdma.NewRecvBatch(1, 1); err != nil {
		return e, local, err
	}
	local.Address, local.RKey = e.mr.Address(), e.mr.RKey()
	local.Endpoint, err = e.qp.Endpoint()
	return e, local, err
}

func (e *verbsEnd) close() {
	e.sends.Close()
	e.recvs.Close()
	e.qp.Close()
}

// receive posts a receive at an offset of the memory.
func (e *verbsEnd) receive(at uint64, n uint32) error {
	e.recvs.Reset()
	e.recvs.Recv(1).Add(e.mr.SGE(at, n))
	_, err := e.qp.PostRecv(e.recvs)
	return err
}

// next waits for a completion.
func (e *verbsEnd) next(ctx context.Context) (wc ibv.WC, err error) {
	wcs := make([]ibv.WC, 1)
	if _, err = e.qp.SendCQ().Wait(ctx, wcs); err != nil {
		return wc, err
	}
	return wcs[0], rdma.CompletionErr(&wcs[0])
}

// do posts a request and waits for its completion.
func (e *verbsEnd) do(ctx context.Context, request func(b *rdma.SendBatch) rdma.SendRequest) (ibv.WC, error) {
	e.sends.Reset()
	request(e.sends).Signaled()
	if _, err := e.qp.PostSend(e.sends); err != nil {
		return ibv.WC{}, err
	}
	return e.next(ctx)
}

// verbsAsPeer echoes every message on a new queue pair.
func verbsAsPeer(text string) error {
	var peer place
	if err := json.Unmarshal([]byte(text), &peer); err != nil {
		return err
	}
	device, err := rdma.Open("")
	if err != nil {
		return err
	}
	e, own, err := newVerbsEnd(device)
	if err != nil {
		return err
	}
	if err := e.qp.Connect(peer.Endpoint); err != nil {
		return err
	}
	if err := e.receive(0, verbsMemory); err != nil {
		return err
	}
	line, err := json.Marshal(own)
	if err != nil {
		return err
	}
	fmt.Printf("%s\n", line)
	go func() {
		ctx := context.Background()
		for {
			got, err := e.next(ctx)
			if err == nil {
				_, err = e.do(ctx, func(b *rdma.SendBatch) rdma.SendRequest {
					return b.Send(2).Add(e.mr.SGE(0, got.ByteLen))
				})
			}
			if err == nil {
				err = e.receive(0, verbsMemory)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, "peer: verbs:", err)
				return
			}
		}
	}()
	return nil
}

// peer is the test's handle of a peer process.
type peer struct {
	t       *testing.T
	address string
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	errors  bytes.Buffer
}

func startPeer(t *testing.T, address string) *peer {
	t.Helper()
	p := newPeer(t, address)
	p.start()
	return p
}

func newPeer(t *testing.T, address string, env ...string) *peer {
	p := &peer{t: t, address: address, command: exec.Command(os.Args[0])}
	p.command.Env = append(append(os.Environ(), asPeer+"="+address, "GOVERBS_DEVICE=soft@"+address), env...)
	p.command.Stderr = &p.errors
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return p
}

func (p *peer) start() {
	p.t.Helper()
	t := p.t
	var err error
	p.in, err = p.command.StdinPipe()
	require.NoError(t, err)
	out, err := p.command.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewScanner(out)
	require.NoError(t, p.command.Start())
	t.Cleanup(p.kill)
	require.Equal(t, "ready", p.line(), "%s", &p.errors)
}

func (p *peer) line() string {
	if !p.out.Scan() {
		return ""
	}
	return p.out.Text()
}

// ask sends a command to the peer and returns its answer.
func (p *peer) ask(name string) string {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, name)
	require.NoError(p.t, err)
	line := p.line()
	require.NotEmpty(p.t, line, "%s: %s", name, &p.errors)
	return line
}

// kill kills the process if it still runs, and waits for its exit.
func (p *peer) kill() {
	if err := p.command.Process.Kill(); errors.Is(err, os.ErrProcessDone) {
		return
	}
	p.command.Wait()
}

func (p *peer) at(port string) string { return net.JoinHostPort(p.address, port) }
