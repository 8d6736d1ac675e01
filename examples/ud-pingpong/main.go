// SPDX-License-Identifier: BSD-2-Clause

// Command ud-pingpong sends a datagram back and forth and prints the latency:
//
//	ud-pingpong -device rxe0            both ends, in this process
//	ud-pingpong -device rxe0 -listen    one end
//	ud-pingpong -device rxe0 HOST       the other end
//
// Either end can be rdma-core's ibv_ud_pingpong, with -g and the index of a GID. If a datagram is lost, the program
// times out.
package main

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/goverbs/goverbs/examples/internal/pingpong"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func main() { pingpong.Main("ud-pingpong", 1024, end) }

// wr_ids of the work requests, which completions return.
const (
	received = 1 << iota
	sent
)

// end runs one end.
func end(o *pingpong.Options, link *pingpong.Link) error {
	device, err := rdma.Open(o.Device)
	if err != nil {
		return err
	}
	defer device.Close()
	qp, err := device.NewUD(rdma.QPParts{
		Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: uint32(o.Depth), MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	defer qp.Close() // also closes its completion queue and its memory region
	// The first part of the memory holds sent data. The second part holds received data, with the header in front of
	// it.
	mr, err := qp.RegMR(make([]byte, o.Size+rdma.GRHBytes+o.Size), ibv.ACCESS_LOCAL_WRITE)
	if err != nil {
		return err
	}
	p := &player{o: o, link: link, cq: qp.SendCQ(), qp: qp, wcs: make([]ibv.WC, 2)}
	p.out, p.in = mr.Bytes()[:o.Size], mr.Bytes()[o.Size:]
	defer p.forget()

	size := uint32(o.Size)
	p.message = mr.SGE(0, size)
	if p.sends, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return err
	}
	defer p.sends.Close()
	if p.recvs, err = rdma.NewRecvBatch(o.Depth, 1); err != nil {
		return err
	}
	defer p.recvs.Close()
	for range o.Depth {
		p.recvs.Recv(received).Add(mr.SGE(uint64(size), uint32(rdma.GRHBytes)+size))
	}
	if err = p.receive(); err != nil {
		return err
	}
	own, err := qp.Endpoint()
	if err != nil {
		return err
	}
	err = link.Exchange(own, func(peer rdma.Endpoint) error {
		if !link.Client {
			return nil // the first datagram contains the peer's address
		}
		path, err := qp.Path(peer)
		if err != nil {
			return err
		}
		if p.ah, err = qp.PD().CreateAH(&path); err != nil {
			return err
		}
		p.address(peer.QPNum)
		return nil
	})
	if err != nil {
		return err
	}
	return p.play()
}

// player sends a datagram whenever one has arrived and its previous send has completed.
type player struct {
	o       *pingpong.Options
	link    *pingpong.Link
	cq      *rdma.CQ
	qp      *rdma.QP
	ah      *rdma.AH // of the other end
	message ibv.SGE
	sends   *rdma.SendBatch
	recvs   *rdma.RecvBatch
	wcs     []ibv.WC
	out, in []byte
	posted  int // number of posted receives
	n       int // number of sent messages
}

func (p *player) play() error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	wait := p.o.Wait(p.cq)
	took := make([]time.Duration, 0, p.o.Iters)
	pending := received
	if p.link.Client {
		if err := p.send(); err != nil {
			return err
		}
		pending |= sent
	}
	start, began := time.Now(), time.Duration(0)
	for sends, receives := 0, 0; sends < p.o.Iters || receives < p.o.Iters; {
		n, err := wait(ctx, p.wcs)
		if err != nil {
			return err
		}
		for i := range p.wcs[:n] {
			wc := &p.wcs[i]
			if err := rdma.CompletionErr(wc); err != nil {
				return err
			}
			switch pending &^= int(wc.WRID); wc.WRID {
			case sent:
				sends++
			case received:
				receives++
				if err := p.arrived(wc); err != nil {
					return err
				}
			}
			if pending != 0 {
				continue
			}
			now := time.Since(start)
			took = append(took, now-began)
			began = now
			if sends < p.o.Iters {
				if err := p.send(); err != nil {
					return err
				}
				pending = received | sent
			}
		}
	}
	p.o.Report(p.link, took)
	return nil
}

// send sends a message.
func (p *player) send() error {
	if p.o.Check && p.link.Client {
		pingpong.Fill(p.out, p.n)
	}
	p.n++
	_, err := p.qp.PostSend(p.sends)
	return err
}

// receive posts receives up to the depth.
func (p *player) receive() error {
	n, err := p.qp.RecvQueue().PostRange(p.recvs, 0, p.o.Depth-p.posted)
	p.posted += n
	return err
}

// arrived handles an incoming datagram.
func (p *player) arrived(wc *ibv.WC) error {
	payload, grh, err := rdma.Datagram(wc, p.in)
	if err != nil {
		return err
	}
	if p.ah == nil {
		if grh == nil {
			return errors.New("the datagram has no header with the sender's address")
		}
		if p.ah, err = p.qp.PD().CreateAHFromWC(wc, grh, port); err != nil {
			return err
		}
		p.address(wc.SrcQP)
	}
	if p.o.Check {
		if p.link.Client && !bytes.Equal(payload, p.out) {
			return errors.New("the returned message differs from the sent one")
		}
		copy(p.out, payload) // the called end returns the message
		if err := pingpong.Check(payload); err != nil {
			return err
		}
	}
	if p.posted--; p.posted > p.o.Depth/2 {
		return nil
	}
	return p.receive()
}

// address sets the destination of the send request.
func (p *player) address(qpNum uint32) {
	p.sends.Send(sent).Add(p.message).Signaled().UD(p.ah.Ptr(), qpNum, rdma.DefaultQKey)
}

// forget closes the address handle.
func (p *player) forget() {
	if p.ah != nil {
		p.ah.Close()
	}
}

const (
	port    = 1
	timeout = time.Minute
)
