// SPDX-License-Identifier: BSD-2-Clause

package rdma_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// Many goroutines read another process's memory over one queue pair. Each waits only for its own request.
func ExampleCalls() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	copy(p.away.Bytes(), "one two sixten")
	calls := must(rdma.NewCalls(p.cq, 8, nil))
	defer calls.Close()

	get := func(ctx context.Context, offset, length uint64) (string, error) {
		batch, err := rdma.NewSendBatch(1, 1, 0) // a real program reuses it
		if err != nil {
			return "", err
		}
		defer batch.Close()
		call, err := calls.Begin()
		if err != nil {
			return "", err
		}
		batch.Read(call.ID(), p.away.Address()+offset, p.away.RKey()).Add(p.here.SGE(offset, uint32(length))).Signaled()
		if _, err := p.a.PostSend(batch); err != nil {
			call.Cancel() // nothing was posted, so there will be no completion
			return "", err
		}
		wc, err := call.Wait(ctx)
		if err != nil {
			return "", err
		}
		return string(p.here.Bytes()[offset:][:length]), rdma.CompletionErr(&wc)
	}

	words := make([]string, 3)
	var all sync.WaitGroup
	for i := range words {
		all.Go(func() { words[i] = must(get(context.Background(), uint64(4*i), 3)) })
	}
	all.Wait()
	fmt.Println(words)
	// Output: [one two six]
}

// One goroutine handles the completions of many requests on any queue pair. Each completion returns the value that its
// request was posted with.
func ExamplePoller() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	poller := must(rdma.NewPoller[string](p.cq, 16))
	defer poller.Close()

	batch := must(rdma.NewSendBatch(2, 1, 0))
	defer batch.Close()
	batch.Write(must(poller.Ticket("the write")), p.away.Address(), p.away.RKey()).Add(p.here.SGE(0, 8)).Signaled()
	batch.Read(must(poller.Ticket("the read")), p.away.Address(), p.away.RKey()).Add(p.here.SGE(8, 8)).Signaled()
	must(p.a.PostSend(batch))

	var finished []string
	done := make([]rdma.Completed[string], 16)
	for len(finished) < 2 {
		n := must(poller.Wait(context.Background(), done))
		for i := range done[:n] {
			check(rdma.CompletionErr(&done[i].WC))
			finished = append(finished, done[i].Value)
		}
	}
	fmt.Println(finished, poller.Out())
	// Output: [the write the read] 0
}

// Extended queue pairs support requests that ibv_post_send does not, and extended completion queues support more
// values, such as timestamps. A program is built once and executed in one call.
func ExampleWRProgram() {
	device := must(rdma.Open("soft0"))
	pd := must(device.AllocPD())
	ctx := context.Background()
	cq := must(device.CreateCQEx(&ibv.CQInitAttrEx{CQE: 16, WCFlags: ibv.WC_EX_WITH_QP_NUM}))
	attr := &ibv.QPInitAttrEx{
		QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: pd.Ptr(),
		Cap:          ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1},
		SendOpsFlags: ibv.QP_EX_WITH_ATOMIC_WRITE,
		CompMask:     ibv.QP_INIT_ATTR_PD | ibv.QP_INIT_ATTR_SEND_OPS_FLAGS,
	}
	a, b := must(device.CreateQPEx(attr, rdma.QueueOptions{})), must(device.CreateQPEx(attr, rdma.QueueOptions{}))
	check(a.Connect(must(b.Endpoint())))
	check(b.Connect(must(a.Endpoint())))
	away := must(pd.RegMR(make([]byte, 8), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE))

	program := must(a.NewWRProgram())
	program.AtomicWrite(1, away.Address(), away.RKey(), [8]byte([]byte("at once!"))).Signaled()
	check(a.PostProgram(program))

	polls := must(cq.NewPollProgram(4)) // reads all values that the queue provides
	for _, c := range must(cq.WaitProgram(ctx, polls)) {
		fmt.Println(c.WRID, c.Status, c.QPNum == a.Num())
	}
	fmt.Printf("%s\n", away.Bytes())
	check(polls.Close())
	check(rdma.CloseAll(nil, device, pd, cq, a, b, away))
	// Output:
	// 1 IBV_WC_SUCCESS true
	// at once!
}

// Tag matching: the receiver posts a buffer for each tag, and the device writes each message to the buffer of its tag,
// in any order of arrival. A message begins with a header that contains the tag.
func ExampleTagBatch() {
	const header = 16
	device := must(rdma.Open("soft0"))
	pd := must(device.AllocPD())
	sent, received := must(device.CreateCQ(16, nil, 0)), must(device.CreateCQ(32, nil, 0))
	srq := must(device.CreateSRQEx(&ibv.SRQInitAttrEx{
		SRQType: ibv.SRQT_TM, Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, PD: pd.Ptr(), CQ: received.Ptr(),
		TMCap: ibv.TMCap{MaxNumTags: 4, MaxOps: 4},
		CompMask: ibv.SRQ_INIT_ATTR_TYPE | ibv.SRQ_INIT_ATTR_PD | ibv.SRQ_INIT_ATTR_CQ |
			ibv.SRQ_INIT_ATTR_TM,
	}, rdma.QueueOptions{}))
	sender := must(pd.CreateQP(&ibv.QPInitAttr{
		QPType: ibv.QPT_RC, SendCQ: sent.Ptr(), RecvCQ: sent.Ptr(), Cap: ibv.QPCap{MaxSendWR: 4, MaxSendSGE: 1},
	}, rdma.QueueOptions{}))
	receiver := must(pd.CreateQP(&ibv.QPInitAttr{
		QPType: ibv.QPT_RC, SendCQ: sent.Ptr(), RecvCQ: received.Ptr(), SRQ: srq.Ptr(),
	}, rdma.QueueOptions{}))
	check(sender.Connect(must(receiver.Endpoint())))
	check(receiver.Connect(must(sender.Endpoint())))
	here := must(pd.RegMR(make([]byte, 256), ibv.ACCESS_LOCAL_WRITE))
	away := must(pd.RegMR(make([]byte, 256), ibv.ACCESS_LOCAL_WRITE))

	tags := must(rdma.NewTagBatch(2, 1))
	defer tags.Close()
	for i, tag := range []uint64{7, 9} { // buffers for tags 7 and 9
		tags.AddTag(100+tag, 200+tag, tag, ^uint64(0)).Add(away.SGE(uint64(i)*64, 64))
	}
	must(srq.PostTags(tags))

	batch := must(rdma.NewSendBatch(2, 1, 0))
	defer batch.Close()
	for i, tag := range []uint64{9, 7} { // the messages arrive in the opposite order
		message := here.Bytes()[i*64:]
		message[0] = byte(ibv.TMH_EAGER)
		message[15] = byte(tag) // 8 bytes in network byte order
		n := header + copy(message[header:], fmt.Sprintf("for tag %d", tag))
		batch.Send(tag).Add(here.SGE(uint64(i)*64, uint32(n))).Signaled()
	}
	must(sender.PostSend(batch))

	wcs := make([]ibv.WC, 4)
	var arrived []uint64
	for len(arrived) < 2 {
		n := must(received.WaitBusy(context.Background(), wcs))
		for i := range wcs[:n] {
			check(rdma.CompletionErr(&wcs[i]))
			if wcs[i].WCFlags&ibv.WC_TM_DATA_VALID != 0 {
				arrived = append(arrived, wcs[i].WRID)
			}
		}
	}
	slices.Sort(arrived)
	fmt.Printf("%d\n%.9s\n%.9s\n", arrived, away.Bytes(), away.Bytes()[64:])
	check(rdma.CloseAll(nil, device, pd, sent, received, srq, sender, receiver, here, away))
	// Output:
	// [207 209]
	// for tag 7
	// for tag 9
}

// Poll many completions at once into a reused slice.
func ExampleCQ_Wait() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	batch := must(rdma.NewSendBatch(2, 1, 0))
	defer batch.Close()
	batch.Write(1, p.away.Address(), p.away.RKey()).Add(p.here.SGE(0, 8)).Signaled()
	batch.Write(2, p.away.Address()+8, p.away.RKey()).Add(p.here.SGE(8, 8)).Signaled()
	must(p.a.PostSend(batch))

	cq, ctx := p.cq, context.Background()
	wcs := make([]ibv.WC, 16)
	for done := 0; done < 2; {
		n := must(cq.Wait(ctx, wcs))
		for i := range wcs[:n] {
			check(rdma.CompletionErr(&wcs[i]))
		}
		done += n
	}
	// Output:
}

// If the context of a wait ends, Abandon keeps the buffer until the device no longer uses it, here until a late message
// arrives.
func ExampleCall_Abandon() {
	p := newPair(ibv.QPT_RC)
	defer p.close()
	calls := must(rdma.NewCalls(p.cq, 8, nil))
	defer calls.Close()
	buffers := make(chan []byte, 1) // a pool

	recvs := must(rdma.NewRecvBatch(1, 1))
	defer recvs.Close()
	buffer := p.away.Bytes()[:64]
	call := must(calls.Begin())
	recvs.Recv(call.ID()).Add(p.away.SGEOf(buffer))
	must(p.b.PostRecv(recvs))
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := call.Wait(ctx); err != nil {
		fmt.Println(err)
		call.Abandon(func() { buffers <- buffer })
	}

	sends := must(rdma.NewSendBatch(1, 1, 0))
	defer sends.Close()
	sends.Send(1).Add(p.here.SGEOf(p.here.Bytes()[:copy(p.here.Bytes(), "too late")])).Signaled()
	must(p.a.PostSend(sends))
	fmt.Printf("%.8s\n", <-buffers)
	// Output:
	// context deadline exceeded
	// too late
}
