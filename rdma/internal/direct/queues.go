// SPDX-License-Identifier: BSD-2-Clause

// Package direct is the data path of mlx5 in Go. It writes work requests to the queues that the device reads, and reads
// completions that the device writes, without calling C. libmlx5 creates the queues, and mlx5dv_init_obj returns their
// addresses. After that, libmlx5 must neither post nor poll: two writers of a queue would overwrite each other's
// requests. For package native, queues are created without libmlx5.
//
// Numbers in queues are in network order. The formats are those of mlx5dv.h, in generated/mlx5dv.
package direct

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
)

// Queues is the data path of a device. It creates a path for each queue.
type Queues struct {
	refusing
	initObj   InitObj
	blueFlame blueFlame
	atomics   bool // the device supports atomic operations
	// mu is held while a queue pair is created or destroyed, because a new one may reuse the number of a destroyed one.
	mu   sync.Mutex
	cqs  map[*ibv.CQ]*completionQueue
	srqs map[*ibv.SRQ]*sharedQueue
	qps  map[*ibv.QP]*queuePair // only queue pairs of package native
	inC  map[uintptr]bool       // doorbell registers of C's queue pairs; guarded by registerTable.mu
}

var _ datapath.Maker = (*Queues)(nil)

// InitObj is the function mlx5dv_init_obj.
type InitObj func(*mlx5dv.Obj, mlx5dv.ObjType) error

// New returns the data path of an mlx5 device. init is nil for package native, which calls NewCQ, NewSRQ and NewQP. env
// looks up the environment variables that libmlx5 read when it opened the device. atomics reports whether the device
// supports atomic operations.
func New(init InitObj, env func(string) (value string, set bool), atomics bool) *Queues {
	return &Queues{initObj: init, blueFlame: blueFlameOf(env), atomics: atomics, cqs: map[*ibv.CQ]*completionQueue{},
		srqs: map[*ibv.SRQ]*sharedQueue{}, qps: map[*ibv.QP]*queuePair{}, inC: map[uintptr]bool{}}
}

// CQ returns the path of a completion queue.
func (d *Queues) CQ(c *ibv.CQ) (datapath.Queue, error) {
	if d.initObj == nil {
		return lent(d, d.cqs, c, func(q *completionQueue) datapath.Queue { return lentCQ{q} })
	}
	out := new(mlx5dv.CQ)
	obj := &mlx5dv.Obj{CQ: mlx5dv.ObjCQ{In: ibv.PtrTo(c), Out: ibv.PtrTo(out)}}
	if err := d.initObj(obj, mlx5dv.OBJ_CQ); err != nil {
		return nil, err
	}
	return d.NewCQ(c, out), nil
}

// NewCQ returns the path of a completion queue. out is the result of mlx5dv_init_obj.
func (d *Queues) NewCQ(c *ibv.CQ, out *mlx5dv.CQ) datapath.Queue {
	q := newCompletionQueue(d, c, out)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs[c] = q
	return q
}

// SRQ returns the path of a shared receive queue. It rejects XRC and tag matching, because mlx5dv_init_obj does not
// return the index by which completions name such a queue.
func (d *Queues) SRQ(c *ibv.SRQ, kind ibv.SRQType, cap ibv.SRQAttr) (datapath.Queue, error) {
	if kind != ibv.SRQT_BASIC {
		return nil, unable("ibv_create_srq_ex", "the data path in Go supports only basic shared receive queues")
	}
	if d.initObj == nil {
		return lent(d, d.srqs, c, func(q *sharedQueue) datapath.Queue { return lentSRQ{q} })
	}
	out := new(mlx5dv.SRQ)
	obj := &mlx5dv.Obj{SRQ: mlx5dv.ObjSRQ{In: ibv.PtrTo(c), Out: ibv.PtrTo(out)}}
	if err := d.initObj(obj, mlx5dv.OBJ_SRQ); err != nil {
		return nil, err
	}
	return d.NewSRQ(c, out, cap), nil
}

// NewSRQ is NewCQ for a shared receive queue.
func (d *Queues) NewSRQ(c *ibv.SRQ, out *mlx5dv.SRQ, cap ibv.SRQAttr) datapath.Queue {
	q := newSharedQueue(d, c, out, cap.MaxSGE)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.srqs[c] = q
	return q
}

// NewXRC is NewSRQ for a queue of an XRC domain. Its receives complete in cq, and completions name it by index.
func (d *Queues) NewXRC(c *ibv.SRQ, out *mlx5dv.SRQ, cap ibv.SRQAttr, cq *ibv.CQ, index uint32) (datapath.Queue,
	error) {
	q := newSharedQueue(d, c, out, cap.MaxSGE)
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.cq, q.index = d.cqs[cq], index; q.cq == nil {
		return nil, unable("ibv_create_srq_ex", "the completion queue has a different data path")
	}
	q.cq.target(q)
	d.srqs[c] = q
	return q, nil
}

