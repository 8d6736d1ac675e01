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
// An ID is safe for concurrent use; goroutines that wait for its events take turns. A method with a context waits for
// the outcome if the ID is synchronous, and returns an [EventError] if the operation failed. If the ID is asynchronous,
// the method starts the operation, and an event reports the outcome.
//
// # Detecting a dead peer
//
// When the peer calls Disconnect or Close, or its process ends on a kernel-managed connection, [ID.Event] returns
// RDMA_CM_EVENT_DISCONNECTED; a server that only waits for requests should call it in a goroutine. Outstanding receives
// do not complete at that point. Call Disconnect to flush them with IBV_WC_WR_FLUSH_ERR, which ends waits for
// completions.
//
// There is no event if the peer's host or link dies, or if a process with a device soft@ADDRESS is killed. Then only
// this side's sends, writes and reads fail, with IBV_WC_RETRY_EXC_ERR after some seconds. A server whose clients only
// read its memory should therefore post a write of 0 bytes from time to time, which the peer's device acknowledges
// without its program; package stream does this automatically:
//
//	id.PostWrite(1, nil, nil, ibv.SEND_SIGNALED, 0, 0)
//
// Man: rdma_create_id(3), rdma_cm(7)
type ID struct {
	object
	c       *rdmacm.CMID
	ps      rdmacm.PortSpace
	backend runtime.Backend

	value      atomic.Value
	noReads    atomic.Bool // one side has announced that it will not read
	request    bool        // created by a connection request
	attempted  atomic.Bool // Connect, Accept or Join was called; set while record is held
	listens    atomic.Bool
	cachedName atomic.Pointer[cachedName] // for String; updated after calls and events

	mu           sync.Mutex // guards the fields below, up to record
	channel      *EventChannel
	sync         bool        // synchronous: the ID owns its channel
	pending      []Event     // events of a synchronous ID that arrived while it waited for another one
	disconnected atomic.Bool // the connection, or the attempt, has ended: there will be no RDMA_CM_EVENT_DISCONNECTED
	shared       *sharedDevice
	joins        uint64
	groups       map[rdmacm.SockaddrStorage]int // joined groups, and how many times each

	record  sync.RWMutex // guards c's channel and queues, which most C calls read
	changes sync.Mutex   // guards objects
	objects objects
	passive *endpoint // of CreateEP: attributes for the IDs of requests
	preface int       // of CreateEP: number of bytes that C adds before the private data of a request
	verbs   verbsQueue
}

var idsByAddress sync.Map // C address → *ID

// knownID returns the ID at a C address, or nil.
func knownID(c ibv.Ptr[rdmacm.CMID]) *ID {
	id, _ := idsByAddress.Load(uintptr(c))
	own, _ := id.(*ID)
	return own
}

// newID returns an ID for c and registers it. The ID of a request gets attributes from its listener.
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
	id.updateName()
	ch.mu.Lock()
	ch.ids[id] = struct{}{}
	ch.mu.Unlock()
	idsByAddress.Store(uintptr(unsafe.Pointer(c)), id)
	return id
}

// CreateID creates a synchronous ID: its methods wait for the outcome. "Which library" in the package's documentation
// explains how the environment selects the library.
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
	id.sync = true // no lock: the ID is not yet shared
	return id, nil
}

// C returns C's object, for calls of generated/librdmacm. It belongs to the ID.
func (id *ID) C() *rdmacm.CMID { return id.c }

// SetValue attaches a value to the ID, for event handlers. The ID of a request inherits the listener's value.
func (id *ID) SetValue(v any) { id.value.Store(valueOf{v}) }

// Value returns the value set by SetValue, or nil.
func (id *ID) Value() any {
	v, _ := id.value.Load().(valueOf)
	return v.any
}

// valueOf allows atomic.Value to hold values of different types, and nil.
type valueOf struct{ any }

// PortSpace returns the ID's port space: RDMA_PS_TCP for connections, RDMA_PS_UDP for datagrams.
func (id *ID) PortSpace() rdmacm.PortSpace { return id.ps }

// PortNum returns the device's port number, or 0 if the ID has no device yet.
func (id *ID) PortNum() uint8 {
	if id.use("PortNum", id.name) != nil {
		return 0
	}
	defer id.done()
	return id.c.PortNum
}

// Device returns the ID's device. It fails if the ID is not bound to one yet. All IDs on a device share it: see the
// package's documentation.
func (id *ID) Device() (*rdma.Device, error) {
	s, err := id.share()
	if err != nil {
		return nil, id.failed("Device", err)
	}
	return s.device, nil
}

// PD returns a protection domain that all IDs on the device share. The first call allocates it. PD fails if the ID has
// no device yet, or if the allocation fails.
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
			"no device yet: call Bind with the address of a device, or ResolveAddr")
	}
	s, err := shareDevice(c)
	if err == nil {
		id.shared = s
	}
	return s, err
}

// call calls C. do must not wait for an event.
func (id *ID) call(verb string, do func() error, reasons ...errnoReason) error {
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	return id.failed(verb, id.withID(do), reasons...)
}

// withID calls C. The ID's channel and queues do not change during the call.
func (id *ID) withID(do func() error) error {
	id.record.RLock()
	defer id.record.RUnlock()
	return do()
}

// withIDUpdatingName is withID for a call that may set the ID's addresses or device. Only such calls wait until no event is
// being read.
func (id *ID) withIDUpdatingName(do func() error) error {
	id.record.RLock()
	defer id.record.RUnlock()
	defer id.updateNameAfterCall()
	return do()
}

// alter calls C to change the ID's queues. During the call, no other C call uses the ID or takes events from its
// channel.
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

// Close destroys the ID and the objects that it created: queue pair, shared receive queue and completion queues. It
// disconnects without generating an event, and rejects a request that was not accepted. Goroutines that wait for events
// of a synchronous ID return an error.
//
// Close fails with rdma.ErrInUse and names the users if other objects need one of these. This includes users of the
// protection domain and device, such as a memory region of RegMsgs, if this is the last ID on the device.
//
// If C fails to destroy one of the objects, for a reason unknown to package rdma, the objects before it are already
// destroyed, and multicast groups and pending requests are gone; the error lists them. The ID stays valid without them:
// it is bound or connected as before, QP and SRQ return nil for destroyed objects, CreateQP creates a new one, and
// Close can be repeated.
//
// C: rdma_destroy_id, rdma_destroy_ep
//
// Man: rdma_destroy_id(3), rdma_destroy_ep(3)
func (id *ID) Close() error {
	if err := id.needed(); err != nil { // checked before any goroutine is woken
		return err
	}
	return id.life.Close()
}

// needed returns an error if other objects need the ID's objects.
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

// channelNeeded returns an error if the ID is synchronous and other IDs use its event channel. IDs of pending requests
// do not count, because Close closes them.
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

// requests reports whether e is a connection request to the ID.
func (id *ID) requests(e Event) bool {
	return e.Type == rdmacm.CM_EVENT_CONNECT_REQUEST && e.Listener == id
}

// destroy closes the ID's objects and destroys the ID. It reports whether C has destroyed it. It needs no lock, because
// no call is in progress.
func (id *ID) destroy() (gone bool, err error) {
	if err := id.channelNeeded(); err != nil { // requests may have arrived since Close checked
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
		return false, verberr.Explain("", id.name(), "its objects are already closed", err)
	}
	ch := id.channel
	if err := id.destroyC(); err != nil {
		return false, verberr.Explain("rdma_destroy_id", id.name(), "its objects are already closed", err)
	}
	ch.forget(id)
	if id.sync {
		return true, ch.Close()
	}
	return true, nil
}

// destroyC destroys the ID in C, which waits until the ID's events are acknowledged. Other goroutines may take events
// during that, unless the ID listens, because a request would refer to it.
func (id *ID) destroyC() error {
	if id.listens.Load() {
		defer id.lockCalls().Unlock()
	}
	idsByAddress.Delete(uintptr(unsafe.Pointer(id.c))) // before DestroyID, because C may reuse the address at once
	err := librdmacm.DestroyID(id.c)
	if err != nil {
		idsByAddress.Store(uintptr(unsafe.Pointer(id.c)), id)
	}
	return err
}

// leaving counts the groups and requests that leaveAll has closed.
type leaving struct{ groups, requests int }

// explain adds the counts to a later error of Close.
func (f leaving) explain(err error) error {
	if f == (leaving{}) {
		return err
	}
	return fmt.Errorf("%w (after leaving %d multicast groups and rejecting %d requests)", err, f.groups, f.requests)
}

// leaveAll leaves all multicast groups and closes the IDs of pending requests. It needs no lock, because no call is in
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
			back(e) // for the next Close
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
