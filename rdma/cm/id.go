// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/verberr"
	"github.com/goverbs/goverbs/runtime"
)

// ID is one end of a connection, a listener, or a datagram endpoint: rdma_cm_id.
//
// An ID is safe for concurrent use; goroutines that wait for its events take turns. Methods with a context wait for the
// outcome if the ID is synchronous, and return an [EventError] if the operation failed. On an asynchronous ID they only
// start the operation, and events report the outcome.
//
// # Detecting a dead peer
//
// When the peer calls Disconnect or Close, or its process ends on a kernel-managed connection, this end gets
// RDMA_CM_EVENT_DISCONNECTED from [ID.Event]; a passive server waits for it in a goroutine. Outstanding receives do not
// complete then. Then call Disconnect: they complete with IBV_WC_WR_FLUSH_ERR, and waits for completions end. There is
// no event if the peer's host or link dies, or a process with a device soft@ADDRESS is killed: then only a send, write
// or read of this end fails, with IBV_WC_RETRY_EXC_ERR after some seconds. A server of one-sided reads should therefore
// post a write of 0 bytes from time to time, which the peer's device acknowledges without its program, or use package
// stream, which does so:
//
//	id.PostWrite(1, nil, nil, ibv.SEND_SIGNALED, 0, 0)
//
// Man: rdma_create_id(3), rdma_cm(7)
type ID struct {
	object
	c       *rdmacm.CMID
	ps      rdmacm.PortSpace
	backend runtime.Backend

	value   atomic.Value
	noReads atomic.Bool // an end has announced that there will be no reads
	request bool        // it is the ID of a request
	begun   atomic.Bool // there was an attempt to connect, or to join a group; set while record is held
	listens atomic.Bool
	noted   atomic.Pointer[noted] // after the last call, for String

	mu      sync.Mutex // guards the fields below, up to record
	channel *EventChannel
	sync    bool        // the channel is the ID's own
	pending []Event     // events of a synchronous ID that arrived during a wait for another one
	parted  atomic.Bool // the connection, or the attempt at one, is over: no event will report that again
	shared  *sharedDevice
	joins   uint64
	groups  map[rdmacm.SockaddrStorage]int // joined groups, and how many times each

	record  sync.RWMutex // guards c's channel and queues: most calls read or dereference them in C
	changes sync.Mutex   // guards objects
	objects objects
	passive *endpoint // of CreateEP: attributes for the IDs of requests
	preface int       // of CreateEP: number of bytes that C adds before the private data of a request
	verbs   verbsQueue
}

var known sync.Map // IDs by their addresses in C

// knownID returns the ID at an address, or nil.
func knownID(c ibv.Ptr[rdmacm.CMID]) *ID {
	id, _ := known.Load(uintptr(c))
	own, _ := id.(*ID)
	return own
}

// newID returns an ID for C's, and registers it. The ID of a request gets attributes from its listener.
func newID(ch *EventChannel, c *rdmacm.CMID, listener *ID) *ID {
	id := &ID{c: c, ps: c.PS, backend: ch.backend, channel: ch}
	for i := range id.verbs.turns {
		id.verbs.turns[i] = make(chan struct{}, 1)
	}
	id.objects.owner = new(owner)
	id.objects.owner.Store(id)
	if listener != nil {
		id.passive = listener.passive
		id.value.Store(valueOf{listener.Value()})
	}
	id.created("ID", id.wake, func() (gone bool, err error) {
		gone, err = id.destroy()
		if !gone {
			id.channel.resume()
		}
		return gone, err
	})
	id.learn()
	ch.mu.Lock()
	ch.ids[id] = struct{}{}
	ch.mu.Unlock()
	known.Store(uintptr(unsafe.Pointer(c)), id)
	return id
}

// CreateID creates a synchronous ID: its methods wait for the outcome. It is the kernel's, or the built-in software
// fabric's: see "Which library" in the package's documentation.
//
// C: rdma_create_id
//
// Man: rdma_create_id(3)
func CreateID(ps rdmacm.PortSpace) (*ID, error) {
	return CreateIDOn(nil, ps)
}

