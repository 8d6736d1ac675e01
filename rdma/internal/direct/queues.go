// SPDX-License-Identifier: BSD-2-Clause

// Package direct is the data path of mlx5 in Go: it writes work requests to the queues that the device reads, and reads
// completions where the device writes them, without calling C. libmlx5 creates the queues, and mlx5dv_init_obj returns
// their addresses. From then on libmlx5 must neither post nor poll: two writers of a queue would overwrite each other's
// requests. Package native creates queues without libmlx5.
//
// Numbers in queues are in network order. Formats are those of mlx5dv.h, in generated/mlx5dv.
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

// Queues is the data path of a device. It creates the paths of its queues.
type Queues struct {
	refusing
	initObj   InitObj
	blueFlame blueFlame
	atomics   bool // the device has them
	// mu is held while a queue pair is created or destroyed: a new one may get the number of a destroyed one.
	mu   sync.Mutex
	cqs  map[*ibv.CQ]*completionQueue
	srqs map[*ibv.SRQ]*sharedQueue
	qps  map[*ibv.QP]*queuePair // of package native
	inC  map[uintptr]bool       // doorbell registers of C's queue pairs, guarded by registerTable.mu
}

var _ datapath.Maker = (*Queues)(nil)

// InitObj is mlx5dv_init_obj.
type InitObj func(*mlx5dv.Obj, mlx5dv.ObjType) error

// New returns the data path of an mlx5 device, which may have atomic operations; env looks up the environment variables
// that libmlx5 read when it opened the device. init is nil for package native, which calls NewCQ, NewSRQ and NewQP.
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

// NewCQ returns the path of a completion queue, of which mlx5dv_init_obj has returned out.
func (d *Queues) NewCQ(c *ibv.CQ, out *mlx5dv.CQ) datapath.Queue {
	q := newCompletionQueue(d, c, out)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cqs[c] = q
	return q
}

