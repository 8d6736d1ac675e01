// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/cm/internal/protocol"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/registration"
)

// Sizes of what the streams of a device share.
const (
	firstEntries = 254 // of a reactor's queue; with the two that rdma adds, it is a power of two
	mostEntries  = 1<<15 - 2
	keptMemory   = 32 << 20 // bytes of closed streams
	keptLent     = 64 << 20 // bytes that were lent, and stay registered
)

// streaming is what the streams of a device share. It lasts as long as an ID is on the device: a stream's, or a
// listener's that is bound to it.
type streaming struct {
	pool protocol.Pool

	mu    sync.Mutex // guards what follows
	all   map[waitsBy][]*reactor
	cache *registration.Cache // of memory that programs lend, or nil
	relay []*rdma.Buffer      // of ReadFrom, for the next
}

// reactor returns a reactor with room for a number of completions. Give it back with leave.
func (s *streaming) reactor(d *rdma.Device, entries int, by waitsBy) (*reactor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := firstEntries
	for _, r := range s.all[by] {
		if r.failure() == nil && r.grow(r.taken+entries) {
			r.taken += entries
			return r, nil
		}
		size = max(size, min(2*r.cq.Len()+2, mostEntries))
	}
	if attr, err := d.Query(); err == nil {
		size = min(size, max(int(attr.MaxCQE)-2, entries))
	}
	var r *reactor
	var err error
	if made.Shared(func() { r, err = newReactor(d, max(size, entries), by) }); err != nil {
		return nil, err
	}
	if s.all == nil {
		s.all = map[waitsBy][]*reactor{}
	}
	s.all[by] = append(s.all[by], r)
	r.taken = entries
	return r, nil
}

// grow makes room for a number of completions, and reports whether there is. Not every device can.
func (r *reactor) grow(entries int) bool {
	now := r.cq.Len()
	if entries <= now {
		return true
	}
	return entries <= mostEntries && r.cq.Resize(max(entries, min(2*now+2, mostEntries))) == nil
}

// leave gives room back. A reactor without streams is kept if it is the only one.
func (s *streaming) leave(r *reactor, entries int, by waitsBy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all[by]
	if r.taken -= entries; r.taken > 0 || len(all) == 1 && r.failure() == nil {
		return nil
	}
	if err := r.close(); err != nil {
		return err
	}
	s.all[by] = slices.DeleteFunc(all, func(other *reactor) bool { return other == r })
	return nil
}

func (r *reactor) close() error { return rdma.CloseAll(nil, r.cq, r.channel) }

// lent is the cache of memory that programs lend.
func (s *streaming) lent(pd *rdma.PD) (_ *registration.Cache, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache == nil {
		s.cache, err = registration.NewCache(pd, registration.Options{Bytes: keptLent})
	}
	return s.cache, err
}

// forgetLent deregisters what was lent, before the domain is closed.
func (s *streaming) forgetLent() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cache == nil {
		return nil
	}
	err := s.cache.Close()
	if err == nil {
		s.cache = nil
	}
	return err
}

// objects are the shared objects, which are closed with the device.
func (s *streaming) objects() []rdma.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.pool.Objects()
	for _, some := range s.all {
		for _, r := range some {
			all = append(all, r.cq, r.channel)
		}
	}
	return all
}

// close gives back the rest, after the objects are closed.
func (s *streaming) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []error{s.pool.Close()}
	for _, b := range s.relay {
		all = append(all, b.Close())
	}
	s.relay = nil
	return errors.Join(all...)
}

// waitsBy is how the queue of the connection's completions is waited for. What a connection learns, it polls itself.
func (c *Conn) waitsBy() waitsBy { return waitsBy{max(c.config.BusyPoll, 0), c.config.KeepThread} }

// shareStream gives a stream what it shares with others of its device, which it returns.
func (c *Conn) shareStream() (*sharedDevice, error) {
	s, err := c.id.share()
	if err != nil {
		return nil, err
	}
	if c.reactor, err = s.streams.reactor(s.device, protocol.Entries(c.protocol), c.waitsBy()); err != nil {
		return nil, err
	}
	c.shared = &s.streams
	c.key = c.reactor.add(c)
	return s, c.reactor.failure()
}

// unshareStream gives it back. The queue pair is gone, unless there is an error that says so.
func (c *Conn) unshareStream() error {
	if c.shared == nil {
		return nil
	}
	c.reactor.remove(c.key)
	return c.shared.leave(c.reactor, protocol.Entries(c.protocol), c.waitsBy())
}
