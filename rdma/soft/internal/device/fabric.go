// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"errors"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/clock"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/delayed"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/encoded"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/faulty"
	inprocess "github.com/goverbs/goverbs/rdma/soft/internal/wire/memory"
	"github.com/goverbs/goverbs/runtime"
	"github.com/goverbs/goverbs/runtime/rights"
)

// Options say what a fabric is like; soft.Options explains them.
type Options struct {
	Devices []DeviceOptions
	Virtual bool
	Faults  Faults
	Trace   bool
}

// DeviceOptions say what a device is like; soft.DeviceOptions explains them.
type DeviceOptions struct {
	Name       string
	Address    netip.Addr
	PKeys      []uint16
	MTU        ibv.MTU
	Persistent bool
	Down       bool
}

// Fabric is a set of devices that reach each other. All its methods may be called by any number of goroutines.
type Fabric struct {
	traced bool // where objects are made is noted; it does not change

	// mu is the fabric: whoever posts carries out what can be carried out under it, the receiving side included. So
	// nothing can deadlock, whoever posts to whom, and what happens has one order. It guards what follows.
	mu       sync.Mutex
	devices  []*device
	gone     []*device // that were taken away, and that programs have open
	made     int       // devices that there ever were
	clock    clock.Clock
	ready    []*qp // whose send queue may go on
	sending  *qp   // whose message is on the wire
	careful  bool  // memory of programs is looked at before it is used: some of it was gone
	guarded  bool  // a caller further up recovers from memory that is gone
	plain    bool  // wire is the one in memory, and nothing over it
	tries    int   // how often the request that is sent began again for that
	numbers  numbers
	gids     map[[16]byte]*device
	groups   map[[16]byte][]*qp // of multicast
	acked    sync.Cond          // an event was acknowledged
	wire     wire.Wire
	direct   *inprocess.Wire
	sound    wire.Wire // the one without faults: direct, or what a test puts over it
	faulty   *faulty.Wire
	counters Counters
	overruns []*cq
	lives    uint64 // of queue pairs, until now
	manager  Manager

	// Of the request that is sent, and of the one that is carried out.
	to, from, framed [maxSGE + 1]segment
	header           [grhSize]byte
	read             [1]segment // what answers a read
	data             [1]segment
	original         uint64 // that an atomic found
}

// wireVariable is the environment variable that puts a wire between all devices, for tests: "encoded" makes bytes of
// every message, "delayed" brings it when the clock has gone on.
const wireVariable = "GOVERBS_SOFT_WIRE"

