// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// With -R, the connection manager gives the client the server's UD queue pair. If the server sends as well, the client
// announces its own with its first datagram: the QP number is its immediate data, and its GRH has the return path.

// announcementSize is the size of that datagram; its contents are unused.
const announcementSize = 4

// answers reports whether the server sends messages to the client.
func (o *Options) answers() bool { return o.Latency || o.Both }

// joinDatagrams connects the i-th queue pair, which has type UD and belongs to id.
func (r *session) joinDatagrams(ctx context.Context, l *connected, i int, id *cm.ID) error {
	e := r.ends[i]
	param := cm.DefaultConnParam()
	param.QPNum = e.own.QPNum
	if r.o.client() {
		event, err := id.ConnectEvent(ctx, &param, nil)
		if err != nil {
			return err
		}
		e.peer.qpn, e.peer.qkey = event.UD.QPNum, event.UD.QKey
		ah, err := r.pd.CreateAH(&event.UD.AHAttr)
		if e.ah, err = keep(r, ah, err); err != nil || !r.o.answers() {
			return err
		}
		return r.announce(ctx, i)
	}
	if r.o.answers() {
		e.recv.Reset()
		e.recv.Recv(uint64(i)).Add(r.mr.SGE(uint64(r.target(i)), uint32(grh+announcementSize)))
		if _, err := e.qp.PostRecv(e.recv); err != nil {
			return err
		}
	}
	if err := id.Accept(ctx, &param, nil); err != nil || !r.o.answers() {
		return err
	}
	return r.awaitAnnouncement(ctx, i)
}

// announce sends the first datagram.
func (r *session) announce(ctx context.Context, i int) error {
	e := r.ends[i]
	e.batch.Reset()
	e.batch.SendImm(uint64(i), ibv.ToBE32(e.own.QPNum)).Add(r.mr.SGE(uint64(r.source(i)), announcementSize)).
		UD(e.ah.Ptr(), e.peer.qpn, e.peer.qkey).Flags(ibv.SEND_SIGNALED)
	if err := e.batch.Err(); err != nil {
		return err
	}
	if _, err := e.qp.PostSend(e.batch); err != nil {
		return err
	}
	_, err := r.waitOne(ctx, r.sends)
	return err
}

// awaitAnnouncement receives the first datagram. Both ends use the Q_Key of this queue pair.
func (r *session) awaitAnnouncement(ctx context.Context, i int) error {
	wc, err := r.waitOne(ctx, r.recvs)
	if err != nil {
		return fmt.Errorf("first datagram of the client (-R): %w", err)
	}
	if int(wc.WRID) != i || wc.WCFlags&ibv.WC_WITH_IMM == 0 {
		return errors.New("first datagram of the client lacks its address; use the same test on both ends")
	}
	e := r.ends[i]
	attr, _, err := e.qp.Query(ibv.QP_QKEY)
	if err != nil {
		return err
	}
	e.peer.qpn, e.peer.qkey = wc.ImmData().Host()&0xffffff, attr.QKey
	_, header, err := rdma.Datagram(wc, r.buffer.Bytes()[r.target(i):][:grh+announcementSize])
	if err != nil {
		return err
	}
	ah, err := r.pd.CreateAHFromWC(wc, header, r.port)
	e.ah, err = keep(r, ah, err)
	return err
}

// waitOne waits for one completion.
func (r *session) waitOne(ctx context.Context, cq *rdma.CQ) (*ibv.WC, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*stepTimeout)
	defer cancel()
	for {
		n, err := cq.Poll(r.wcs[:1])
		if err == nil && n > 0 {
			err = rdma.CompletionErr(&r.wcs[0])
		}
		if err != nil || n > 0 {
			return &r.wcs[0], err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		time.Sleep(50 * time.Microsecond)
	}
}
