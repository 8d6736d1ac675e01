// SPDX-License-Identifier: BSD-2-Clause

// Package places shares the places of a server among the addresses of its clients, so that one address cannot take them
// all. A host with many addresses counts as many.
package places

import (
	"context"
	"net/netip"
	"sync"
)

// Waiting is the usual number of clients that may wait for a place, if those that wait take little memory.
const Waiting = 2048

// Places limits how many clients are served at once.
type Places struct {
	places  chan struct{} // a token for each place that is taken
	waiting int           // clients that may wait
	served  sync.WaitGroup

	mu sync.Mutex // guards what follows
	// +checklocks:mu
	users int
	// +checklocks:mu
	hosts map[netip.Addr]*host
}

type host struct {
	places chan struct{} // tokens, as in Places
	users  int           // clients that have a place, or wait for one
}

// New returns n places, for which a number of clients may wait. One host gets at most three quarters of both.
func New(n, waiting int) *Places {
	return &Places{places: make(chan struct{}, n), waiting: waiting, hosts: map[netip.Addr]*host{}}
}

func share(n int) int { return n - n/4 }

// Go runs serve in a goroutine once there is a place for a client of a host; the client has it until serve returns. If
// ctx ends before, or too many clients wait, Go runs drop in that goroutine. The zero Addr is a host as well.
func (p *Places) Go(ctx context.Context, at netip.Addr, serve, drop func()) {
	p.served.Go(func() {
		if !p.take(ctx, at) {
			drop()
			return
		}
		defer p.Give(at)
		serve()
	})
}

// Wait waits until all goroutines of Go have returned.
func (p *Places) Wait() { p.served.Wait() }

// take takes a place, and waits for one until ctx ends. It reports whether it did.
func (p *Places) take(ctx context.Context, at netip.Addr) bool {
	h := p.enter(at)
	if h == nil {
		return false
	}
	select {
	case h.places <- struct{}{}:
		select {
		case p.places <- struct{}{}:
			return true
		case <-ctx.Done():
			<-h.places
		}
	case <-ctx.Done():
	}
	p.leave(at)
	return false
}

// TryTake takes a place for a client of a host if one is free, and reports whether it did.
func (p *Places) TryTake(at netip.Addr) bool {
	h := p.enter(at)
	if h == nil {
		return false
	}
	select {
	case h.places <- struct{}{}:
		select {
		case p.places <- struct{}{}:
			return true
		default:
			<-h.places
		}
	default:
	}
	p.leave(at)
	return false
}

// Give gives a place back that TryTake took for a client of the host.
func (p *Places) Give(at netip.Addr) {
	p.mu.Lock()
	h := p.hosts[at]
	p.mu.Unlock()
	<-p.places
	<-h.places
	p.leave(at)
}

// Taken returns how many places are taken.
func (p *Places) Taken() int { return len(p.places) }

// enter counts a client of a host. It returns nil if too many are there.
func (p *Places) enter(at netip.Addr) *host {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[at]
	if h == nil {
		h = &host{places: make(chan struct{}, share(cap(p.places)))}
	}
	if p.users == cap(p.places)+p.waiting || h.users == cap(h.places)+share(p.waiting) {
		return nil
	}
	p.users++
	h.users++
	p.hosts[at] = h
	return h
}

func (p *Places) leave(at netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[at]
	p.users--
	if h.users--; h.users == 0 {
		delete(p.hosts, at)
	}
}
