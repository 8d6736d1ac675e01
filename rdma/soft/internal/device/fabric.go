// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/rights"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/abi"
	"github.com/goverbs/goverbs/rdma/soft/internal/clock"
	"github.com/goverbs/goverbs/rdma/soft/internal/counters"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
	"github.com/goverbs/goverbs/rdma/soft/internal/packet"
	"github.com/goverbs/goverbs/rdma/soft/internal/pcap"
	"github.com/goverbs/goverbs/rdma/soft/internal/udp"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/delayed"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/encoded"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/faulty"
	inprocess "github.com/goverbs/goverbs/rdma/soft/internal/wire/memory"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/packets"
	"github.com/goverbs/goverbs/rdma/soft/internal/wire/roce"
	"github.com/goverbs/goverbs/runtime"
)

// Options configure a fabric; see soft.Options.
type Options struct {
	Devices []DeviceOptions
	Virtual bool
	Faults  Faults
	Trace   bool
	// ExactCaps is that of soft.Options.
	ExactCaps bool
	losses    *packets.Losses // of tests: all devices are joined by packets, of which these are lost
}

// DeviceOptions configure a device; see soft.DeviceOptions.
type DeviceOptions struct {
	Name       string
	Address    netip.Addr
	PKeys      []uint16
	MTU        ibv.MTU
	Persistent bool
	Wire       bool
	Down       bool
}

// Fabric is a set of devices that reach each other. All its methods may be called by any number of goroutines.
type Fabric struct {
	traced bool                      // where objects are made is noted; it does not change
	exact  bool                      // Options.ExactCaps
	failed atomic.Bool               // an allocation was made to fail, and that was not queried yet
	polled atomic.Pointer[roce.Wire] // outer

	captures pcap.Captures // of the packets that it sends and receives

	// mu is the fabric's lock: the poster executes all ready work under it, including the receiving side. So posts
	// cannot deadlock, whichever queue pairs are involved, and events have one order. It guards the fields below.
	mu       sync.Mutex
	devices  []*device
	gone     []*device // that were taken away, and that programs have open
	made     int       // devices that there ever were
	clock    clock.Clock
	ready    []*qp // whose send queue may go on
	careful  bool  // memory of programs is touched before it is used: some of it was gone
	guarded  bool  // a caller further up recovers from memory that is gone
	panics   bool  // the goroutine that holds mu has called SetPanicOnFault
	plain    bool  // wire is the one in memory, and nothing over it
	tries    int   // how often the request that is sent began again for that
	numbers  numbers.Table[numbered]
	gids     map[[16]byte]*device
	moves    uint64             // changes of addressOf results, from 1 on
	groups   map[[16]byte][]*qp // of multicast
	acked    sync.Cond          // an event was acknowledged
	wire     wire.Wire
	direct   *inprocess.Wire
	sound    wire.Wire  // the one without faults: direct, or a test's wire over it, or outer
	outer    *roce.Wire // leads to other fabrics; nil if no device speaks to them
	outgoing bool       // it has packets to send
	faulty   *faulty.Wire
	lost     uint64          // messages, but for those that faulty loses
	past     counters.Counts // of removed devices
	overruns []*cq
	lives    uint64 // of queue pairs, until now
	manager  Manager

	// Of the request that is sent, and of the one that is carried out.
	to, from, framed [maxSGE + 1]segment
	header           [grhSize]byte
	read             [1]segment // data of a read's answer
	data             [1]segment
	original         uint64 // that an atomic found
}

// wireVariable is the environment variable that puts a wire between all devices, for tests: "encoded" encodes every
// message to bytes, "delayed" delivers it when the clock has advanced, "packets" turns it into RoCEv2 packets, and
// "lossy" loses, repeats, delays, swaps and damages some of these, with a virtual clock: packets.Named defines which.
const wireVariable = "GOVERBS_SOFT_WIRE"

