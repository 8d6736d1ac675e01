package cm

import (
	"errors"
	"fmt"
	"net/netip"
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
// Any number of goroutines may use it at once; those who wait for its events do so one after the other. Methods that take a context wait for
// the outcome when the ID is synchronous; then an [EventError] says what went wrong. Of an asynchronous ID they only begin, and the events
// tell the rest.
//
// Man: rdma_create_id(3), rdma_cm(7)
type ID struct {
	object
	c       *rdmacm.CMID
	ps      rdmacm.PortSpace
	backend runtime.Backend

	mu      sync.Mutex // guards what follows, up to record
	channel *EventChannel
	sync    bool        // the channel is the ID's own
	pending []Event     // of a synchronous ID: came while something else was waited for
	parted  atomic.Bool // RDMA_CM_EVENT_DISCONNECTED was taken out of the channel
	shared  *sharedDevice
	joins   uint64
	groups  map[rdmacm.SockaddrStorage]int // that were joined, and how many times

	record  sync.RWMutex // c's channel and queues: most calls read them in C, or follow them
	changes sync.Mutex   // of the objects
	objects objects
	passive *endpoint // of CreateEP: what GetRequest gives its IDs
	preface int       // of CreateEP: how many bytes C puts in front of the private data of a request
	verbs   verbsQueue
}

var known sync.Map // IDs by the addresses that C knows them by

// knownID is the ID at an address, or nil.
func knownID(c ibv.Ptr[rdmacm.CMID]) *ID {
	id, _ := known.Load(uintptr(c))
	own, _ := id.(*ID)
	return own
}

// newID makes an ID of C's known. A new one of a request has what its listener gives it.
func newID(ch *EventChannel, c *rdmacm.CMID, listener *ID) *ID {
	id := &ID{c: c, ps: c.PS, backend: ch.backend, channel: ch}
	for i := range id.verbs.turns {
		id.verbs.turns[i] = make(chan struct{}, 1)
	}
	if listener != nil {
		id.passive = listener.passive
	}
	id.born("ID", id.wake, func() (gone bool, err error) {
		gone, err = id.destroy()
		if !gone {
			id.channel.goOn()
		}
		return gone, err
	})
	ch.mu.Lock()
	ch.ids[id] = struct{}{}
	ch.mu.Unlock()
	known.Store(uintptr(unsafe.Pointer(c)), id)
	return id
}

// CreateID makes a synchronous ID of the native library: its methods wait for the outcome.
//
// C: rdma_create_id
//
// Man: rdma_create_id(3)
func CreateID(ps rdmacm.PortSpace) (*ID, error) { return CreateIDOn(nil, ps) }

// CreateIDOn makes a synchronous ID of a software backend; nil means the native library.
func CreateIDOn(backend runtime.Backend, ps rdmacm.PortSpace) (*ID, error) {
	ch, err := CreateEventChannelOn(backend)
	if err != nil {
		return nil, err
	}
	id, err := ch.CreateID(ps)
	if err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	id.sync = true
	return id, nil
}

// C is the object of C, for calls of generated/librdmacm. It belongs to the ID.
func (id *ID) C() *rdmacm.CMID { return id.c }

// name is the ID in messages.
func (id *ID) name() string {
	if !id.life.TryUse() {
		return "ID"
	}
	defer id.done()
	c := librdmacm.GetPeerAddr(id.c)
	local, peer := addressString(librdmacm.GetLocalAddr(id.c)), addressString(c)
	switch {
	case local != "" && peer != "" && !addrPort(c).Addr().IsUnspecified():
		return "ID " + local + " to " + peer
	case local != "":
		return "ID " + local
	}
	return "ID"
}

// PortSpace is what the ID was made for: RDMA_PS_TCP for connections, RDMA_PS_UDP for datagrams.
func (id *ID) PortSpace() rdmacm.PortSpace { return id.ps }

// LocalAddr is the ID's own address, once it is bound. It is not valid when the ID is not bound, or bound to no IP address: see LocalIBAddr.
//
// C: rdma_get_local_addr, rdma_get_src_port
//
// Man: rdma_get_local_addr(3), rdma_get_src_port(3)
func (id *ID) LocalAddr() netip.AddrPort {
	if id.use("rdma_get_local_addr", id.name) != nil {
		return netip.AddrPort{}
	}
	defer id.done()
	return addrPort(librdmacm.GetLocalAddr(id.c))
}

// PeerAddr is the other side's address, once it is known.
//
// C: rdma_get_peer_addr, rdma_get_dst_port
//
// Man: rdma_get_peer_addr(3), rdma_get_dst_port(3)
func (id *ID) PeerAddr() netip.AddrPort {
	if id.use("rdma_get_peer_addr", id.name) != nil {
		return netip.AddrPort{}
	}
	defer id.done()
	return addrPort(librdmacm.GetPeerAddr(id.c))
}

// LocalIBAddr is the ID's own address of AF_IB, and whether it has one.
//
// C: rdma_get_local_addr, rdma_get_src_port
//
// Man: rdma_get_local_addr(3), rdma_get_src_port(3)
func (id *ID) LocalIBAddr() (a IBAddr, ok bool) {
	if id.use("rdma_get_local_addr", id.name) != nil {
		return a, false
	}
	defer id.done()
	return ibAddr(librdmacm.GetLocalAddr(id.c))
}

// PeerIBAddr is the other side's address of AF_IB, and whether it is known.
//
// C: rdma_get_peer_addr, rdma_get_dst_port
//
// Man: rdma_get_peer_addr(3), rdma_get_dst_port(3)
func (id *ID) PeerIBAddr() (a IBAddr, ok bool) {
	if id.use("rdma_get_peer_addr", id.name) != nil {
		return a, false
	}
	defer id.done()
	return ibAddr(librdmacm.GetPeerAddr(id.c))
}

// PortNum is the port of the device, once the ID has one.
func (id *ID) PortNum() uint8 {
	if id.use("PortNum", id.name) != nil {
		return 0
	}
	defer id.done()
	return id.c.PortNum
}

// Device is the device that the ID is on, once it is bound to one. It belongs to all IDs that are on it: see the package's documentation.
func (id *ID) Device() (*rdma.Device, error) {
	s, err := id.share()
	if err != nil {
		return nil, id.failed("Device", err)
	}
	return s.device, nil
}

// PD is a protection domain that all IDs on the device share.
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
		return nil, verberr.Invalid("", "", "it has no device yet: bind it to an address of a device, or resolve an address first")
	}
	s, err := shareDevice(c)
	if err == nil {
		id.shared = s
	}
	return s, err
}

// call does something of C's that does not wait.
func (id *ID) call(verb string, do func() error, reasons ...because) error {
	if err := id.use(verb, id.name); err != nil {
		return err
	}
	defer id.done()
	return id.failed(verb, id.still(do), reasons...)
}

// still calls C while the ID stays on its channel, and keeps its queues.
func (id *ID) still(do func() error) error {
	id.record.RLock()
	defer id.record.RUnlock()
	return do()
}

// alter calls C to give the ID queues, or to take them: nobody else is in C with it meanwhile, nor takes events of its channel.
func (id *ID) alter(do func() error) error {
	id.record.Lock()
	defer id.record.Unlock()
	defer id.lockCalls().Unlock()
	return do()
}

// lockCalls takes the lock of the ID's channel for calls, and gives it. The caller holds record.
func (id *ID) lockCalls() *sync.Mutex {
	id.mu.Lock()
	ch := id.channel
	id.mu.Unlock()
	ch.calls.Lock()
	return &ch.calls
}

// Close destroys the ID, with the queue pair, the shared receive queue and the completion queues that it made. A connection is disconnected
// without a word to those who wait; a request that was not accepted is rejected. Who waits for events of a synchronous ID is woken.
//
// While others need something of that, or of the domain and the device that go with the last ID on it (a memory region of RegMsgs, say), Close
// has done nothing, and says who: errors.Is finds rdma.ErrInUse.
//
// Where C refuses to destroy one of the objects, for what package rdma knows nothing of, those before it are gone for good, and so are multicast
// groups and requests that nobody was given: the error names them all. The ID lives on without them. It is bound or connected as before, QP and SRQ
// give nil for what is gone, CreateQP makes another one, and Close tries the rest again.
//
// C: rdma_destroy_id, rdma_destroy_ep
//
// Man: rdma_destroy_id(3), rdma_destroy_ep(3)
func (id *ID) Close() error {
	if err := id.needed(); err != nil { // before anybody is woken
		return err
	}
	return id.life.Close()
}

// needed is why the ID cannot be closed, or nil.
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

// channelNeeded is why the event channel of a synchronous ID, which goes with it, cannot be closed, or nil. Requests that nobody was given go, too.
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

// requests says whether an event is a request to the ID.
func (id *ID) requests(e Event) bool {
	return e.Type == rdmacm.CM_EVENT_CONNECT_REQUEST && e.Listener == id
}

// destroy closes everything, once nobody needs it any more and nobody can, and says whether C has the ID no longer.
func (id *ID) destroy() (gone bool, err error) {
	if err := id.channelNeeded(); err != nil { // by what came in the meantime
		return false, err
	}
	var left farewell
	err = id.shared.release(func(last ...rdma.Object) error {
		id.changes.Lock()
		defer id.changes.Unlock()
		err := rdma.CloseAll(func() error { return id.leaveAll(&left) }, append(id.objects.all(), last...)...)
		if err != nil {
			id.objects.forget(id.c)
		}
		return err
	})
	if err != nil {
		return false, left.explain(err)
	}
	id.changes.Lock()
	id.objects = objects{}
	id.changes.Unlock()
	id.mu.Lock()
	id.shared = nil
	id.mu.Unlock()
	if err := id.verbs.close(); err != nil {
		return false, verberr.Explain("", "ID", "its objects are closed", err)
	}
	ch := id.channel
	ch.calls.Lock()
	known.Delete(uintptr(unsafe.Pointer(id.c))) // before: then the address may be another's at once
	if err := librdmacm.DestroyID(id.c); err != nil {
		known.Store(uintptr(unsafe.Pointer(id.c)), id)
		ch.calls.Unlock()
		return false, verberr.Explain("rdma_destroy_id", "ID", "its objects are closed", err)
	}
	ch.forget(id)
	ch.calls.Unlock()
	if id.sync {
		return true, ch.Close()
	}
	return true, nil
}

// farewell counts what leaveAll has ended, which nothing brings back.
type farewell struct{ groups, requests int }

// explain adds to an error of closing that came afterwards what had been ended.
func (f farewell) explain(err error) error {
	if f == (farewell{}) {
		return err
	}
	return fmt.Errorf("%w (by then %d multicast groups were left, and %d requests rejected)", err, f.groups, f.requests)
}

// leaveAll leaves all multicast groups, and closes the IDs of requests that nobody has been given.
func (id *ID) leaveAll(left *farewell) error {
	if err := id.leaveGroups(&left.groups); err != nil {
		return verberr.Wrap("rdma_leave_multicast", "ID", err)
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
			back(e) // nobody else knows of it
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