// SRQ returns the path of a shared receive queue. XRC and tag matching are rejected: mlx5dv_init_obj does not return
// the index in their completions.
func (d *Queues) SRQ(c *ibv.SRQ, kind ibv.SRQType, cap ibv.SRQAttr) (datapath.Queue, error) {
	if kind != ibv.SRQT_BASIC {
		return nil, unable("ibv_create_srq_ex", "the data path in Go has basic shared receive queues alone")
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

// NewSRQ is NewCQ for shared receive queues.
func (d *Queues) NewSRQ(c *ibv.SRQ, out *mlx5dv.SRQ, cap ibv.SRQAttr) datapath.Queue {
	q := newSharedQueue(d, c, out, cap.MaxSGE)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.srqs[c] = q
	return q
}

// NewXRC is NewSRQ for a queue of an XRC domain, whose receives complete in cq. Completions name it by index.
func (d *Queues) NewXRC(c *ibv.SRQ, out *mlx5dv.SRQ, cap ibv.SRQAttr, cq *ibv.CQ, index uint32) (datapath.Queue,
	error) {
	q := newSharedQueue(d, c, out, cap.MaxSGE)
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.cq, q.index = d.cqs[cq], index; q.cq == nil {
		return nil, unable("ibv_create_srq_ex", "the completion queue has another data path")
	}
	q.cq.target(q)
	d.srqs[c] = q
	return q, nil
}

// QP returns the path of a queue pair. cap is the result of ibv_create_qp.
func (d *Queues) QP(c *ibv.QP, cap ibv.QPCap, everyOne bool, flags ibv.QPCreateFlags) (datapath.Queue, error) {
	if reason := kinds[c.QPType]; reason != "" {
		return nil, unable("ibv_create_qp", reason)
	}
	if flags&ibv.QP_CREATE_SOURCE_QPN != 0 {
		return nil, unable("ibv_create_qp_ex", "the data path in Go has no queue pairs with IBV_QP_CREATE_SOURCE_QPN: "+
			"their requests have headers")
	}
	if d.initObj == nil {
		return lent(d, d.qps, c, func(q *queuePair) datapath.Queue {
			q.lent.Store(true)
			return lentQP{q}
		})
	}
	out := new(mlx5dv.QP)
	obj := &mlx5dv.Obj{QP: mlx5dv.ObjQP{In: ibv.PtrTo(c), Out: ibv.PtrTo(out)}}
	if err := d.initObj(obj, mlx5dv.OBJ_QP); err != nil {
		return nil, err
	}
	address := uintptr(0)
	if c.QPType == ibv.QPT_UD {
		var err error
		if address, err = d.addressIn(c.Context.Deref()); err != nil {
			return nil, err
		}
	}
	return d.NewQP(c, out, cap, everyOne, address)
}

// NewQP is NewCQ for queue pairs. address is the offset of the address in handles for datagrams.
func (d *Queues) NewQP(c *ibv.QP, out *mlx5dv.QP, cap ibv.QPCap, everyOne bool, address uintptr) (datapath.Queue,
	error) {
	if !supported {
		return nil, unable("ibv_create_qp", "the data path in Go has barriers for amd64 and arm64 alone")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	q := &queuePair{device: d, c: c, srq: d.srqs[c.SRQ.Deref()]}
	q.sendCQ, q.recvCQ = d.cqs[c.SendCQ.Deref()], d.cqs[c.RecvCQ.Deref()]
	if c.SRQ != 0 && q.srq == nil || c.SendCQ != 0 && q.sendCQ == nil || c.RecvCQ != 0 && q.recvCQ == nil {
		return nil, unable("ibv_create_qp", "a queue that it completes in, or receives from, has another data path")
	}
	q.send.address = address
	q.send.init(q, out, cap, everyOne, d.use(q, out))
	q.recv.init(q, out, cap)
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

// kinds are the unsupported types of queue pairs, with reasons.
var kinds = map[ibv.QPType]string{
	ibv.QPT_RAW_PACKET: "the data path in Go has no queue pairs of type RAW_PACKET: their requests have headers",
	ibv.QPT_DRIVER:     "the data path in Go has no dynamic connections",
}

// registerTable has doorbell registers by address: queue pairs may share one, even those of two paths.
type registerTable struct {
	mu sync.Mutex
	at map[uintptr]*register
}

// registers are the registers of the process.
var registers = registerTable{at: map[uintptr]*register{}}

// use assigns a queue pair its register, which others may use as well.
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
	ending         atomic.Bool      // its completions are dropped
	lent           atomic.Bool      // by package native
}

func (q *queuePair) PostSend(_ *ibv.QP, list *ibv.SendWR, bad *ibv.Ptr[ibv.SendWR]) int32 {
	return q.send.post(list, bad)
}

// Held sets the lock that is held by callers of PostOne, before the first of them.
func (q *queuePair) Held(by *lock.Lock) {
	q.send.mu.Lock()
	defer q.send.mu.Unlock()
	q.send.held = by
}

func (q *queuePair) PostRecv(_ *ibv.QP, list *ibv.RecvWR, bad *ibv.Ptr[ibv.RecvWR]) int32 {
	return q.recv.post(list, bad)
}

// Reset follows a reset of the queue pair by libmlx5: earlier completions are dropped.
func (q *queuePair) Reset() {
	if !q.lent.Load() { // its borrower excludes posts, and resets it
		q.reset()
	}
}

func (q *queuePair) reset() {
	q.sendCQ.drop(q)
	q.recvCQ.drop(q)
	q.send.reset()
	q.recv.reset()
}

// End destroys the queue pair. Its later completions are dropped without accessing its memory.
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
	q.send.register.leave(q)
	delete(q.device.qps, q.c)
	return nil
}

// refusing implements a path whose methods all fail.
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

// unable returns the error for an unsupported feature of the data path.
func unable(verb, reason string) error {
	return verberr.New(verberr.Error{Verb: verb, Errno: syscall.EOPNOTSUPP, Reason: reason})
}

// pointer is an address of C's memory, or the device's.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }
