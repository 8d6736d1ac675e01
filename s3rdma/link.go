// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// link is a queue pair and registered memory for one transfer. The peer can access the memory until close.
type link struct {
	engine     *engine
	memory     *rdma.Buffer
	qp         *rdma.QP
	mr         *rdma.MR
	psn        uint32
	recv, send rdma.Call
	recvs      *rdma.RecvBatch
	dynamic    *dynamic // set for dynamic connections
	sends      *rdma.SendBatch

	closed bool
	err    error // result of close
}

// newLink creates a queue pair and registers the first size bytes of memory. If writable, the peer may write to them.
// It may never read them.
func (e *engine) newLink(memory *rdma.Buffer, size int, writable bool) (*link, error) {
	l, err := e.newQueuePair(random(24))
	if err != nil {
		return nil, err
	}
	var access ibv.AccessFlags
	if writable {
		access = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE
	}
	if err := l.register(memory, size, access); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// newQueuePair creates a link without memory. psn is the sequence number of its first packet.
func (e *engine) newQueuePair(psn uint32) (*link, error) {
	qp, err := e.device.NewRC(rdma.QPParts{PD: e.pd, CQ: e.cq,
		Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return nil, err
	}
	return &link{engine: e, qp: qp, psn: psn}, nil
}

// register registers the first size bytes of memory.
func (l *link) register(memory *rdma.Buffer, size int, access ibv.AccessFlags) (err error) {
	// Register by address: the pool's buffers are larger than the payload, and the peer may only access the payload.
	l.mr, err = l.engine.pd.RegAddress(uintptr(memory.Address()), uint64(size), memory.Address(), access)
	l.memory = memory
	return err
}

// unregister ends the peer's access to the memory, so that the link can be used with other memory. If it fails, it
// closes the link. The link's request has completed.
func (l *link) unregister() error {
	if err := l.engine.destroy(l.mr); err != nil {
		return errors.Join(err, l.close())
	}
	l.mr, l.memory = nil, nil
	return l.dynamic.closePath()
}

// token returns the token that identifies the link to the peer.
func (l *link) token() (token, error) {
	own, err := l.qp.Endpoint()
	if err != nil {
		return token{}, err
	}
	t := token{transport: transportRC, qpn: own.QPNum, gid: own.GID, lid: own.LID, port: 1}
	if l.dynamic != nil {
		t.transport = transportDC
	}
	if l.mr != nil {
		t.rkey, t.address, t.length = l.mr.RKey(), l.mr.Address(), l.mr.Len()
	}
	return t, nil
}

func (l *link) key() memoryKey { return memoryKey{l.qp.Num(), l.mr.Address(), l.mr.RKey()} }

// connect connects to a queue pair on the device that peer describes. A zero token means this device.
func (l *link) connect(peer token, qpn, psn uint32) error {
	own, err := l.qp.Endpoint()
	if err != nil {
		return err
	}
	if peer == (token{}) {
		peer.gid, peer.lid = own.GID, own.LID
	}
	attr, err := l.qp.ConnectAttr(rdma.Endpoint{QPNum: qpn, PSN: psn, GID: peer.gid, LID: peer.lid})
	if err != nil {
		return err
	}
	attr.SQPSN = l.psn
	attr.MaxRdAtomic, attr.MaxDestRdAtomic = 1, 1
	return l.qp.ConnectWith(attr)
}

// expect posts a receive for the peer's write with immediate data.
func (l *link) expect() (err error) {
	if l.recvs, err = rdma.NewRecvBatch(1, 1); err != nil {
		return err
	}
	if l.recv, err = l.engine.calls.Begin(); err != nil {
		return err
	}
	l.recvs.Recv(l.recv.ID())
	if _, err = l.qp.PostRecv(l.recvs); err != nil {
		l.recv.Cancel()
	}
	return err
}

// arrived waits for the peer's write and checks its size and cookie.
func (l *link) arrived(ctx context.Context, cookie uint32, size int) error {
	wc, err := l.recv.Wait(ctx)
	if err != nil {
		return err
	}
	if err := rdma.CompletionErr(&wc); err != nil {
		return err
	}
	if wc.WCFlags&ibv.WC_WITH_IMM == 0 || wc.ImmData().Host() != cookie {
		return errCookie
	}
	if int(wc.ByteLen) != size {
		return fmt.Errorf("s3rdma: peer wrote %d of %d bytes", wc.ByteLen, size)
	}
	return nil
}

var errCookie = errors.New("s3rdma: peer wrote a wrong cookie")

// write posts a write of all of the memory to the peer's memory.
func (l *link) write(to memoryKey, cookie uint32) error {
	return l.post(l.mr.SGE(0, uint32(l.mr.Len())), func(b *rdma.SendBatch, id uint64) rdma.SendRequest {
		return b.WriteImm(id, to.address, to.rkey, ibv.ToBE32(cookie))
	})
}

// post posts a request for a part of the memory. Its earlier requests have completed.
func (l *link) post(sge ibv.SGE, request func(b *rdma.SendBatch, id uint64) rdma.SendRequest) (err error) {
	if l.sends == nil {
		if l.sends, err = rdma.NewSendBatch(1, 1, 0); err != nil {
			return err
		}
	}
	l.sends.Reset()
	if l.send, err = l.engine.calls.Begin(); err != nil {
		return err
	}
	request(l.sends, l.send.ID()).Add(sge).Signaled()
	if _, err = l.qp.PostSend(l.sends); err != nil {
		l.send.Cancel()
	}
	return err
}

// written waits for the request's completion, which for a write means that the peer's device has acknowledged it.
func (l *link) written(ctx context.Context) error {
	wc, err := l.send.Wait(ctx)
	if err != nil {
		return err
	}
	return rdma.CompletionErr(&wc)
}

// closeTimeout limits the wait for completions after the queue pair is closed.
const closeTimeout = time.Second

// close ends the transfer. Repeated calls return the same result. If it succeeds, neither the peer nor the device uses
// the memory any more. If it fails, they may, and the engine prevents the memory from being reused.
func (l *link) close() error {
	if !l.closed {
		l.closed = true
		if l.err = l.release(); l.err != nil {
			l.engine.strand(l)
		}
	}
	return l.err
}

// release closes all objects that are still open. If it fails, it can be called again.
func (l *link) release() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.engine.destroy(l.qp))
	}
	if l.mr != nil {
		errs = append(errs, l.engine.destroy(l.mr))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("s3rdma: end transfer: %w", err)
	}
	// The queue pair is closed, so both calls have ended, and their completions, if any, can be polled.
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	for _, call := range []rdma.Call{l.recv, l.send} {
		_, err := call.Wait(ctx)
		if err != nil && !errors.Is(err, rdma.ErrNoCompletion) && !errors.Is(err, rdma.ErrClosed) {
			return fmt.Errorf("s3rdma: end transfer: %w", err)
		}
	}
	errs = append(errs, l.dynamic.close())
	if l.recvs != nil {
		errs = append(errs, l.recvs.Close())
	}
	if l.sends != nil {
		errs = append(errs, l.sends.Close())
	}
	return errors.Join(errs...)
}
