// SPDX-License-Identifier: BSD-2-Clause

package cm_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// must exits if there is an error.
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

var attr = &ibv.QPInitAttr{QPType: ibv.QPT_RC, SQSigAll: 1,
	Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}

// Two synchronous IDs, one that listens and one that connects, with the helpers of rdma_verbs.h.
func ExampleID_PostSend() {
	ctx := context.Background()
	backend := must(soft.Default()) // or nil, for hardware
	listener := must(cm.CreateIDOn(backend, rdmacm.PS_TCP))
	defer listener.Close()
	check(listener.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	check(listener.Listen(1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		id, request, err := listener.GetRequest(ctx)
		check(err)
		defer id.Close()
		fmt.Printf("a request: %s\n", request.PrivateData[:2])
		must(id.CreateQP(nil, attr, rdma.QueueOptions{}))
		mr := must(id.RegMsgs(make([]byte, 64)))
		check(id.PostRecv(1, mr.Bytes(), mr)) // before the peer may send
		check(id.Accept(ctx, nil, nil))
		wc := must(id.GetRecvComp(ctx))
		fmt.Printf("received: %s\n", mr.Bytes()[:wc.ByteLen])
		check(id.Disconnect(ctx))
		check(id.QP().Close())
		check(mr.Close())
	}()

	id := must(cm.CreateIDOn(backend, rdmacm.PS_TCP))
	defer id.Close()
	check(id.ResolveAddr(ctx, netip.AddrPort{}, listener.LocalAddr(), time.Second))
	check(id.ResolveRoute(ctx, time.Second))
	must(id.CreateQP(nil, attr, rdma.QueueOptions{}))
	check(id.Connect(ctx, nil, []byte("hi")))
	check(id.PostSend(2, []byte("hello"), nil, ibv.SEND_INLINE))
	wc := must(id.GetSendComp(ctx))
	check(rdma.CompletionErr(&wc))
	check(id.Disconnect(ctx))
	<-done
	// Output:
	// a request: hi
	// received: hello
}

// Handle the events of many IDs in one place. This fabric has injected faults and a virtual clock, so that a minute
// without an answer takes no time.
func ExampleEventChannel_Event() {
	ctx := context.Background()
	fabric := must(soft.New(soft.Options{Virtual: true}))
	defer fabric.Close()
	channel := must(cm.CreateEventChannelOn(fabric))
	defer channel.Close()
	id := must(channel.CreateID(rdmacm.PS_TCP))
	defer id.Close()

	check(id.ResolveAddr(ctx, netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("127.0.0.2:7471"),
		time.Second))
	fmt.Println(must(channel.Event(ctx)).Type)
	check(id.ResolveRoute(ctx, time.Second))
	fmt.Println(must(channel.Event(ctx)).Type)
	must(id.CreateQP(nil, attr, rdma.QueueOptions{}))
	fabric.SetLink("soft1", false)
	check(id.Connect(ctx, nil, nil))
	e := must(channel.Event(ctx))
	fmt.Println(e.Type, "after", fabric.Now().Round(time.Second))
	// Output:
	// RDMA_CM_EVENT_ADDR_RESOLVED
	// RDMA_CM_EVENT_ROUTE_RESOLVED
	// RDMA_CM_EVENT_UNREACHABLE after 1m9s
}

// Create an ID that is ready to listen from a name and a service.
func ExampleCreateEP() {
	ctx := context.Background()
	info := must(cm.GetAddrInfoOn(ctx, must(soft.Default()), "soft0", "7471", cm.Hints{Flags: rdmacm.RAI_PASSIVE}))
	defer info.Close()
	listener := must(cm.CreateEP(ctx, info, nil, attr, rdma.QueueOptions{})) // IDs from GetRequest have a queue pair
	defer listener.Close()
	check(listener.Listen(0))
	fmt.Println(listener.LocalAddr())
	// Output: 127.0.0.1:7471
}

// A server registers memory, and sends its address and remote key with the acceptance of the connection. A client reads
// the memory without involving the server's program. One-sided key-value stores work like this.
func ExampleID_PostRead() {
	ctx := context.Background()
	backend := must(soft.Default()) // or nil, for hardware
	listener := must(cm.CreateIDOn(backend, rdmacm.PS_TCP))
	defer listener.Close()
	check(listener.Bind(netip.MustParseAddrPort("127.0.0.1:0")))
	check(listener.Listen(1))
	served := make(chan struct{})
	go func() {
		defer close(served)
		id, _, err := listener.GetRequest(ctx)
		check(err)
		defer id.Close()
		must(id.CreateQP(nil, attr, rdma.QueueOptions{}))
		shelf := must(id.RegRead([]byte("what is on the shelf")))
		message := binary.BigEndian.AppendUint64(nil, shelf.Address())
		message = binary.BigEndian.AppendUint32(message, shelf.RKey())
		message = binary.BigEndian.AppendUint32(message, uint32(shelf.Len()))
		check(id.Accept(ctx, nil, message))
		fmt.Println(must(id.Event(ctx)).Type) // the client is done
		check(id.Disconnect(ctx))
		check(id.QP().Close())
		check(shelf.Close())
	}()

	id := must(cm.CreateIDOn(backend, rdmacm.PS_TCP))
	defer id.Close()
	check(id.ResolveAddr(ctx, netip.AddrPort{}, listener.LocalAddr(), time.Second))
	check(id.ResolveRoute(ctx, time.Second))
	must(id.CreateQP(nil, attr, rdma.QueueOptions{}))
	answer := must(id.ConnectEvent(ctx, nil, nil))
	address := binary.BigEndian.Uint64(answer.PrivateData)
	rkey := binary.BigEndian.Uint32(answer.PrivateData[8:])
	buffers := must(id.RegMsgs(make([]byte, binary.BigEndian.Uint32(answer.PrivateData[12:]))))
	check(id.PostRead(7, buffers.Bytes(), buffers, 0, address, rkey))
	wc := must(id.GetSendComp(ctx))
	check(rdma.CompletionErr(&wc))
	fmt.Printf("%s\n", buffers.Bytes())
	check(id.Disconnect(ctx))
	<-served
	check(id.QP().Close())
	check(buffers.Close())
	// Output:
	// what is on the shelf
	// RDMA_CM_EVENT_DISCONNECTED
}
