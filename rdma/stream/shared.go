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
	firstEntries = 254 // of a poller's queue; with the two that rdma adds, it is a power of two
	mostEntries  = 1<<15 - 2
	keptMemory   = 32 << 20 // bytes of closed streams
	keptLent     = 64 << 20 // lent bytes that stay registered
)

// shared has objects that the streams of a device share. It exists while the device has a connection or a listener.
type shared struct {
	device *rdma.Device
	pd     *rdma.PD
	pool   protocol.Pool
	users  int // guarded by devices.mu

	mu    sync.Mutex // guards the fields below
	all   map[waitPolicy][]*poller
	cache *registration.Cache // of lent memory, or nil
	relay []*rdma.Buffer      // free memory for ReadFrom
	reads *protocol.Reads     // of mostReads, or nil
}

// devices are the devices with streams. The IDs of a device share one rdma.Device.
var devices struct {
	mu sync.Mutex
	of map[*rdma.Device]*shared
}

// share returns the shared objects of an ID's device. Release them with leave before the ID is closed.
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

// leave closes everything after the last user. s may be nil.
func (s *shared) leave() error {
	if s == nil {
		return nil
	}
	devices.mu.Lock()
	s.users--
	last := s.users == 0
	if last {
		delete(devices.of, s.device) // later users create new objects
	}
	devices.mu.Unlock()
	if !last {
		return nil
	}
	return s.close()
}

// mostReads returns the device's maximum number of outstanding RDMA READs of a queue pair, which is constant, or 0 if
// it is unknown.
func (s *shared) mostReads() protocol.Reads {
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

// poller returns a poller with room for a number of completions. Release it with leavePoller.
func (s *shared) poller(entries int, by waitPolicy) (*poller, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := firstEntries
	for _, p := range s.all[by] {
		if p.failure() == nil && p.grow(p.reserved+entries) {
			p.reserved += entries
			return p, nil
		}
		size = max(size, min(2*p.cq.Len()+2, mostEntries))
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

// leavePoller releases room. A poller without streams is kept if it is the only one.
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

// lent returns the cache of lent memory.
func (s *shared) lent() (_ *registration.Cache, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache == nil {
		s.cache, err = registration.NewCache(s.pd, registration.Options{Bytes: keptLent})
	}
	return s.cache, err
}

// close closes the shared objects. They are no longer used.
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

// waitPolicy returns how to wait for the connection's completions. Learned polling happens in the connection.
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

// unshare releases the shared objects. The queue pair is gone, unless there was an error.
func (c *Conn) unshare() error {
	var err error
	if c.poller != nil {
		c.poller.remove(c.key)
		err = c.shared.leavePoller(c.poller, protocol.Entries(c.protocol, c.shared.device), c.waitPolicy())
	}
	return errors.Join(err, c.shared.leave())
}
