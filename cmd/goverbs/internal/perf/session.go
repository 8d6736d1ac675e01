// SPDX-License-Identifier: BSD-2-Clause

package perf

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
)

// qkey is the Q_Key of perftest's UD queue pairs.
const qkey = 0x11111111

// grh is the number of bytes that a GRH takes in front of a received datagram.
const grh = rdma.GRHBytes

// usualInline is perftest's default inline size for send and write latency tests. Some devices support less.
const usualInline = 220

// unchecked disables the checks of work requests, which would distort the results. perf counts its own work requests.
var unchecked = rdma.QueueOptions{Unchecked: true}

// session holds the RDMA objects of one side of a test.
type session struct {
	o         *Options
	device    *rdma.Device
	port      uint8
	gid       *ibv.GIDEntry // nil: the port has LIDs
	mtu       ibv.MTU       // of the port, or from Options
	pd        *rdma.PD
	channel   *rdma.CompChannel
	sends     *rdma.CQ
	recvs     *rdma.CQ
	buffer    *rdma.Buffer
	mr        *rdma.MR
	area      int // size of one queue pair's send area, and of its receive area, in bytes
	ends      []*end
	wcs       []ibv.WC
	undo      []func() error
	end       context.CancelCauseFunc // ends the test
	isGoverbs bool                    // the peer is goverbs with the same options
}

// end is a queue pair with its work requests and the peer's keys.
type end struct {
	qp      *rdma.QP
	own     rdma.Endpoint
	keys    keys // sent to the peer
	peer    keys
	peerQPN uint32 // QP number in the peer's keys
	ah      *rdma.AH
	batch   *rdma.SendBatch
	recv    *rdma.RecvBatch
	posted  int // in messages
	done    int
}

