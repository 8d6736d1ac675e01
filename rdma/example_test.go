// SPDX-License-Identifier: BSD-2-Clause

package rdma_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// must exits on errors.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// Send a message from one queue pair to another. Usually they are in different processes, which exchange their
// endpoints over TCP; see the programs in examples/.
func Example() {
	device := must(rdma.Open("soft0")) // or mlx5_0, rxe0: rdma.Devices lists them
	defer device.Close()

	a := must(device.NewRC(rdma.QPParts{}))
	defer a.Close()
	b := must(device.NewRC(rdma.QPParts{}))
	defer b.Close()
	check(a.Connect(must(b.Endpoint())))
	check(b.Connect(must(a.Endpoint())))

	here := must(a.RegMR([]byte("hello"), 0))
	remoteMR := must(b.RegMR(make([]byte, 4096), ibv.ACCESS_LOCAL_WRITE))

	recvs := must(rdma.NewRecvBatch(1, 1))
	defer recvs.Close()
	recvs.Recv(1).Add(remoteMR.SGEOf(remoteMR.Bytes()))
	must(b.PostRecv(recvs))

	sends := must(rdma.NewSendBatch(1, 1, 0))
	defer sends.Close()
	sends.Send(2).Add(here.SGEOf(here.Bytes())).Signaled()
	must(a.PostSend(sends))

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for wc, err := range b.RecvCQ().All(ctx) {
		check(err)
		check(rdma.CompletionErr(&wc))
		fmt.Printf("%s\n", remoteMR.Bytes()[:wc.ByteLen])
		break
	}
	// Output: hello
}

// pair is two connected queue pairs in one process, each with registered memory.
type pair struct {
	pd         *rdma.PD
	channel    *rdma.CompChannel
	cq         *rdma.CQ
	a, b       *rdma.QP
	here, away *rdma.MR
}

func newPair(kind ibv.QPType) *pair {
	device := must(rdma.Open("soft0"))
	p := &pair{pd: must(device.AllocPD())}
	p.channel = must(device.CreateCompChannel())
	p.cq = must(device.CreateCQ(64, p.channel, 0))
	attr := &ibv.QPInitAttr{
		QPType: kind, SendCQ: p.cq.Ptr(), RecvCQ: p.cq.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	p.a, p.b = must(p.pd.CreateQP(attr, rdma.QueueOptions{})), must(p.pd.CreateQP(attr, rdma.QueueOptions{}))
	if kind == ibv.QPT_UD {
		check(p.a.Ready())
		check(p.b.Ready())
	} else {
		check(p.a.Connect(must(p.b.Endpoint())))
		check(p.b.Connect(must(p.a.Endpoint())))
	}
	const all = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ | ibv.ACCESS_REMOTE_ATOMIC
	p.here, p.away = must(p.pd.RegMR(make([]byte, 4096), all)), must(p.pd.RegMR(make([]byte, 4096), all))
	return p
}

func (p *pair) close() {
	for _, o := range []interface{ Close() error }{p.a, p.b, p.here, p.away, p.cq, p.channel, p.pd} {
		check(o.Close())
	}
	check(p.pd.Device().Close())
}

// Write and read memory of another process, given its address and remote key. The other process does not take part.
func ExampleSendBatch_Write() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	batch := must(rdma.NewSendBatch(2, 1, 0))
	defer batch.Close()

	copy(p.here.Bytes(), "written")
	remote, rkey := p.away.Address(), p.away.RKey() // a peer would send these
	batch.Write(1, remote, rkey).Add(p.here.SGE(0, 7))
	batch.Read(2, remote, rkey).Add(p.here.SGE(64, 7)).Signaled() // executed after the write
	must(p.a.PostSend(batch))

	wcs := make([]ibv.WC, 1)
	must(p.cq.Wait(context.Background(), wcs))
	check(rdma.CompletionErr(&wcs[0]))
	fmt.Printf("%s\n", p.here.Bytes()[64:][:7])
	// Output: written
}

// Change 8 bytes of another process's memory atomically. They are a number in the byte order of its machine.
func ExampleSendBatch_FetchAdd() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	batch := must(rdma.NewSendBatch(3, 1, 0))
	defer batch.Close()

	remote, rkey := p.away.Address(), p.away.RKey()
	batch.FetchAdd(1, remote, rkey, 40).Add(p.here.SGE(0, 8))
	batch.FetchAdd(2, remote, rkey, 2).Add(p.here.SGE(8, 8))
	batch.CompareSwap(3, remote, rkey, 42, 7).Add(p.here.SGE(16, 8)).Signaled()
	must(p.a.PostSend(batch))

	wcs := make([]ibv.WC, 1)
	must(p.cq.Wait(context.Background(), wcs))
	check(rdma.CompletionErr(&wcs[0]))
	for _, word := range [][]byte{p.here.Bytes(), p.here.Bytes()[8:], p.here.Bytes()[16:], p.away.Bytes()} {
		fmt.Println(binary.NativeEndian.Uint64(word)) // the result, in the machine's byte order
	}
	// Output:
	// 0
	// 40
	// 42
	// 7
}

