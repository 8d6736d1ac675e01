// SPDX-License-Identifier: BSD-2-Clause

// Command srq-server serves many clients with one completion queue and one shared receive queue:
//
//	srq-server -device rxe0            server and clients, in this process
//	srq-server -device rxe0 -listen    the server
//	srq-server -device rxe0 HOST       the clients
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/examples/internal/meet"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func main() { meet.Main("srq-server", serve, call) }

const (
	clients  = 8
	requests = 50 // per client
	size     = 64 // bytes of a message
	buffers  = 16 // of the server, shared by all clients
	timeout  = 30 * time.Second
)

// server has a queue pair for each client. The wr_id of a work request is the number of its buffer; sends also set
// isSend.
type server struct {
	cq      *rdma.CQ
	srq     *rdma.SRQ
	mr      *rdma.MR
	qps     map[uint32]*rdma.QP // by queue pair number, as in completions
	receive *rdma.RecvBatch
	answer  *rdma.SendBatch
}

const isSend = 1 << 32

func serve(name string, peer *meet.Peer) error {
	device, err := rdma.Open(name)
	if err != nil {
		return err
	}
	defer device.Close()
	pd, err := device.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	channel, err := device.CreateCompChannel()
	if err != nil {
		return err
	}
	defer channel.Close()
	// A buffer is either in the shared receive queue or in a reply, so a queue pair has at most as many sends as there
	// are buffers.
	cq, err := device.CreateCQ(buffers+clients*buffers, channel, 0)
	if err != nil {
		return err
	}
	defer cq.Close()
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: buffers, MaxSGE: 1}, rdma.QueueOptions{})
	if err != nil {
		return err
	}
	defer srq.Close()
	mr, err := pd.RegMR(make([]byte, buffers*size), ibv.ACCESS_LOCAL_WRITE)
	if err != nil {
		return err
	}
	defer mr.Close()
	s := &server{cq: cq, srq: srq, mr: mr, qps: map[uint32]*rdma.QP{}}
	if s.answer, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return err
	}
	defer s.answer.Close()
	if s.receive, err = rdma.NewRecvBatch(1, 1); err != nil {
		return err
	}
	defer s.receive.Close()
	for i := range uint64(buffers) {
		if err = s.post(i); err != nil {
			return err
		}
	}
	for range clients {
		qp, err := device.NewRC(rdma.QPParts{PD: pd, CQ: cq, SRQ: srq,
			Cap: ibv.QPCap{MaxSendWR: buffers, MaxSendSGE: 1}})
		if err != nil {
			return err
		}
		defer qp.Close()
		s.qps[qp.Num()] = qp
		own, err := qp.Endpoint()
		if err != nil {
			return err
		}
		client, err := meet.Exchange(peer, own)
		if err != nil {
			return err
		}
		if err = qp.Connect(client); err != nil {
			return err
		}
	}
	if err = peer.Send("ready"); err != nil {
		return err
	}
	if err = s.serve(clients * requests); err != nil {
		return err
	}
	fmt.Printf("answered %d requests of %d clients with %d buffers\n", clients*requests, clients, buffers)
	var done string
	return peer.Receive(&done)
}

// serve answers requests until the given number of replies was delivered.
func (s *server) serve(requests int) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	wcs := make([]ibv.WC, 2*buffers)
	for answered := 0; answered < requests; {
		n, err := s.cq.Wait(ctx, wcs)
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			wc := &wcs[i]
			if err = rdma.CompletionErr(wc); err != nil {
				return err
			}
			if wc.WRID&isSend == 0 {
				err = s.reply(wc)
			} else { // the reply was delivered: its buffer can receive a request of any client
				answered++
				err = s.post(wc.WRID &^ isSend)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// post posts a buffer to the shared receive queue.
func (s *server) post(buffer uint64) error {
	s.receive.Reset()
	s.receive.Recv(buffer).Add(s.mr.SGE(buffer*size, size))
	_, err := s.srq.PostRecv(s.receive)
	return err
}

// reply sends a received message back to its sender in upper case.
func (s *server) reply(wc *ibv.WC) error {
	message := s.mr.Bytes()[wc.WRID*size:][:wc.ByteLen]
	for i, c := range message {
		if 'a' <= c && c <= 'z' {
			message[i] = c - 'a' + 'A'
		}
	}
	s.answer.Reset()
	s.answer.Send(wc.WRID | isSend).Add(s.mr.SGE(wc.WRID*size, wc.ByteLen)).Signaled()
	_, err := s.qps[wc.QPNum].PostSend(s.answer)
	return err
}

// call runs all clients, each with its own goroutine and queue pair.
func call(name string, peer *meet.Peer) error {
	device, err := rdma.Open(name)
	if err != nil {
		return err
	}
	defer device.Close()
	var all []*client
	for i := range clients {
		c := &client{name: fmt.Sprintf("client %d", i)}
		defer c.close()
		if err := c.open(device); err != nil {
			return err
		}
		own, err := c.qp.Endpoint()
		if err != nil {
			return err
		}
		server, err := meet.Exchange(peer, own)
		if err != nil {
			return err
		}
		if err = c.qp.Connect(server); err != nil {
			return err
		}
		all = append(all, c)
	}
	var ready string
	if err = peer.Receive(&ready); err != nil {
		return err
	}
	ended := make(chan error, clients)
	for _, c := range all {
		go func() { ended <- c.run() }()
	}
	for range all {
		err = errors.Join(err, <-ended)
	}
	return errors.Join(err, peer.Send("done"))
}

// client sends requests and waits for the replies.
type client struct {
	name    string
	qp      *rdma.QP // with its own completion queue
	mr      *rdma.MR
	request *rdma.SendBatch
	answer  *rdma.RecvBatch
}

func (c *client) open(device *rdma.Device) (err error) {
	c.qp, err = device.NewRC(rdma.QPParts{Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return err
	}
	if c.mr, err = c.qp.RegMR(make([]byte, 2*size), ibv.ACCESS_LOCAL_WRITE); err != nil {
		return err
	}
	if c.request, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return err
	}
	c.answer, err = rdma.NewRecvBatch(1, 1)
	return err
}

func (c *client) close() {
	if c.qp != nil {
		c.qp.Close()
	}
	if c.request != nil {
		c.request.Close()
	}
	if c.answer != nil {
		c.answer.Close()
	}
}

func (c *client) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c.answer.Recv(0).Add(c.mr.SGE(size, size))
	for i := range requests {
		text := fmt.Sprintf("%s, request %d", c.name, i)
		copy(c.mr.Bytes(), text)
		if _, err := c.qp.PostRecv(c.answer); err != nil {
			return err
		}
		c.request.Reset()
		c.request.Send(1).Add(c.mr.SGE(0, uint32(len(text)))).Signaled()
		if _, err := c.qp.PostSend(c.request); err != nil {
			return err
		}
		done := 0 // counts the completions of the send and of the reply
		for wc, err := range c.qp.SendCQ().All(ctx) {
			if err == nil {
				err = rdma.CompletionErr(&wc)
			}
			if err != nil {
				return err
			}
			if done++; done == 2 {
				break
			}
		}
		want := fmt.Sprintf("CLIENT%s, REQUEST %d", c.name[len("client"):], i)
		if got := string(c.mr.Bytes()[size:][:len(text)]); got != want {
			return fmt.Errorf("%s: got reply %q, want %q", c.name, got, want)
		}
	}
	return nil
}
