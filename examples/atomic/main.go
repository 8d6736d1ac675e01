// SPDX-License-Identifier: BSD-2-Clause

// Command atomic counts in the memory of another process: several queue pairs increment a counter with fetch-and-add,
// then compare-and-swap closes it:
//
//	atomic -device rxe0            both ends, in this process
//	atomic -device rxe0 -listen    the end with the counter
//	atomic -device rxe0 HOST       the end that counts
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/examples/internal/meet"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func main() { meet.Main("atomic", serve, call) }

const (
	workers = 4 // queue pairs that count concurrently
	adds    = 100
	closed  = ^uint64(0)
)

// counter tells a process how to access the counter.
type counter struct {
	Endpoints [workers]rdma.Endpoint
	Address   uint64
	RKey      uint32
}

// domain holds the objects that each end needs: a device, memory, and queue pairs.
type domain struct {
	mr     *rdma.MR
	qps    [workers]*rdma.QP
	closes []func() error // in the order of creation
}

func keep[T interface{ Close() error }](d *domain, o T, err error) (T, error) {
	if err == nil {
		d.closes = append(d.closes, o.Close)
	}
	return o, err
}

func (d *domain) close() {
	for i := range d.closes {
		d.closes[len(d.closes)-1-i]()
	}
}

func (d *domain) open(name string, access ibv.AccessFlags) error {
	device, err := rdma.Open(name)
	if device, err = keep(d, device, err); err != nil {
		return err
	}
	pd, err := device.AllocPD()
	if pd, err = keep(d, pd, err); err != nil {
		return err
	}
	// An atomic operation needs 8 bytes at a multiple of 8. Go aligns slices of this size accordingly.
	d.mr, err = pd.RegMR(make([]byte, 8*workers), access)
	if d.mr, err = keep(d, d.mr, err); err != nil {
		return err
	}
	for i := range d.qps {
		qp, err := device.NewRC(rdma.QPParts{PD: pd, Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}})
		if d.qps[i], err = keep(d, qp, err); err != nil {
			return err
		}
	}
	return nil
}

// endpoints returns the endpoints of all queue pairs.
func (d *domain) endpoints() (all [workers]rdma.Endpoint, err error) {
	for i, qp := range d.qps {
		if all[i], err = qp.Endpoint(); err != nil {
			return all, err
		}
	}
	return all, nil
}

func (d *domain) connect(peers [workers]rdma.Endpoint) error {
	for i, qp := range d.qps {
		if err := qp.Connect(peers[i]); err != nil {
			return err
		}
	}
	return nil
}

// serve runs the end that owns the counter, which is in the first 8 bytes of its memory.
func serve(device string, peer *meet.Peer) error {
	d := new(domain)
	defer d.close()
	if err := d.open(device, ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_ATOMIC); err != nil {
		return err
	}
	own, err := d.endpoints()
	if err != nil {
		return err
	}
	var callers [workers]rdma.Endpoint
	if err := peer.Receive(&callers); err != nil {
		return err
	}
	if err := d.connect(callers); err != nil {
		return err
	}
	if err := peer.Send(counter{own, d.mr.Address(), d.mr.RKey()}); err != nil {
		return err
	}
	var done string
	if err := peer.Receive(&done); err != nil {
		return err
	}
	if last := binary.NativeEndian.Uint64(d.mr.Bytes()); last != closed {
		return fmt.Errorf("the counter is %d, not closed", last)
	}
	return nil
}

// call runs the end that counts, with all queue pairs concurrently.
func call(device string, peer *meet.Peer) error {
	d := new(domain)
	defer d.close()
	if err := d.open(device, ibv.ACCESS_LOCAL_WRITE); err != nil {
		return err
	}
	own, err := d.endpoints()
	if err != nil {
		return err
	}
	if err = peer.Send(own); err != nil {
		return err
	}
	var there counter
	if err = peer.Receive(&there); err != nil {
		return err
	}
	if err = d.connect(there.Endpoints); err != nil {
		return err
	}
	counted := make(chan error, workers)
	for i := range workers {
		go func() { counted <- count(d, i, there) }()
	}
	for range workers {
		if err = <-counted; err != nil {
			return err
		}
	}

	// Compare-and-swap closes the counter if it has the expected value. In any case, it returns the previous value.
	w, err := newWorker(d, 0)
	if err != nil {
		return err
	}
	defer w.batch.Close()
	w.batch.CompareSwap(0, there.Address, there.RKey, workers*adds, closed).Add(w.result).Signaled()
	found, err := w.run()
	if err != nil {
		return err
	}
	fmt.Printf("%d goroutines counted to %d\n", workers, found)
	if found != workers*adds {
		return fmt.Errorf("want a count of %d", workers*adds)
	}
	return peer.Send("done")
}

// count adds 1 to the counter repeatedly.
func count(d *domain, i int, there counter) error {
	w, err := newWorker(d, i)
	if err != nil {
		return err
	}
	defer w.batch.Close()
	w.batch.FetchAdd(0, there.Address, there.RKey, 1).Add(w.result).Signaled()
	var before uint64
	for n := range adds {
		found, err := w.run()
		if err != nil {
			return err
		}
		if n > 0 && found <= before {
			return fmt.Errorf("the counter went back from %d to %d", before, found)
		}
		before = found
	}
	return nil
}

// worker executes atomic operations, one at a time, on a queue pair.
type worker struct {
	qp     *rdma.QP
	batch  *rdma.SendBatch
	result ibv.SGE // the device writes the old value here
	found  []byte
	wcs    []ibv.WC
}

func newWorker(d *domain, i int) (*worker, error) {
	batch, err := rdma.NewSendBatch(1, 1, 0)
	return &worker{d.qps[i], batch, d.mr.SGE(uint64(8*i), 8), d.mr.Bytes()[8*i:], make([]ibv.WC, 1)}, err
}

// run posts the batch and returns the value of the counter before the operation.
func (w *worker) run() (found uint64, err error) {
	if _, err = w.qp.PostSend(w.batch); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err = w.qp.SendCQ().WaitBusy(ctx, w.wcs); err != nil {
		return 0, err
	}
	if err = rdma.CompletionErr(&w.wcs[0]); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(w.found), nil
}
