// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"errors"
	"math"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/registration"
	"github.com/goverbs/goverbs/rdma/stream/internal/protocol"
)

// Sizes of objects shared by the streams of a device.
const (
	firstEntries = 254 // initial size of a poller's queue; with the two that rdma adds, a power of two
	maxEntries   = 1<<15 - 2
	keptMemory   = 32 << 20 // maximum memory kept from closed streams, in bytes
	keptLent     = 64 << 20 // maximum lent memory that stays registered, in bytes
)

// shared has the objects that a device's streams share. It exists while the device has a connection or a listener.
type shared struct {
	device *rdma.Device
	pd     *rdma.PD
	pool   protocol.Pool
	users  int // guarded by devices.mu

	mu    sync.Mutex // guards the fields below
	all   map[waitPolicy][]*poller
	cache *registration.Cache // registrations of lent memory, or nil
	relay []*rdma.Buffer      // free buffers for ReadFrom
	reads *protocol.Reads     // cached result of mostReads, or nil
}

// devices holds the shared objects by device. The IDs of a device share one rdma.Device.
var devices struct {
	mu sync.Mutex
	of map[*rdma.Device]*shared
}

// share returns the shared objects of an ID's device. The caller must call leave before it closes the ID.
func share(id *cm.ID) (*shared, error) {
	device, err := id.Device()
	if err != nil {
		return nil, err
	}
	pd, err := id.PD()
	if err != nil {
		return nil, err
	}
	devices.mu.Lock()
	defer devices.mu.Unlock()
	s := devices.of[device]
	if s == nil {
		s = &shared{device: device, pd: pd, pool: protocol.Pool{Most: keptMemory}}
		if devices.of == nil {
			devices.of = map[*rdma.Device]*shared{}
		}
		devices.of[device] = s
	}
	s.users++
	return s, nil
}

// leave removes a user and closes everything after the last. s may be nil.
func (s *shared) leave() error {
	if s == nil {
		return nil
	}
	devices.mu.Lock()
	s.users--
	last := s.users == 0
	if last {
		delete(devices.of, s.device) // the next user creates new objects
	}
	devices.mu.Unlock()
	if !last {
		return nil
	}
	return s.close()
}

// maxReads returns the device's maximum numbers of outstanding RDMA READs per queue pair, or 0 if unknown. They do not
// change, so they are cached.
func (s *shared) maxReads() protocol.Reads {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reads != nil {
		return *s.reads
	}
	attr, err := s.device.Query()
	if err != nil {
		return protocol.Reads{}
	}
	number := func(n int32) uint8 { return uint8(min(max(n, 0), math.MaxUint8)) }
	s.reads = &protocol.Reads{Ours: number(attr.MaxQPInitRdAtom), Theirs: number(attr.MaxQPRdAtom)}
	return *s.reads
}

// poller returns a poller with room for a number of completions. The caller must call leavePoller.
func (s *shared) poller(entries int, by waitPolicy) (*poller, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := firstEntries
	for _, p := range s.all[by] {
		if p.failure() == nil && p.grow(p.reserved+entries) {
			p.reserved += entries
			return p, nil
		}
		size = max(size, min(2*p.cq.Len()+2, maxEntries))
	}
	if attr, err := s.device.Query(); err == nil {
		size = min(size, max(int(attr.MaxCQE)-2, entries))
	}
	var p *poller
	var err error
	if made.Shared(func() { p, err = newPoller(s.device, max(size, entries), by) }); err != nil {
		return nil, err
	}
	if s.all == nil {
		s.all = map[waitPolicy][]*poller{}
	}
	s.all[by] = append(s.all[by], p)
	p.reserved = entries
	return p, nil
}

// leavePoller releases the room and closes a poller without streams, unless it is the only one.
func (s *shared) leavePoller(p *poller, entries int, by waitPolicy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all[by]
	if p.reserved -= entries; p.reserved > 0 || len(all) == 1 && p.failure() == nil {
		return nil
	}
	if err := p.close(); err != nil {
		return err
	}
	s.all[by] = slices.DeleteFunc(all, func(other *poller) bool { return other == p })
	return nil
}

// lent returns the registration cache for lent memory.
func (s *shared) lent() (_ *registration.Cache, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache == nil {
		s.cache, err = registration.NewCache(s.pd, registration.Options{Bytes: keptLent})
	}
	return s.cache, err
}

// close closes the shared objects, which have no users.
func (s *shared) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.cache != nil {
		err = s.cache.Close()
	}
	all := s.pool.Objects()
	for _, some := range s.all {
		for _, p := range some {
			all = append(all, p.cq, p.channel)
		}
	}
	err = errors.Join(err, rdma.CloseAll(nil, all...), s.pool.Close())
	for _, b := range s.relay {
		err = errors.Join(err, b.Close())
	}
	return err
}

// waitPolicy returns how to wait for the connection's completions. For LearnedBusyPoll, the connection polls instead.
func (c *Conn) waitPolicy() waitPolicy {
	return waitPolicy{max(c.config.BusyPoll, 0), c.config.KeepThread}
}

// share sets the connection's shared objects.
func (c *Conn) share() (err error) {
	if c.shared, err = share(c.id.ID); err != nil {
		return err
	}
	if c.poller, err = c.shared.poller(protocol.Entries(c.protocol, c.shared.device), c.waitPolicy()); err != nil {
		return err
	}
	c.key = c.poller.add(c)
	return c.poller.failure()
}

// unshare releases the shared objects. The queue pair is gone, unless closing it failed.
func (c *Conn) unshare() error {
	var err error
	if c.poller != nil {
		c.poller.remove(c.key)
		err = c.shared.leavePoller(c.poller, protocol.Entries(c.protocol, c.shared.device), c.waitPolicy())
	}
	return errors.Join(err, c.shared.leave())
}
