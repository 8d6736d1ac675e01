// SPDX-License-Identifier: BSD-2-Clause

//go:build linux

// Command wire measures the same as command bare, with RDMA between two software devices in two processes: 1 MiB
// writes, several in flight, and round trips of 64 bytes. It has the same output.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

const (
	messageSize = 1 << 20
	depth       = 4 // writes in flight
	small       = 64
)

var (
	long   = flag.Duration("time", 2*time.Second, "duration of each measurement")
	at     = flag.String("address", "127.0.0.2", "`address` of this process's device")
	other  = flag.String("other", "127.0.0.3", "`address` of the peer's device")
	peer   = flag.Bool("peer", false, "run as the peer")
	events = flag.Bool("events", false, "wait for events instead of polling")
)

func main() {
	flag.Parse()
	run := measure
	if *peer {
		run = serve
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "wire:", err)
		os.Exit(1)
	}
}

// end is one end of a connection.
type end struct {
	fabric *soft.Fabric
	device *rdma.Device
	qp     *rdma.QP
	mr     *rdma.MR
	sends  *rdma.SendBatch
	recvs  *rdma.RecvBatch
	wcs    []ibv.WC
}

func open(address string) (*end, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	e := &end{wcs: make([]ibv.WC, 16)}
	e.fabric, err = soft.New(soft.Options{Devices: []soft.DeviceOptions{{Address: ip, Wire: true}}})
	if err != nil {
		return nil, err
	}
	if e.device, err = rdma.OpenOn(e.fabric, "soft0"); err != nil {
		return nil, err
	}
	e.qp, err = e.device.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1,
		MaxInlineData: small}})
	if err != nil {
		return nil, err
	}
	e.mr, err = e.qp.RegMR(make([]byte, messageSize), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE)
	if err != nil {
		return nil, err
	}
	if e.sends, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return nil, err
	}
	e.recvs, err = rdma.NewRecvBatch(1, 1)
	return e, err
}

func (e *end) parameters() (string, error) {
	local, err := e.qp.Endpoint()
	if err != nil {
		return "", err
	}
	text, err := local.MarshalText()
	return fmt.Sprintf("%s|%d|%d", text, uint64(e.mr.SGE(0, 1).Addr), e.mr.RKey()), err
}

// connect connects with the parameters from the other end, and posts a receive.
func (e *end) connect(line string) (remote uint64, rkey uint32, err error) {
	parts := strings.Split(strings.TrimSpace(line), "|")
	if len(parts) != 3 {
		return 0, 0, fmt.Errorf("unexpected message from the peer: %q", line)
	}
	var to rdma.Endpoint
	if err := to.UnmarshalText([]byte(parts[0])); err != nil {
		return 0, 0, err
	}
	if remote, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return 0, 0, err
	}
	key, err := strconv.ParseUint(parts[2], 10, 32)
	if err != nil {
		return 0, 0, err
	}
	if err := e.qp.Connect(to); err != nil {
		return 0, 0, err
	}
	e.recvs.Recv(1).Add(e.mr.SGE(0, small))
	return remote, uint32(key), e.receive()
}

func (e *end) receive() error {
	_, err := e.qp.PostRecv(e.recvs)
	return err
}

// completions waits for completions and checks that they are successful.
func (e *end) completions() ([]ibv.WC, error) {
	for {
		n, err := 0, error(nil)
		if *events {
			n, err = e.qp.SendCQ().Wait(context.Background(), e.wcs)
		} else {
			n, err = e.qp.SendCQ().Poll(e.wcs)
		}
		if err != nil {
			return nil, err
		}
		for i := range e.wcs[:n] {
			if err := rdma.CompletionErr(&e.wcs[i]); err != nil {
				return nil, err
			}
		}
		if n > 0 {
			return e.wcs[:n], nil
		}
	}
}

func serve() error {
	e, err := open(*at)
	if err != nil {
		return err
	}
	line, err := e.parameters()
	if err != nil {
		return err
	}
	fmt.Println(line)
	in := bufio.NewReader(os.Stdin)
	if line, err = in.ReadString('\n'); err != nil {
		return err
	}
	if _, _, err := e.connect(line); err != nil {
		return err
	}
	fmt.Println("ready")
	go func() {
		in.ReadString('\n')
		os.Exit(0)
	}()
	e.sends.Send(2).Add(e.mr.SGE(0, small)).Signaled()
	for {
		wcs, err := e.completions()
		if err != nil {
			return err
		}
		for i := range wcs {
			if wcs[i].WRID != 1 {
				continue
			}
			if err := e.receive(); err != nil {
				return err
			}
			if _, err := e.qp.PostSend(e.sends); err != nil {
				return err
			}
		}
	}
}

func measure() (err error) {
	e, err := open(*at)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(exe, "-peer", "-address", *other, "-events="+strconv.FormatBool(*events))
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	in, err := child.StdinPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	defer func() { in.Close(); err = errors.Join(err, child.Wait()) }()
	from := bufio.NewReader(out)
	line, err := from.ReadString('\n')
	if err != nil {
		return err
	}
	remote, rkey, err := e.connect(line)
	if err != nil {
		return err
	}
	if line, err = e.parameters(); err != nil {
		return err
	}
	fmt.Fprintln(in, line)
	if _, err := from.ReadString('\n'); err != nil {
		return err
	}
	for _, m := range []struct {
		name string
		run  func() (int, error)
		size int
	}{
		{"1 MiB message", func() (int, error) { return e.writes(remote, rkey) }, messageSize},
		{"64 bytes and back", e.pingPong, 0},
	} {
		start := time.Now()
		n, err := m.run()
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		each := time.Since(start) / time.Duration(n)
		fmt.Printf("%s: %v", m.name, each)
		if m.size > 0 {
			fmt.Printf(", %.2f GB/s", float64(m.size)/float64(each.Nanoseconds()))
		}
		fmt.Printf("\n%s,%.1f\n", m.name, float64(time.Second)/float64(each))
	}
	return nil
}

func (e *end) writes(remote uint64, rkey uint32) (int, error) {
	e.sends.Reset()
	e.sends.Write(3, remote, rkey).Add(e.mr.SGE(0, messageSize)).Signaled()
	posted, done := 0, 0
	for start, more := time.Now(), true; more || done < posted; more = time.Since(start) < *long {
		for more && posted-done < depth {
			if _, err := e.qp.PostSend(e.sends); err != nil {
				return 0, err
			}
			posted++
		}
		wcs, err := e.completions()
		if err != nil {
			return 0, err
		}
		done += len(wcs)
	}
	return done, nil
}

func (e *end) pingPong() (int, error) {
	e.sends.Reset()
	e.sends.Send(2).Add(e.mr.SGE(0, small)).Signaled()
	for n, start := 0, time.Now(); ; n++ {
		if time.Since(start) > *long {
			return n, nil
		}
		if _, err := e.qp.PostSend(e.sends); err != nil {
			return n, err
		}
		for got := 0; got < 2; {
			wcs, err := e.completions()
			if err != nil {
				return n, err
			}
			for i := range wcs {
				if got++; wcs[i].WRID == 1 {
					if err := e.receive(); err != nil {
						return n, err
					}
				}
			}
		}
	}
}