// open opens the device and selects the port and the GID. setup and newEnds create the other objects, after both sides
// have agreed on terms.
func open(o *Options) (r *session, err error) {
	r = &session{o: o, wcs: make([]ibv.WC, 16)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if r.device, err = rdma.Open(o.Device); err != nil {
		return r, err
	}
	r.undo = append(r.undo, r.device.Close)
	var port *ibv.PortAttr
	if r.port, port, err = r.device.ActivePort(); err != nil {
		return r, err
	}
	r.mtu = port.ActiveMTU
	if o.MTU != 0 {
		if r.mtu = ibvMTU(o.MTU); r.mtu > port.ActiveMTU {
			return r, fmt.Errorf("port %d of %s has MTU %d, less than %d", r.port, r.device.Name(),
				rdma.MTUBytes(port.ActiveMTU), o.MTU)
		}
	}
	switch {
	case o.GIDIndex >= 0:
		if r.gid, err = r.device.GID(r.port, o.GIDIndex); err != nil {
			err = fmt.Errorf("-x %d: %w; list GIDs with goverbs gids", o.GIDIndex, err)
		}
	case port.LinkLayer == ibv.LINK_LAYER_ETHERNET:
		var best ibv.GIDEntry
		best, err = r.device.FindGID(rdma.GIDQuery{Port: r.port})
		r.gid = &best
	}
	return r, err
}

// Close closes all objects, the newest first.
func (r *session) Close() (err error) {
	for i := len(r.undo) - 1; i >= 0; i-- {
		err = errors.Join(err, r.undo[i]())
	}
	r.undo = nil
	return err
}

// keep makes Close close v, unless err is set. It returns v and err.
func keep[T interface{ Close() error }](r *session, v T, err error) (T, error) {
	if err == nil {
		r.undo = append(r.undo, v.Close)
	}
	return v, err
}

// setup creates the protection domain, the completion queues and a registered buffer for the largest message.
func (r *session) setup(t terms) (err error) {
	o, largest := r.o, 0
	for _, n := range o.Sizes {
		largest = max(largest, n)
	}
	r.area = (max(largest, t.cycle)+grh+63)/64*64 + 64
	if total := 2 * int64(r.area) * int64(o.QPs); total > math.MaxInt {
		return fmt.Errorf("%d queue pairs with messages of %d bytes need too much memory, %d bytes",
			o.QPs, largest, total)
	}
	pd, err := r.device.AllocPD()
	if r.pd, err = keep(r, pd, err); err != nil {
		return err
	}
	if o.Events {
		c, err := r.device.CreateCompChannel()
		if r.channel, err = keep(r, c, err); err != nil {
			return err
		}
	}
	cq, err := r.device.CreateCQ(o.TxDepth*o.QPs, r.channel, 0)
	if r.sends, err = keep(r, cq, err); err != nil {
		return err
	}
	cq, err = r.device.CreateCQ(o.RxDepth*o.QPs, r.channel, 0)
	if r.recvs, err = keep(r, cq, err); err != nil {
		return err
	}
	b, err := rdma.NewBuffer(2*r.area*o.QPs, rdma.MapOptions{})
	if r.buffer, err = keep(r, b, err); err != nil {
		return err
	}
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE | ibv.ACCESS_REMOTE_READ
	if o.Verb == "atomic" {
		access |= ibv.ACCESS_REMOTE_ATOMIC
	}
	mr, err := r.pd.RegBuffer(r.buffer, access)
	if r.mr, err = keep(r, mr, err); err != nil {
		return err
	}
	return nil
}

// newEnds creates the queue pairs. If l uses the connection manager, it also connects them.
func (r *session) newEnds(l link) error {
	manager, _ := l.(*connected)
	create := func(attr *ibv.QPInitAttr) (*rdma.QP, error) { return r.pd.CreateQP(attr, unchecked) }
	if manager == nil {
		for i := range r.o.QPs {
			if err := r.newEnd(i, create); err != nil {
				return err
			}
		}
		return nil
	}
	sync := func() error {
		return r.withTimeout(r.o.Silence, func() error {
			_, err := exchangeKeys(l, r.o.client(), &keys{global: true})
			return err
		})
	}
	if err := sync(); err != nil {
		return err
	}
	for i := range r.o.QPs {
		if err := r.withTimeout(r.o.Silence, func() error { return r.newManaged(i, manager) }); err != nil {
			return err
		}
	}
	return sync()
}

// newManaged creates the i-th queue pair and connects it through the connection manager. It retries while the peer is
// not listening.
func (r *session) newManaged(i int, l *connected) error {
	for tries := 10; ; tries-- {
		id, err := l.next()
		if err != nil {
			return err
		}
		kept := len(r.undo)
		r.undo = append(r.undo, id.Close)
		err = r.newEnd(i, func(attr *ibv.QPInitAttr) (*rdma.QP, error) {
			return id.CreateQP(r.pd, attr, unchecked)
		})
		if err == nil {
			err = r.attach(l, i, id)
		}
		if err == nil || tries == 0 || !again(err) {
			return err
		}
		for n := len(r.undo); n > kept; n-- {
			if err := r.undo[n-1](); err != nil {
				return err
			}
			r.undo = r.undo[:n-1]
		}
		r.ends = r.ends[:i]
		time.Sleep(100 * time.Millisecond)
	}
}

// attach connects the i-th queue pair through the connection manager.
func (r *session) attach(l *connected, i int, id *cm.ID) error {
	if r.o.Connection == "UD" {
		return r.joinDatagrams(l.ctx, l, i, id)
	}
	return l.join(id)
}

// inline returns the maximum size of inline messages.
func (o *Options) inline() int {
	switch {
	case o.Inline >= 0:
		return o.Inline
	case o.Latency && (o.Verb == "send" || o.Verb == "write"):
		return usualInline
	}
	return 0
}

// newEnd creates the i-th queue pair.
func (r *session) newEnd(i int, create func(*ibv.QPInitAttr) (*rdma.QP, error)) (err error) {
	o := r.o
	e := &end{}
	attr := &ibv.QPInitAttr{QPType: transports[o.Connection], SendCQ: r.sends.Ptr(), RecvCQ: r.recvs.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: uint32(o.TxDepth), MaxRecvWR: uint32(o.RxDepth), MaxSendSGE: 1, MaxRecvSGE: 1,
			MaxInlineData: uint32(o.inline())}}
	qp, err := create(attr)
	if err != nil && o.Inline < 0 && attr.Cap.MaxInlineData != 0 { // the device may support less
		attr.Cap.MaxInlineData = 0
		qp, err = create(attr)
	}
	if e.qp, err = keep(r, qp, err); err != nil {
		return err
	}
	on := rdma.GIDQuery{Port: r.port}
	if r.gid != nil {
		on.GID, on.Type = &r.gid.GID, &r.gid.GIDType
	}
	if e.own, err = e.qp.EndpointOn(on); err != nil {
		return err
	}
	e.keys = keys{lid: e.own.LID, reads: e.own.ReadAtomic, qpn: e.own.QPNum, psn: e.own.PSN, rkey: r.mr.RKey(),
		address: r.mr.Address() + uint64(r.target(i)), global: r.gid != nil}
	if r.gid != nil {
		e.keys.gid = r.gid.GID
	}
	batch, err := rdma.NewSendBatch(o.List, o.List, 0)
	if e.batch, err = keep(r, batch, err); err != nil {
		return err
	}
	recv, err := rdma.NewRecvBatch(1, 1)
	e.recv, err = keep(r, recv, err)
	r.ends = append(r.ends, e)
	return err
}

