// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// engine has the objects that the transfers of one end share: a protection domain, a completion queue and a pool of memory.
type engine struct {
	device *rdma.Device
	pd     *rdma.PD
	notify *rdma.CompChannel
	cq     *rdma.CQ
	calls  *rdma.Calls
	pool   pool
}

// perLink is the room for completions of a link: one send and one receive, which devices may round up.
const perLink = 4

// newEngine creates the objects for a number of transfers at once.
func newEngine(device *rdma.Device, transfers int, keep int64) (*engine, error) {
	if device == nil {
		return nil, errors.New("s3rdma: Options.Device is nil; open one with rdma.Open")
	}
	e := &engine{device: device, pool: pool{keep: keep}}
	if err := e.open(transfers * perLink); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *engine) open(completions int) (err error) {
	if e.pd, err = e.device.AllocPD(); err != nil {
		return err
	}
	if e.notify, err = e.device.CreateCompChannel(); err != nil {
		return err
	}
	if e.cq, err = e.device.CreateCQ(completions, e.notify, 0); err != nil {
		return err
	}
	e.calls, err = rdma.NewCalls(e.cq, completions, nil)
	return err
}

// close closes everything. It fails while there are links.
func (e *engine) close() error {
	errs := []error{e.pool.close()}
	if e.calls != nil {
		errs = append(errs, e.calls.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.notify != nil {
		errs = append(errs, e.notify.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	return errors.Join(errs...)
}

// link is a queue pair and registered memory for one transfer. The peer can use the memory until close.
type link struct {
	engine     *engine
	qp         *rdma.QP
	mr         *rdma.MR
	psn        uint32
	recv, send rdma.Call
	recvs      *rdma.RecvBatch
	sends      *rdma.SendBatch
}

// newLink creates a queue pair and registers the first size bytes of memory, for a peer that writes if writable. The
// peer can never read.
func (e *engine) newLink(memory *rdma.Buffer, size int, writable bool) (*link, error) {
	l := &link{engine: e, psn: random(24)}
	if err := l.open(memory, size, writable); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) open(memory *rdma.Buffer, size int, writable bool) (err error) {
	e := l.engine
	if l.qp, err = e.device.NewRC(rdma.QPParts{PD: e.pd, CQ: e.cq,
		Cap: ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}); err != nil {
		return err
	}
	var access ibv.AccessFlags
	if writable {
		access = ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE
	}
	// By address: the pool's buffers are larger than the payload, and the peer gets only the payload.
	l.mr, err = e.pd.RegAddress(uintptr(memory.Address()), uint64(size), memory.Address(), access)
	return err
}

// token returns the identity of the link for the peer.
func (l *link) token() (token, error) {
	own, err := l.qp.Endpoint()
	if err != nil {
		return token{}, err
	}
	return token{transport: transportRC, qpn: own.QPNum, gid: own.GID, lid: own.LID, port: 1,
		rkey: l.mr.RKey(), address: l.mr.Address(), length: l.mr.Len()}, nil
}

func (l *link) key() memoryKey { return memoryKey{l.qp.Num(), l.mr.Address(), l.mr.RKey()} }

// connect connects to a queue pair of the device that the token describes. A zero token means this device.
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

// expect posts the receive that the peer's write consumes.
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

// arrived waits for the peer's write, and checks its size and cookie.
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
		return fmt.Errorf("s3rdma: peer wrote %d bytes of %d", wc.ByteLen, size)
	}
	return nil
}

var errCookie = errors.New("s3rdma: peer wrote a wrong cookie")

// write posts a write of all of the memory to the peer's.
func (l *link) write(to memoryKey, cookie uint32) (err error) {
	if l.sends, err = rdma.NewSendBatch(1, 1, 0); err != nil {
		return err
	}
	if l.send, err = l.engine.calls.Begin(); err != nil {
		return err
	}
	l.sends.WriteImm(l.send.ID(), to.address, to.rkey, ibv.ToBE32(cookie)).
		Add(l.mr.SGE(0, uint32(l.mr.Len()))).Signaled()
	if _, err = l.qp.PostSend(l.sends); err != nil {
		l.send.Cancel()
	}
	return err
}

// written waits for the peer's acknowledgement of the write.
func (l *link) written(ctx context.Context) error {
	wc, err := l.send.Wait(ctx)
	if err != nil {
		return err
	}
	return rdma.CompletionErr(&wc)
}

// close ends the transfer. After it, neither the peer nor the device uses the memory.
func (l *link) close() error {
	var errs []error
	if l.qp != nil {
		errs = append(errs, l.qp.Close())
	}
	if l.mr != nil {
		errs = append(errs, l.mr.Close())
	}
	// The queue pair is closed, so both calls have ended: with a completion that has to be polled, or without one.
	for _, call := range []rdma.Call{l.recv, l.send} {
		call.Wait(context.Background())
	}
	if l.recvs != nil {
		errs = append(errs, l.recvs.Close())
	}
	if l.sends != nil {
		errs = append(errs, l.sends.Close())
	}
	return errors.Join(errs...)
}

// pool keeps buffers for reuse, by size class. The sizes are powers of two.
type pool struct {
	keep int64 // bytes to keep idle

	mu   sync.Mutex
	idle [33][]*rdma.Buffer
	held int64
	over bool
}

// minBuffer is the logarithm of the smallest size.
const minBuffer = 12

func class(size int) int { return max(minBuffer, bits.Len(uint(size-1))) }

// get returns a buffer of at least size bytes. Its content is arbitrary.
func (p *pool) get(size int) (*rdma.Buffer, error) {
	c := class(size)
	p.mu.Lock()
	if n := len(p.idle[c]); n > 0 {
		b := p.idle[c][n-1]
		p.idle[c] = p.idle[c][:n-1]
		p.held -= int64(b.Len())
		p.mu.Unlock()
		return b, nil
	}
	p.mu.Unlock()
	return rdma.NewBuffer(1<<c, rdma.MapOptions{})
}

// put returns a buffer that has no memory region.
func (p *pool) put(b *rdma.Buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || p.held+int64(b.Len()) > p.keep {
		b.Close()
		return
	}
	p.held += int64(b.Len())
	c := class(b.Len())
	p.idle[c] = append(p.idle[c], b)
}

func (p *pool) close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	for c, all := range p.idle {
		for _, b := range all {
			err = errors.Join(err, b.Close())
		}
		p.idle[c] = nil
	}
	return err
}
