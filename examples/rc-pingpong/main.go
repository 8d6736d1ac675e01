// SPDX-License-Identifier: BSD-2-Clause

// Command rc-pingpong sends a message back and forth over a reliable connection and prints the latency:
//
//	rc-pingpong -device rxe0            both ends, in this process
//	rc-pingpong -device rxe0 -listen    one end
//	rc-pingpong -device rxe0 HOST       the other end
//
// Without an adapter and without root, between two processes of one machine, or of two machines with their addresses:
//
//	rc-pingpong -device soft@127.0.0.2 -listen
//	rc-pingpong -device soft@127.0.0.3 127.0.0.1
//
// Either end can be rdma-core's ibv_rc_pingpong, with -g and the index of a GID. With -uc, the connection is
// unreliable, and either end can be ibv_uc_pingpong.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"time"

	"github.com/goverbs/goverbs/examples/internal/pingpong"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func main() {
	pingpong.Main("rc-pingpong", 4096, end, func(set *flag.FlagSet) {
		set.BoolVar(&unreliable, "uc", false, "use an unreliable connection, which does not retransmit lost messages")
	})
}

// unreliable is the flag -uc.
var unreliable bool

// wr_ids of the work requests, which completions return.
const (
	received = 1 << iota
	sent
)

// end runs one end of the connection.
func end(o *pingpong.Options, link *pingpong.Link) error {
	device, err := rdma.Open(o.Device)
	if err != nil {
		return err
	}
	defer device.Close()
	create := device.NewRC
	if unreliable {
		create = device.NewUC
	}
	qp, err := create(rdma.QPParts{
		Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: uint32(o.Depth), MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	defer qp.Close() // also closes its completion queue and its memory region
	// The first half of the memory holds sent data, the second half received data.
	mr, err := qp.RegMR(make([]byte, 2*o.Size), ibv.ACCESS_LOCAL_WRITE)
	if err != nil {
		return err
	}
	p := &player{o: o, link: link, cq: qp.SendCQ(), qp: qp, wcs: make([]ibv.WC, 2)}
	p.out, p.in = mr.Bytes()[:o.Size], mr.Bytes()[o.Size:]

	// Work requests are written once and posted repeatedly.
	size := uint32(o.Size)
	if p.sends, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return err
	}
	defer p.sends.Close()
	p.sends.Send(sent).Add(mr.SGE(0, size)).Signaled()
	if p.recvs, err = rdma.NewRecvBatch(o.Depth, 1); err != nil {
		return err
	}
	defer p.recvs.Close()
	for range o.Depth {
		p.recvs.Recv(received).Add(mr.SGE(uint64(size), size))
	}

	own, err := qp.Endpoint()
	if err != nil {
		return err
	}
	err = link.Exchange(own, func(peer rdma.Endpoint) error {
		attr, err := qp.ConnectAttr(peer)
		if err != nil {
			return err
		}
		attr.PathMTU = min(attr.PathMTU, ibv.MTU_1024) // ibv_rc_pingpong has the same limit
		if err = qp.ConnectWith(attr); err != nil {
			return err
		}
		return p.receive() // before the peer sends
	})
	if err != nil {
		return err
	}
	return p.play()
}

// player sends a message whenever one has arrived and its previous send has completed.
type player struct {
	o       *pingpong.Options
	link    *pingpong.Link
	cq      *rdma.CQ
	qp      *rdma.QP
	sends   *rdma.SendBatch
	recvs   *rdma.RecvBatch
	wcs     []ibv.WC
	out, in []byte
	posted  int // number of posted receives
	n       int // number of sent messages
}

func (p *player) play() error {
	ctx := context.Background()
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
				if err := p.arrived(); err != nil {
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

// arrived handles an incoming message.
func (p *player) arrived() error {
	if p.o.Check {
		if p.link.Client && !bytes.Equal(p.in, p.out) {
			return errors.New("the returned message differs from the sent one")
		}
		copy(p.out, p.in) // the called end returns the message
		if err := pingpong.Check(p.in); err != nil {
			return err
		}
	}
	if p.posted--; p.posted > p.o.Depth/2 {
		return nil
	}
	return p.receive()
}