// QP returns the path of a queue pair. cap contains the capacities that ibv_create_qp has returned.
func (d *Queues) QP(c *ibv.QP, cap ibv.QPCap, everyOne bool, flags ibv.QPCreateFlags) (datapath.Queue, error) {
	if c.QPType == ibv.QPT_RAW_PACKET && d.initObj != nil {
		return nil, unable("ibv_create_qp", "the data path in Go supports type RAW_PACKET only on devices of package "+
			"native: libmlx5 overwrites the doorbell record of its receives")
	}
	if flags&ibv.QP_CREATE_SOURCE_QPN != 0 {
		return nil, unable("ibv_create_qp_ex", "the data path in Go does not support IBV_QP_CREATE_SOURCE_QPN: "+
			"their requests have headers")
	}
	if d.initObj == nil {
		return lent(d, d.qps, c, func(q *queuePair) datapath.Queue {
			q.lent.Store(true)
			return lentQP{q}
		})
	}
	if isTarget(c) {
		return d.NewTarget(c)
	}
	out := new(mlx5dv.QP)
	obj := &mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(c), Out: ibv.PtrTo(out)}}
	if err := d.initObj(obj, mlx5dv.OBJ_QP); err != nil {
		return nil, err
	}
	address := uintptr(0)
	if c.QPType == ibv.QPT_UD || c.QPType == ibv.QPT_DRIVER {
		var err error
		if address, err = d.addressIn(c.Context.Deref()); err != nil {
			return nil, err
		}
	}
	return d.NewQP(c, out, cap, everyOne, address)
}

// NewQP is NewCQ for a queue pair. address is the result of addressIn.
func (d *Queues) NewQP(c *ibv.QP, out *mlx5dv.QP, cap ibv.QPCap, everyOne bool, address uintptr) (datapath.Queue,
	error) {
	return d.newQP(c, func(q *queuePair) {
		q.send.address = address
		q.send.init(q, out, cap, everyOne, d.use(q, out))
		q.recv.init(q, out, cap)
		q.builder.q = &q.send
	})
}

// NewPackets is NewQP for a raw packet queue pair.
func (d *Queues) NewPackets(c *ibv.QP, out *mlx5dv.QP, cap ibv.QPCap, everyOne bool, packets Packets) (datapath.Queue,
	error) {
	return d.newQP(c, func(q *queuePair) {
		q.send.packets = &packets
		q.send.init(q, out, cap, everyOne, d.use(q, out))
		q.recv.init(q, out, cap)
		q.recv.late = true
		q.builder.q = &q.send
	})
}

// NewTarget is NewQP for a target of dynamic connections, which only has a shared receive queue. It gets its number
// later.
func (d *Queues) NewTarget(c *ibv.QP) (datapath.Queue, error) {
	return d.newQP(c, func(q *queuePair) { q.send.qp, q.recv.c = q, c })
}

// isTarget reports whether a queue pair that was just created is a target of dynamic connections.
func isTarget(c *ibv.QP) bool { return c.QPType == ibv.QPT_DRIVER && c.QPNum == 0 }