// CreateIDOn creates a synchronous ID of a software backend. A nil backend selects by GOVERBS_DEVICE, like CreateID;
// runtime.Native selects rdma-core.
func CreateIDOn(backend runtime.Backend, ps rdmacm.PortSpace) (*ID, error) {
	ch, err := CreateEventChannelOn(backend)
	if err != nil {
		return nil, err
	}
	id, err := ch.CreateID(ps)
	if err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	id.sync = true // It needs no lock: no other goroutine has the ID yet.
	return id, nil
}

// C returns C's object, for calls of generated/librdmacm. It belongs to the ID.
func (id *ID) C() *rdmacm.CMID { return id.c }

// SetValue attaches a value to the ID, for handlers of its events. The ID of a request inherits the value of its
// listener.
func (id *ID) SetValue(v any) { id.value.Store(valueOf{v}) }

// Value returns the value of SetValue, or nil.
func (id *ID) Value() any {
	v, _ := id.value.Load().(valueOf)
	return v.any
}

// valueOf lets values of different types, and nil, be stored one after the other.
type valueOf struct{ any }

// PortSpace returns the ID's port space: RDMA_PS_TCP for connections, RDMA_PS_UDP for datagrams.
func (id *ID) PortSpace() rdmacm.PortSpace { return id.ps }

// PortNum returns the port of the device, or 0 before the ID has a device.
func (id *ID) PortNum() uint8 {
	if id.use("PortNum", id.name) != nil {
		return 0
	}
	defer id.done()
	return id.c.PortNum
}

// Device returns the ID's device after it is bound to one. All IDs on it share it: see the package's documentation.
func (id *ID) Device() (*rdma.Device, error) {
	s, err := id.share()
	if err != nil {
		return nil, id.failed("Device", err)
	}
	return s.device, nil
}

// PD returns a protection domain that all IDs on the device share. Like Device, it fails if the ID has no device yet,
// or if the allocation by the first call fails.
func (id *ID) PD() (*rdma.PD, error) {
	s, err := id.share()
	if err != nil {
		return nil, id.failed("PD", err)
	}
	return s.pd, nil
}

func (id *ID) share() (*sharedDevice, error) {
	if err := id.use("", id.name); err != nil {
		return nil, err
	}
	defer id.done()
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.shared != nil {
		return id.shared, nil
	}
	c := id.c.Verbs.Deref()
	if c == nil {
		return nil, verberr.Invalid("", "",
			"it has no device yet: bind it to an address of a device, or resolve an address first")
	}
	s, err := shareDevice(c)
	if err == nil {
		id.shared = s
	}
	return s, err
}

// call makes a call of C that does not wait.
func (id *ID) call(verb string, do func() error, reasons ...because) error {
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	return id.failed(verb, id.withID(do), reasons...)
}

// withID calls C while the ID stays on its channel and keeps its queues.
func (id *ID) withID(do func() error) error {
	id.record.RLock()
	defer id.record.RUnlock()
	return do()
}

// withIDLearning is withID for a call that may give the ID addresses or a device. Only such calls wait until no event
// is being read.
func (id *ID) withIDLearning(do func() error) error {
	id.record.RLock()
	defer id.record.RUnlock()
	defer id.learnBetweenEvents()
	return do()
}

// alter calls C to add queues to the ID or to remove them. During that, no other C call uses the ID or takes events of
// its channel.
func (id *ID) alter(do func() error) error {
	id.record.Lock()
	defer id.record.Unlock()
	defer id.lockCalls().Unlock()
	return do()
}

// lockCalls locks and returns the call lock of the ID's channel. The caller holds record.
func (id *ID) lockCalls() *sync.Mutex {
	id.mu.Lock()
	ch := id.channel
	id.mu.Unlock()
	ch.calls.Lock()
	return &ch.calls
}

// Close destroys the ID, with the queue pair, the shared receive queue and the completion queues that it created. It
// disconnects without an event for waiting goroutines, and rejects a request that was not accepted. Goroutines that
// wait for events of a synchronous ID return with an error.
//
// If other objects need one of these, or the domain or device that are closed with the last ID on it (a memory region
// of RegMsgs, for example), Close fails with rdma.ErrInUse and names them.
//
// If C fails to destroy one of the objects, for a reason unknown to package rdma, the objects before it are destroyed,
// and so are multicast groups and pending requests; the error names them all. The ID stays valid without them: it is
// bound or connected as before, QP and SRQ return nil for destroyed objects, CreateQP creates a new one, and Close can
// be repeated.
//
// C: rdma_destroy_id, rdma_destroy_ep
//
// Man: rdma_destroy_id(3), rdma_destroy_ep(3)
func (id *ID) Close() error {
	if err := id.needed(); err != nil { // before any goroutine is woken
		return err
	}
	return id.life.Close()
}

// needed returns why the ID cannot be closed, or nil.
func (id *ID) needed() error {
	if err := id.channelNeeded(); err != nil {
		return err
	}
	id.changes.Lock()
	all := id.objects.all()
	id.changes.Unlock()
	id.mu.Lock()
	s := id.shared
	id.mu.Unlock()
	return needed(all, s)
}

// channelNeeded returns why the event channel of a synchronous ID, which is closed with it, cannot be closed, or nil.
// Pending requests are closed, too.
func (id *ID) channelNeeded() error {
	id.mu.Lock()
	ch, own := id.channel, id.sync
	with := map[*ID]bool{id: true}
	for _, e := range id.pending {
		if id.requests(e) {
			with[e.ID] = true
		}
	}
	id.mu.Unlock()
	if !own {
		return nil
	}
	return ch.freeOf(with, id.requests)
}

// requests reports whether an event is a request to the ID.
func (id *ID) requests(e Event) bool {
	return e.Type == rdmacm.CM_EVENT_CONNECT_REQUEST && e.Listener == id
}

// destroy closes everything after all users are gone. It reports whether C has destroyed the ID. It needs no lock: no
// call is in progress.
func (id *ID) destroy() (gone bool, err error) {
	if err := id.channelNeeded(); err != nil { // by events that arrived since
		return false, err
	}
	var left leaving
	err = id.shared.release(func(last ...rdma.Object) error {
		id.changes.Lock()
		defer id.changes.Unlock()
		err := rdma.CloseAll(func() error { return id.leaveAll(&left) }, append(id.objects.all(), last...)...)
		if err != nil {
			id.objects.forget()
		}
		return err
	})
	if err != nil {
		return false, left.explain(err)
	}
	id.changes.Lock()
	id.objects = objects{owner: id.objects.owner}
	id.changes.Unlock()
	id.mu.Lock()
	id.shared = nil
	id.mu.Unlock()
	if err := id.verbs.close(); err != nil {
		return false, verberr.Explain("", id.name(), "its objects are closed", err)
	}
	ch := id.channel
	if err := id.destroyC(); err != nil {
		return false, verberr.Explain("rdma_destroy_id", id.name(), "its objects are closed", err)
	}
	ch.forget(id)
	if id.sync {
		return true, ch.Close()
	}
	return true, nil
}

// destroyC destroys the ID in C, which waits until the ID's events are acknowledged. During that, other goroutines may
// take events, unless these could be requests to it.
func (id *ID) destroyC() error {
	if id.listens.Load() {
		defer id.lockCalls().Unlock()
	}
	known.Delete(uintptr(unsafe.Pointer(id.c))) // before: then the address may be another's at once
	err := librdmacm.DestroyID(id.c)
	if err != nil {
		known.Store(uintptr(unsafe.Pointer(id.c)), id)
	}
	return err
}

// leaving counts the groups and requests that leaveAll has ended.
type leaving struct{ groups, requests int }

// explain adds these counts to a later error of Close.
func (f leaving) explain(err error) error {
	if f == (leaving{}) {
		return err
	}
	return fmt.Errorf("%w (by then %d multicast groups were left, and %d requests rejected)", err, f.groups, f.requests)
}

// leaveAll leaves all multicast groups and closes the IDs of pending requests. It needs no lock: no call is in
// progress.
func (id *ID) leaveAll(left *leaving) error {
	if err := id.leaveGroups(&left.groups); err != nil {
		return verberr.Wrap("rdma_leave_multicast", id.name(), err)
	}
	for {
		back := func(e Event) { id.keep(e, false) }
		e, ok := id.takePending(id.requests)
		if !ok {
			back = func(e Event) { id.channel.keep(e) }
			if e, ok = id.channel.takeKept(id.requests); !ok {
				return nil
			}
		}
		if err := e.ID.Close(); err != nil {
			back(e) // no other goroutine has it
			return err
		}
		left.requests++
	}
}

// wake ends the waits of a synchronous ID.
func (id *ID) wake() {
	id.mu.Lock()
	ch, own := id.channel, id.sync
	id.mu.Unlock()
	if own {
		ch.stop()
	}
}
