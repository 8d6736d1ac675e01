// SPDX-License-Identifier: BSD-2-Clause

// Command one-sided writes and reads the memory of another process, which does not take part:
//
//	one-sided -device rxe0            both ends, in this process
//	one-sided -device rxe0 -listen    the end with the memory
//	one-sided -device rxe0 HOST       the end that writes and reads
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goverbs/goverbs/examples/internal/meet"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func main() { meet.Main("one-sided", serve, call) }

// memory tells a process how to access memory of another process.
type memory struct {
	Endpoint rdma.Endpoint
	Address  uint64
	RKey     uint32
}

// end holds the objects of one end.
type end struct {
	device *rdma.Device
	qp     *rdma.QP
	mr     *rdma.MR
}

func open(name string, access ibv.AccessFlags) (e *end, err error) {
	e = new(end)
	if e.device, err = rdma.Open(name); err != nil {
		return e, err
	}
	if e.qp, err = e.device.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 2, MaxSendSGE: 1}}); err != nil {
		return e, err
	}
	e.mr, err = e.qp.RegMR(make([]byte, 4096), access)
	return e, err
}

// close closes the queue pair, with its memory region, and the device.
func (e *end) close() {
	if e.qp != nil {
		e.qp.Close()
	}
	if e.device != nil {
		e.device.Close()
	}
}

// serve runs the end that owns the memory.
func serve(device string, peer *meet.Peer) error {
	e, err := open(device, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|ibv.ACCESS_REMOTE_READ)
	defer e.close()
	if err != nil {
		return err
	}
	own, err := e.qp.Endpoint()
	if err != nil {
		return err
	}
	var caller rdma.Endpoint
	if err = peer.Receive(&caller); err != nil {
		return err
	}
	if err = e.qp.Connect(caller); err != nil {
		return err
	}
	if err = peer.Send(memory{own, e.mr.Address(), e.mr.RKey()}); err != nil {
		return err
	}
	var done string // RDMA does not notify this end, so the other end sends a message
	if err = peer.Receive(&done); err != nil {
		return err
	}
	text, _, _ := strings.Cut(string(e.mr.Bytes()), "\x00")
	fmt.Printf("in my memory: %q\n", text)
	return nil
}

// call runs the end that writes and reads the other end's memory.
func call(device string, peer *meet.Peer) error {
	e, err := open(device, ibv.ACCESS_LOCAL_WRITE)
	defer e.close()
	if err != nil {
		return err
	}
	own, err := e.qp.Endpoint()
	if err != nil {
		return err
	}
	if err = peer.Send(own); err != nil {
		return err
	}
	var there memory
	if err = peer.Receive(&there); err != nil {
		return err
	}
	if err = e.qp.Connect(there.Endpoint); err != nil {
		return err
	}

	// Requests of a queue pair execute in order, so the read returns the written data, and one completion suffices.
	const text, half = "hello from the other side", 2048
	copy(e.mr.Bytes(), text)
	batch, err := rdma.NewSendBatch(2, 1, 0)
	if err != nil {
		return err
	}
	defer batch.Close()
	batch.Write(1, there.Address, there.RKey).Add(e.mr.SGE(0, uint32(len(text))))
	batch.Read(2, there.Address, there.RKey).Add(e.mr.SGE(half, uint32(len(text)))).Signaled()
	if _, err = e.qp.PostSend(batch); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	wcs := make([]ibv.WC, 1)
	if _, err = e.qp.SendCQ().WaitBusy(ctx, wcs); err != nil {
		return err
	}
	if err = rdma.CompletionErr(&wcs[0]); err != nil {
		return err
	}
	got := string(e.mr.Bytes()[half : half+len(text)])
	fmt.Printf("read back: %q\n", got)
	if got != text {
		return errors.New("the memory differs from the written data")
	}
	return peer.Send("done")
}