// New creates a fabric, which exists until Close. It needs no lock: the fabric is not shared yet.
func New(o Options) (*Fabric, error) {
	if _, err := theHost(); err != nil {
		return nil, err
	}
	if o.Trace {
		made.Want()
	}
	f := &Fabric{traced: o.Trace, exact: o.ExactCaps, gids: map[[16]byte]*device{}, moves: 1, groups: map[[16]byte][]*qp{}}
	f.acked.L = &f.mu
	named := rights.Getenv(wireVariable)
	losses, lossy := packets.Named(named)
	f.clock.Init(o.Virtual || lossy, f.due) // lost messages are sent again without a wait
	f.manager = unmanaged{}
	f.direct = inprocess.New()
	f.sound = f.direct
	switch {
	case o.losses != nil:
		f.sound = f.packetWire(*o.losses)
	case named == "encoded":
		f.sound = encoded.Over(f.direct)
	case named == "delayed":
		f.sound = delayed.Over(f.direct, func(arrive func()) { f.clock.After(time.Microsecond, arrive) })
	case named == "packets" || lossy:
		f.sound = f.packetWire(losses)
	}
	f.faulty = faulty.Over(f.sound, f.later)
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

// packetWire is a wire of packets in memory.
func (f *Fabric) packetWire(losses packets.Losses) *packets.Wire {
	w := packets.Over(f.direct, losses, f.later)
	w.Watch(func(p []byte, from, to *packet.Endpoint) {
		for _, c := range f.captures.All() {
			at := time.Now()
			if f.clock.IsVirtual() {
				at = time.Unix(0, f.clock.Now())
			}
			c.Packet(at, p, from, to, 0)
		}
	})
	return w
}

// Capture writes packets to a file; soft.Fabric explains it.
func (f *Fabric) Capture(to io.Writer) (*pcap.Capture, error) {
	f.mu.Lock()
	_, inMemory := f.sound.(*packets.Wire)
	sends := inMemory || f.outer != nil
	f.mu.Unlock()
	if !sends {
		return nil, fmt.Errorf("soft: no device of the fabric sends packets, which those with an address do "+
			"(soft@ADDRESS, or DeviceOptions.Wire): %w", syscall.EOPNOTSUPP)
	}
	return f.captures.Start(to)
}

// later calls a function after a time. The caller holds Fabric.mu.
func (f *Fabric) later(d time.Duration, fire func()) { f.clock.After(d, fire) }

// Function returns a function of a library, whether or not it takes an object of the fabric.
func (f *Fabric) Function(library, name string) runtime.Func {
	if own := f.own(library, name); own != nil {
		return own
	}
	return function(library, name)
}

// own are the functions that take no object. It needs no lock: the manager stays the same one.
func (f *Fabric) own(library, name string) runtime.Func {
	switch {
	case library == "libibverbs":
		return f.finder(name)
	case library == "librdmacm":
		if own := f.manager.Function(name); own != nil {
			return abi.Guarded(own)
		}
	}
	return nil
}

// unlock executes all ready work, and unlocks.
func (f *Fabric) unlock() {
	if len(f.ready)+len(f.overruns) > 0 || f.outgoing {
		f.workAndUnlock(false)
		return
	}
	f.mu.Unlock()
}

// work executes everything that became ready. The caller holds Fabric.mu.
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

// Deliver calls arrive with the lock held, then executes everything that became ready. Wires call it to deliver delayed
// messages.
func (f *Fabric) Deliver(arrive func()) {
	f.mu.Lock()
	defer f.unlock()
	arrive()
}

// newLife returns a number that distinguishes a created or reset queue pair from its earlier incarnations.
func (f *Fabric) newLife() uint64 {
	f.lives++
	return f.lives
}

// numbered is an object with a number: one of the two.
type numbered struct {
	qp  *qp
	srq *srq
}

// tops are the bits that numbers of a device's objects may have above the place: the least ones, and how many there
// are. The greatest of all would make a number that is multicast's.
func (d *device) tops() (low, n uint32) {
	low = d.fabric.numbers.Low()
	if len(d.links) == 0 || !d.links[0].IsShared() {
		return low, 1<<(24-numbers.Bits) - 1 - low
	}
	first := udp.QPsOf(d.links[0].Member())
	n = (udp.QPsOf(d.links[0].Member()+1) - first) >> numbers.Bits
	if first == 0 {
		return low, n - low
	}
	return first >> numbers.Bits, n
}

// qpOf is the queue pair that has a number, or nil.
func (f *Fabric) qpOf(number uint32) *qp { return f.numbers.Get(number).qp }

// srqOf is the shared receive queue that has a number, or nil.
func (f *Fabric) srqOf(number uint32) *srq { return f.numbers.Get(number).srq }

// due fires the expired timers of a real clock.
func (f *Fabric) due() {
	f.mu.Lock()
	defer f.unlock()
	f.clock.Elapse(f.clock.Now(), f.work)
	f.clock.Arm()
}

// idle is called by a goroutine without work: it advances a virtual clock to the next timer, and reports whether there
// was one. It needs no lock: whether a clock is virtual does not change, and it takes the lock for the rest.
func (f *Fabric) idle() bool {
	if w := f.polled.Load(); w != nil && w.Poll() {
		return true
	}
	if !f.clock.IsVirtual() {
		return false
	}
	f.mu.Lock()
	defer f.unlock()
	return f.clock.Step(f.work)
}

// Advance advances a virtual clock by d and fires the timers that are due. With a real clock it does nothing.
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

// Faults configure the faults of a fabric; see soft.Faults.
type Faults = faulty.Faults

// SetFaults replaces the faults from now on.
func (f *Fabric) SetFaults(o Faults) {
	f.mu.Lock()
	defer f.unlock()
	f.setFaults(o)
}

// FailedAllocation reports whether a fault made an allocation fail since it was last asked.
func (f *Fabric) FailedAllocation() bool { return f.failed.Swap(false) }

// setFaults routes messages over the faulty wire, if there are faults.
func (f *Fabric) setFaults(o Faults) {
	f.faulty.Set(o)
	f.failed.Store(false)
	f.wire = f.sound
	if !f.faulty.Idle() {
		f.wire = f.faulty
	}
	f.plain = f.wire == wire.Wire(f.direct)
}

// Memory that a program registered may be gone when a device uses it. A copy then panics. Guards recover the panic,
// each for its own side: of a request that is sent (qp.run), of one that arrives (device.guarded) and of an answer
// (qp.keep). They retry with Fabric.careful set, so that memory is touched before it is used, and missing memory ends
// in a status. The message itself may lie in the sender's memory, which does not concern the receiver: its guard passes
// the panic on to the sender's guard.

// bySender reports whether the guard of a request's sender does for its receiver as well, which costs nothing: the request
// goes to one receiver, once, while it is sent, so that sending it again does no more than receiving it again.
func (f *Fabric) bySender() bool { return f.guarded && f.plain }

// attempts is how often a guard begins again. More than once is needed only where a program unmaps memory while it is
// used.
const attempts = 8

// guard records that the caller recovers, and makes access to missing memory panic. The caller undoes both by calling
// unguard with the result of guard.
func (f *Fabric) guard() (before guards) {
	before = guards{guarded: f.guarded, panics: true}
	if !f.guarded {
		if !f.panics {
			before.panics = debug.SetPanicOnFault(true)
		}
		f.guarded = true
	}
	return before
}

// guards is the state before a guard.
type guards struct {
	guarded bool
	panics  bool
}

func (f *Fabric) unguard(before guards) {
	if !before.guarded {
		f.guarded = false
		if !before.panics {
			debug.SetPanicOnFault(false)
		}
	}
}

// calm records that a request was executed, or ended in a status.
func (f *Fabric) calm() {
	if f.careful {
		f.careful, f.tries = false, 0
	}
}

// fault converts a panic from access to missing memory to a value. Other panics propagate.
func (f *Fabric) fault(panicked any) any {
	if !mem.FaultOf(panicked) {
		panic(panicked)
	}
	return panicked
}