// Send a datagram, which needs an address handle. Its receive buffer needs 40 additional bytes for the header.
func ExampleDatagram() {
	p := newPair(ibv.QPT_UD)
	defer p.close()
	peer := must(p.b.Endpoint())
	path := must(p.a.Path(peer))
	ah := must(p.pd.CreateAH(&path))
	defer ah.Close()

	recvs := must(rdma.NewRecvBatch(1, 1))
	defer recvs.Close()
	recvs.Recv(1).Add(p.away.SGE(0, uint32(rdma.GRHBytes)+1024))
	must(p.b.PostRecv(recvs))

	sends := must(rdma.NewSendBatch(1, 1, 0))
	defer sends.Close()
	n := copy(p.here.Bytes(), "a datagram")
	sends.Send(2).Add(p.here.SGE(0, uint32(n))).UD(ah.Ptr(), peer.QPNum, peer.QKey).Signaled()
	must(p.a.PostSend(sends))

	wcs := make([]ibv.WC, 1)
	for range 2 {
		must(p.cq.Wait(context.Background(), wcs))
		check(rdma.CompletionErr(&wcs[0]))
		if wcs[0].WRID == 1 {
			payload, grh, err := rdma.Datagram(&wcs[0], p.away.Bytes())
			check(err)
			fmt.Printf("%s, with a header: %v\n", payload, grh != nil)
		}
	}
	// Output: a datagram, with a header: true
}

// Canceling a wait does not cancel the work: the memory belongs to the device until the work has completed or the queue
// pair is drained.
func ExampleQP_Drain() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	recvs := must(rdma.NewRecvBatch(1, 1))
	defer recvs.Close()
	recvs.Recv(1).Add(p.away.SGE(0, 64))
	must(p.b.PostRecv(recvs))

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	wcs := make([]ibv.WC, 8)
	_, err := p.cq.Wait(ctx, wcs)
	fmt.Println(errors.Is(err, context.DeadlineExceeded))

	check(p.b.Drain(context.Background())) // now the memory can be reused
	n := must(p.cq.Poll(wcs))
	err = rdma.CompletionErr(&wcs[0])
	fmt.Println(n, errors.Is(err, &rdma.CompletionError{Status: ibv.WC_WR_FLUSH_ERR}))
	// Output:
	// true
	// 1 true
}

// Requests are checked before they are posted. The error lists valid alternatives.
func ExamplePostError() {
	p := newPair(ibv.QPT_UC)
	defer p.close()
	batch := must(rdma.NewSendBatch(1, 1, 0))
	defer batch.Close()
	batch.Read(7, p.away.Address(), p.away.RKey()).Add(p.here.SGE(0, 8)).Signaled()
	_, err := p.a.PostSend(batch)
	var post *rdma.PostError
	if errors.As(err, &post) {
		fmt.Println(post.Index, post.Reason)
	}
	// Output: 0 IBV_WR_RDMA_READ is not valid on UC (valid on: RC, XRC_SEND)
}

// Many queue pairs receive from one shared receive queue.
func ExampleSRQ() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	srq := must(p.pd.CreateSRQ(ibv.SRQAttr{MaxWR: 16, MaxSGE: 1}, rdma.QueueOptions{}))
	defer srq.Close()
	recvs := must(rdma.NewRecvBatch(4, 1))
	defer recvs.Close()
	for i := range uint64(4) {
		recvs.Recv(i).Add(p.away.SGE(i*64, 64))
	}
	fmt.Println(must(srq.PostRecv(recvs)))

	cq := must(p.pd.Device().CreateCQ(64, nil, 0))
	defer cq.Close()
	for range 3 {
		qp := must(p.pd.CreateQP(&ibv.QPInitAttr{
			QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(),
			Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1},
		}, rdma.QueueOptions{}))
		defer qp.Close()
	}
	fmt.Println(cq.Free()) // the depth of the shared queue counts once
	// Output:
	// 4
	// 36
}

// Reconnect a failed queue pair and its peer.
func ExampleQP_Connect() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	batch := must(rdma.NewSendBatch(1, 1, 0))
	defer batch.Close()
	write := func(rkey uint32) error {
		batch.Reset()
		batch.Write(1, p.away.Address(), rkey).Add(p.here.SGE(0, 8)).Signaled()
		must(p.a.PostSend(batch))
		wcs := make([]ibv.WC, 1)
		must(p.cq.Wait(context.Background(), wcs))
		return rdma.CompletionErr(&wcs[0])
	}
	fmt.Println(write(p.away.RKey()+1) != nil, p.a.State())
	attr, _, err := p.a.Query(ibv.QP_STATE)
	check(err)
	fmt.Println(attr.QPState)

	for _, end := range []struct{ qp, peer *rdma.QP }{{p.a, p.b}, {p.b, p.a}} {
		qp, peer := end.qp, must(end.peer.Endpoint())
		// RESET discards posted requests without completions
		check(qp.Modify(&ibv.QPAttr{QPState: ibv.QPS_RESET}, ibv.QP_STATE))
		check(qp.Connect(peer))
	}
	fmt.Println(write(p.away.RKey()))
	// Output:
	// true IBV_QPS_RTS
	// IBV_QPS_ERR
	// <nil>
}