// New makes a fabric, which stays until Close. It needs no lock: nobody else has the fabric yet.
func New(o Options) (*Fabric, error) {
	if _, err := theHost(); err != nil {
		return nil, err
	}
	f := &Fabric{traced: o.Trace, gids: map[[16]byte]*device{}, groups: map[[16]byte][]*qp{}}
	f.acked.L = &f.mu
	f.clock.Init(o.Virtual, f.due)
	f.manager = unmanaged{}
	f.direct = inprocess.New()
	f.sound = f.direct
	switch rights.Getenv(wireVariable) {
	case "encoded":
		f.sound = encoded.Over(f.direct)
	case "delayed":
		f.sound = delayed.Over(f.direct, func(arrive func()) { f.clock.After(time.Microsecond, arrive) })
	}
	f.faulty = faulty.Over(f.sound, func(d time.Duration, fire func()) { f.clock.After(d, fire) })
	f.setFaults(o.Faults)
	if len(o.Devices) == 0 {
		o.Devices = make([]DeviceOptions, 2)
	}
	for _, d := range o.Devices {
		if err := f.AddDevice(d); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// Function gives the functions of a library that take no object of the fabric's, and those that do.
func (f *Fabric) Function(library, name string) runtime.Func {
	if own := f.own(library, name); own != nil {
		return own
	}
	return function(library, name)
}

// own are the functions that take no object. It needs no lock: the manager stays the same one.
func (f *Fabric) own(library, name string) runtime.Func {
	switch {
	case library == "libibverbs" && name == "ibv_get_device_list":
		return abi.Guarded(abi.Func1(f.deviceList))
	case library == "librdmacm":
		if own := f.manager.Function(name); own != nil {
			return abi.Guarded(own)
		}
	}
	return nil
}

// unlock lets all go on that can, and unlocks.
func (f *Fabric) unlock() {
	if len(f.ready)+len(f.overruns) > 0 {
		f.workAndUnlock()
		return
	}
	f.mu.Unlock()
}

// workAndUnlock unlocks also where work panics. The caller holds Fabric.mu.
func (f *Fabric) workAndUnlock() {
	defer f.mu.Unlock()
	f.work()
}

// work carries out what became ready. The caller holds Fabric.mu.
func (f *Fabric) work() {
	for len(f.ready)+len(f.overruns) > 0 {
		if n := len(f.overruns); n > 0 {
			c := f.overruns[n-1]
			f.overruns = f.overruns[:n-1]
			f.overrun(c)
			continue
		}
		q := f.ready[0]
		f.ready = f.ready[:copy(f.ready, f.ready[1:])]
		q.progress()
	}
}

// Deliver calls a function with the lock, and lets go on what became ready. It is for wires, which bring messages in it
// that took their time.
func (f *Fabric) Deliver(arrive func()) {
	f.mu.Lock()
	defer f.unlock()
	arrive()
}

// overrun breaks the queue pairs whose completions have no place any more.
func (f *Fabric) overrun(c *cq) {
	for _, object := range f.numbers.objects {
		if q := object.qp; q != nil && q.completesIn(c) && q.state != ibv.QPS_RESET && q.state != ibv.QPS_ERR {
			q.tell(ibv.EVENT_QP_FATAL)
			q.setState(ibv.QPS_ERR)
		}
	}
}

// completesIn says whether a completion queue is one of the queue pair's: also that of shared receives, or of any of
// its XRC domain.
func (q *qp) completesIn(c *cq) bool {
	if q.sendCQ == c || q.recvCQ == c || q.srq != nil && q.srq.cq == c {
		return true
	}
	return q.kind == ibv.QPT_XRC_RECV && slices.ContainsFunc(q.fabric().numbers.objects, func(object numbered) bool {
		s := object.srq
		return s != nil && s.cq == c && s.domain == q.domain
	})
}

// newLife tells a queue pair that was made or reset from what it was before.
func (f *Fabric) newLife() uint64 {
	f.lives++
	return f.lives
}

// numbers gives queue pairs and shared receive queues their numbers: those of a fabric are all different, and one is
// not used again soon.
type numbers struct {
	objects []numbered
	free    []int
	rounds  []uint8
}

// numbered is what has a number: one of the two.
type numbered struct {
	qp  *qp
	srq *srq
}

const (
	numberBits  = 16 // of a number's 24 bits, those that are the place in the table
	firstNumber = 17 // lower ones mean something on InfiniBand
)

func (n *numbers) add(object numbered) (uint32, bool) {
	var i int
	if len(n.free) > 64 || len(n.objects) == 1<<numberBits-firstNumber && len(n.free) > 0 {
		i = n.free[0]
		n.free = n.free[1:]
	} else if len(n.objects) < 1<<numberBits-firstNumber {
		i = len(n.objects)
		n.objects, n.rounds = append(n.objects, numbered{}), append(n.rounds, 0)
	} else {
		return 0, false
	}
	n.objects[i] = object
	return uint32(i+firstNumber) | uint32(n.rounds[i])<<numberBits, true
}

func (n *numbers) remove(number uint32) {
	i := int(number&(1<<numberBits-1)) - firstNumber
	n.objects[i] = numbered{}
	n.rounds[i] = (n.rounds[i] + 1) % 255 // 0xffffff is the number of multicast
	n.free = append(n.free, i)
}

// get is what has a number, or nothing.
func (n *numbers) get(number uint32) (o numbered) {
	i := int(number&(1<<numberBits-1)) - firstNumber
	if uint(i) >= uint(len(n.objects)) || number>>numberBits != uint32(n.rounds[i]) {
		return o
	}
	return n.objects[i]
}

// qp is the queue pair that has a number, or nil.
func (n *numbers) qp(number uint32) *qp { return n.get(number).qp }

// srq is the shared receive queue that has a number, or nil.
func (n *numbers) srq(number uint32) *srq { return n.get(number).srq }

// due fires what is due by a real clock.
func (f *Fabric) due() {
	f.mu.Lock()
	defer f.unlock()
	f.clock.Elapse(f.clock.Now(), f.work)
	f.clock.Arm()
}

// idle is called by a goroutine that found nothing to do: a virtual clock goes on to the next timer. It says whether
// there was one. It needs no lock: whether a clock is virtual does not change, and for the rest it takes it.
func (f *Fabric) idle() bool {
	if !f.clock.IsVirtual() {
		return false
	}
	f.mu.Lock()
	defer f.unlock()
	return f.clock.Step(f.work)
}

// Advance lets a virtual clock go on by a time, and what is due happen. With a real clock it does nothing.
func (f *Fabric) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.unlock()
	if f.clock.IsVirtual() {
		f.clock.Elapse(f.clock.Now()+int64(d), f.work)
	}
}

// Now is the fabric's time since it was made.
func (f *Fabric) Now() time.Duration {
	f.mu.Lock()
	defer f.unlock()
	return time.Duration(f.clock.Now())
}

// Faults are what goes wrong on a fabric; soft.Faults explains them.
type Faults = faulty.Faults

// Counters tell what happened on a fabric; soft.Counters explains them.
type Counters struct {
	Lost       uint64
	Duplicates uint64
	NotReady   uint64
}

// Counters are those of the fabric.
func (f *Fabric) Counters() Counters {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counters
	c.Lost += f.faulty.Lost()
	return c
}

// SetFaults changes what goes wrong from now on.
func (f *Fabric) SetFaults(o Faults) {
	f.mu.Lock()
	defer f.unlock()
	f.setFaults(o)
}

// setFaults lets messages go by the wire on which things go wrong, if any do.
func (f *Fabric) setFaults(o Faults) {
	f.faulty.Set(o)
	f.wire = f.sound
	if !f.faulty.Idle() {
		f.wire = f.faulty
	}
	f.plain = f.wire == wire.Wire(f.direct)
}

// Memory that a program registered may be gone when a device uses it. A copy then panics. Guards recover the panic,
// each for its own side: of a request that is sent (qp.run), of one that arrives (device.guarded) and of an answer
// (qp.keep). They begin again with Fabric.careful set, so that memory is touched before it is used, and what is gone
// ends in a status. The message itself may lie in memory of the sender's, which is none of the receiver's business: its
// guard lets the panic go on to the sender's.

// bySender says whether the guard of a request's sender does for its receiver as well, which costs nothing: the request
// goes to one receiver, once, while it is sent, so that sending it again does no more than receiving it again.
func (f *Fabric) bySender() bool { return f.guarded && f.plain }

// attempts is how often a guard begins again. More than once is needed only where a program unmaps memory while it is
// used.
const attempts = 8

// guard notes that the caller recovers, and lets memory that is gone panic. The caller undoes both by calling unguard
// with what guard returns.
func (f *Fabric) guard() (before guards) {
	before = guards{guarded: f.guarded, sending: f.sending}
	if !f.guarded {
		before.panics = debug.SetPanicOnFault(true)
		f.guarded = true
	}
	return before
}

// guards is what a guard found.
type guards struct {
	guarded bool
	panics  bool
	sending *qp
}

func (f *Fabric) unguard(before guards) {
	if !before.guarded {
		f.guarded = false
		debug.SetPanicOnFault(before.panics)
	}
}

// calm says that a request was carried out, or ended in a status.
func (f *Fabric) calm() {
	if f.careful {
		f.careful, f.tries = false, 0
	}
}

// fault makes a value of a panic of an access to memory that is gone. Other panics go on.
func (f *Fabric) fault(panicked any, before guards) any {
	f.sending = before.sending
	if !mem.FaultOf(panicked) {
		panic(panicked)
	}
	return panicked
}
