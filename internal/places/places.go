// SPDX-License-Identifier: BSD-2-Clause

// Package places divides the capacity of a server among client addresses, so that one address cannot use all of it. A
// host with several addresses counts several times.
package places

import (
	"context"
	"net/netip"
	"sync"
)

// Waiting is the usual limit of waiting clients if they use little memory.
const Waiting = 2048

// Places limits the number of clients served at once.
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

// New returns n places and a queue of waiting clients. One host gets at most three quarters of both.
func New(n, waiting int) *Places {
	return &Places{places: make(chan struct{}, n), waiting: waiting, hosts: map[netip.Addr]*host{}}
}

func share(n int) int { return n - n/4 }

// Go runs serve in a goroutine once a place is free for a client of a host, and frees the place when serve returns. If
// ctx ends first, or too many clients wait, Go runs drop in that goroutine. The zero Addr is a valid host.
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

// take waits for a place until ctx ends, and reports whether it got one.
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

// Give frees a place that TryTake took for a client of the host.
func (p *Places) Give(at netip.Addr) {
	p.mu.Lock()
	h := p.hosts[at]
	p.mu.Unlock()
	<-p.places
	<-h.places
	p.leave(at)
}

// Taken returns the number of places in use.
func (p *Places) Taken() int { return len(p.places) }

// enter counts a client of a host. It returns nil if the host has too many.
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