// newQP creates the path of a queue pair. init initializes its queues.
func (d *Queues) newQP(c *ibv.QP, init func(*queuePair)) (datapath.Queue, error) {
	if !supported {
		return nil, unable("ibv_create_qp", "the data path in Go supports only amd64 and arm64")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q := &queuePair{device: d, c: c, srq: d.srqs[c.SRQ.Deref()]}
	q.sendCQ, q.recvCQ = d.cqs[c.SendCQ.Deref()], d.cqs[c.RecvCQ.Deref()]
	if c.SRQ != 0 && q.srq == nil || c.SendCQ != 0 && q.sendCQ == nil || c.RecvCQ != 0 && q.recvCQ == nil {
		return nil, unable("ibv_create_qp", "its completion queue or shared receive queue has a different data path")
	}
	init(q)
	for _, cq := range []*completionQueue{q.sendCQ, q.recvCQ} {
		cq.add(q)
	}
	if d.initObj == nil {
		d.qps[c] = q
	}
	return q, nil
}

// forget removes a queue from its table, unless C has reused its address for a new one.
func forget[C, Q comparable](mu *sync.Mutex, table map[C]Q, c C, q Q) {
	mu.Lock()
	defer mu.Unlock()
	if table[c] == q {
		delete(table, c)
	}
}

// registerTable contains doorbell registers by address. Queue pairs may share one, even queue pairs of two paths.
type registerTable struct {
	mu sync.Mutex
	at map[uintptr]*register
}

// registers contains all doorbell registers of the process.
var registers = registerTable{at: map[uintptr]*register{}}

// use returns the register of a new queue pair, which may have other users.
func (d *Queues) use(q *queuePair, out *mlx5dv.QP) *register {
	registers.mu.Lock()
	defer registers.mu.Unlock()
	r := registers.at[out.BF.Reg]
	if r == nil {
		r = &register{at: pointer(out.BF.Reg), size: out.BF.Size, blueFlame: d.blueFlame, users: map[*queuePair]bool{}}
		if d.inC[out.BF.Reg] {
			r.blueFlame = blueFlameNever
		}
		if r.size >= block {
			r.whole = [2]bool{r.takes(false), r.takes(true)}
		}
		registers.at[out.BF.Reg] = r
	}
	if len(r.users) > 0 {
		r.share()
	}
	r.users[q] = true
	return r
}

// queuePair is the path of a queue pair.
type queuePair struct {
	refusing
	send           sendQueue
	recv           recvQueue
	device         *Queues
	c              *ibv.QP
	sendCQ, recvCQ *completionQueue // may be the same
	srq            *sharedQueue     // or nil
	ending         atomic.Bool      // completions are dropped
	lent           atomic.Bool      // lent by package native
	builder        Builder
}

// isTarget reports whether the queue pair is a target of dynamic connections. It has no queues.
func (q *queuePair) isTarget() bool { return q.send.register == nil }

// Ready is called after the queue pair has moved to RTR.
func (q *queuePair) Ready() { q.recv.ready() }

// num returns the number, which a target gets while completions may already be polled.
func (q *queuePair) num() uint32 { return atomic.LoadUint32(&q.c.QPNum) }

// Builder returns the builder of the send queue's requests, or nil for a target of dynamic connections.
func (q *queuePair) Builder() *Builder {
	if q.isTarget() {
		return nil
	}
	return &q.builder
}

func (q *queuePair) PostSend(_ *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	if q.c.QPType == ibv.QPT_DRIVER { // requests of a list have no target
		*bad = ibv.PtrTo(list)
		return einval
	}
	return q.send.post(list, bad)
}

// Held sets the lock that callers of PostOne hold. It is called before the first of them.
func (q *queuePair) Held(by *lock.Lock) {
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	q.send.held = by
}

func (q *queuePair) PostRecv(_ *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return q.recv.post(list, bad)
}

// Reset is called after libmlx5 has reset the queue pair. It drops earlier completions.
func (q *queuePair) Reset() {
	if !q.lent.Load() { // otherwise the borrower prevents posts, and resets the queues
		q.reset()
	}
}

func (q *queuePair) reset() {
	q.sendCQ.drop(q)
	q.recvCQ.drop(q)
	q.send.reset()
	q.recv.reset()
}

// End destroys the queue pair. Later completions are dropped without access to its memory.
func (q *queuePair) End(destroy func() error) error {
	q.device.mu.Lock()
	defer q.device.mu.Unlock()
	q.ending.Store(true)
	q.sendCQ.pause() // later polls see ending
	q.recvCQ.pause()
	if err := destroy(); err != nil {
		q.ending.Store(false)
		return err
	}
	for _, cq := range []*completionQueue{q.sendCQ, q.recvCQ} {
		cq.drop(q)
		cq.remove(q)
	}
	if !q.isTarget() {
		q.send.register.leave(q)
	}
	delete(q.device.qps, q.c)
	return nil
}

// refusing implements a path on which all methods fail.
type refusing struct{}

const eopnotsupp = int32(syscall.EOPNOTSUPP)

func (refusing) PostSend(*ibv.QP, *ibv.SendWR, *ibv.Ptr[ibv.SendWR]) int32     { return eopnotsupp }
func (refusing) PostRecv(*ibv.QP, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32     { return eopnotsupp }
func (refusing) PostSRQRecv(*ibv.SRQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32 { return eopnotsupp }
func (refusing) PostWQRecv(*ibv.WQ, *ibv.RecvWR, *ibv.Ptr[ibv.RecvWR]) int32   { return eopnotsupp }
func (refusing) Poll(*ibv.CQ, []ibv.WC) int32                                  { return -1 }
func (refusing) Arm(*ibv.CQ, bool) int32                                       { return eopnotsupp }
func (refusing) PollExtended(*ibv.CQ, []ibv.WC) int32                          { return -1 }
func (refusing) PostOne(*ibv.SendWR) bool                                      { return false }
func (refusing) Held(*lock.Lock)                                               {}
func (refusing) Reset()                                                        {}
func (refusing) Event()                                                        {}

// unable returns the error for a feature that the data path does not support.
func unable(verb, reason string) error {
	return verberr.New(verberr.Error{Verb: verb, Errno: syscall.EOPNOTSUPP, Reason: reason})
}

// pointer converts an address of C's memory or of the device's.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }
