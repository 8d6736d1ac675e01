// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// must exits on errors, which is sufficient for examples.
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

// side is a queue pair on a device of a fabric, with memory.
type side struct {
	device *rdma.Device
	pd     *rdma.PD
	cq     *rdma.CQ
	qp     *rdma.QP
	mr     *rdma.MR
}

// newSide opens a device of a fabric by name. After OpenOn everything is as on hardware.
func newSide(fabric *soft.Fabric, name string) *side {
	s := &side{device: must(rdma.OpenOn(fabric, name))}
	s.pd = must(s.device.AllocPD())
	s.cq = must(s.device.CreateCQ(8, nil, 0))
	s.qp = must(s.pd.CreateQP(&ibv.QPInitAttr{
		QPType: ibv.QPT_RC, SendCQ: s.cq.Ptr(), RecvCQ: s.cq.Ptr(), Cap: ibv.QPCap{MaxSendWR: 2, MaxSendSGE: 1},
	}, rdma.QueueOptions{}))
	s.mr = must(s.pd.RegMR(make([]byte, 64), ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE))
	return s
}

// write writes to the memory of another side and waits for the completion.
func (s *side) write(to *side) error {
	batch := must(rdma.NewSendBatch(1, 1, 0))
	defer batch.Close()
	batch.Write(1, to.mr.Address(), to.mr.RKey()).Add(s.mr.SGE(0, 64)).Signaled()
	must(s.qp.PostSend(batch))
	wcs := make([]ibv.WC, 1)
	must(s.cq.WaitBusy(context.Background(), wcs))
	return rdma.CompletionErr(&wcs[0])
}

func (s *side) close() { check(rdma.CloseAll(nil, s.device, s.pd, s.cq, s.qp, s.mr)) }

// A fabric for a test: messages are lost, and a reliable connection retransmits them. The seed makes it repeatable.
func Example() {
	fabric := must(soft.New(soft.Options{Virtual: true, Faults: soft.Faults{Seed: 2, Drop: 0.3}}))
	a, b := newSide(fabric, "soft0"), newSide(fabric, "soft1")
	check(a.qp.Connect(must(b.qp.Endpoint())))
	check(b.qp.Connect(must(a.qp.Endpoint())))
	for range 10 {
		check(a.write(b))
	}
	fmt.Println("lost messages:", fabric.Counters().Lost > 0)
	a.close()
	b.close()
	fmt.Println("left open:", fabric.Resources())
	check(fabric.Close())
	// Output:
	// lost messages: true
	// left open: map[]
}

// A lost peer is noticed after all retries. With a virtual clock that takes no time.
func ExampleFabric_SetLink() {
	fabric := must(soft.New(soft.Options{Virtual: true}))
	a, b := newSide(fabric, "soft0"), newSide(fabric, "soft1")
	check(a.qp.Connect(must(b.qp.Endpoint())))
	check(b.qp.Connect(must(a.qp.Endpoint())))

	fabric.SetLink("soft1", false)
	err := a.write(b)
	fmt.Println(errors.Is(err, &rdma.CompletionError{Status: ibv.WC_RETRY_EXC_ERR}))
	fmt.Println(fabric.Now() > 500*time.Millisecond)
	a.close()
	b.close()
	check(fabric.Close())
	// Output:
	// true
	// true
}

// Unplug a device while a program uses it.
func ExampleFabric_RemoveDevice() {
	ctx := context.Background()
	fabric := must(soft.New(soft.Options{}))
	a := newSide(fabric, "soft0")
	fabric.RemoveDevice("soft0")
	fmt.Println(must(a.device.Event(ctx)).Type)
	_, err := a.device.AllocPD()
	fmt.Println(err)
	a.close()
	check(fabric.Close())
	// Output:
	// IBV_EVENT_DEVICE_FATAL
	// ibv_alloc_pd: soft0: input/output error
}

// Streams over a new fabric with its own devices.
func ExampleNew() {
	ctx := context.Background()
	fabric := must(soft.New(soft.Options{Devices: []soft.DeviceOptions{{Name: "left"}, {Name: "right"}}}))
	streams := stream.Config{Backend: fabric}
	listener := must((&stream.ListenConfig{Config: streams}).Listen(ctx, "127.0.0.2:80")) // address of device right
	served := make(chan struct{})
	go func() {
		defer close(served)
		conn := must(listener.Accept())
		fmt.Fprint(conn, "hello")
		check(conn.Close())
	}()
	conn := must((&stream.Dialer{Config: streams}).Dial(ctx, listener.Addr().String()))
	word := make([]byte, 5)
	must(conn.Read(word))
	fmt.Printf("%s\n", word)
	check(conn.Close())
	check(listener.Close())
	<-served
	check(fabric.Close())
	// Output: hello
}