// source returns the offset of the memory that the i-th queue pair's requests use, target that of the memory that the
// peer writes and reads.
func (r *session) source(i int) int { return i * r.area }
func (r *session) target(i int) int { return (r.o.QPs + i) * r.area }

// connect connects all queue pairs to the peer's.
func (r *session) connect(t terms) error {
	for _, e := range r.ends {
		peer := rdma.Endpoint{QPNum: e.peer.qpn, PSN: e.peer.psn, GID: e.peer.gid, LID: e.peer.lid, MTU: t.mtu,
			ReadAtomic: max(1, e.peer.reads), QKey: qkey}
		attr, err := e.qp.ConnectAttr(peer)
		if err != nil {
			return err
		}
		if attr.QKey = qkey; e.qp.Type() != ibv.QPT_UD {
			attr.QKey, attr.PathMTU, attr.Timeout = 0, t.mtu, uint8(r.o.Timeout)
			attr.RNRRetry = rdma.RNRRetryInfinite // the peer may be slow to post receives
		}
		if err := e.qp.ConnectWith(attr); err != nil {
			return err
		}
		if e.qp.Type() != ibv.QPT_UD {
			continue
		}
		path, err := e.qp.Path(peer)
		if err != nil {
			return err
		}
		ah, err := r.pd.CreateAH(&path)
		if e.ah, err = keep(r, ah, err); err != nil {
			return err
		}
	}
	return nil
}

// setRequests rebuilds the send and receive requests of all queue pairs for messages of size bytes, and resets their
// counters.
func (r *session) setRequests(size int) error {
	o := r.o
	for i, e := range r.ends {
		e.posted, e.done = 0, 0
		e.batch.Reset()
		for range o.List {
			var w rdma.SendRequest
			id, remote, rkey := uint64(i), e.peer.address, e.peer.rkey
			switch o.Verb {
			case "send":
				w = e.batch.Send(id)
			case "write":
				w = e.batch.Write(id, remote, rkey)
			case "read":
				w = e.batch.Read(id, remote, rkey)
			case "atomic":
				w = e.batch.FetchAdd(id, remote, rkey, 1)
			}
			w = w.Add(r.mr.SGE(uint64(r.source(i)), uint32(size)))
			if e.ah != nil {
				w = w.UD(e.ah.Ptr(), e.peer.qpn, e.peer.qkey)
			}
			if (o.Verb == "send" || o.Verb == "write") && size <= min(o.inline(), int(e.qp.Cap().MaxInlineData)) {
				w.Flags(ibv.SEND_INLINE)
			}
		}
		if err := e.batch.Err(); err != nil {
			return err
		}
		e.recv.Reset()
		// A message of the next size may consume a receive posted now, so each has room for the largest.
		e.recv.Recv(uint64(i)).Add(r.mr.SGE(uint64(r.target(i)), uint32(r.area)))
	}
	return nil
}

// postReceives posts receives until each queue pair has RxDepth. have[i] is the number posted on the i-th.
func (r *session) postReceives(have []int) error {
	for i, e := range r.ends {
		for ; have[i] < r.o.RxDepth; have[i]++ {
			if _, err := e.qp.PostRecv(e.recv); err != nil {
				return err
			}
		}
	}
	return nil
}
