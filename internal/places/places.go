// SPDX-License-Identifier: BSD-2-Clause

// Package places divides a server's capacity among client addresses, so that one address cannot occupy all of it. A
// host with several addresses counts several times.
package places

import (
	"context"
	"net/netip"
	"sync"
)

// Waiting is a suitable limit of waiting clients that use little memory.
const Waiting = 2048

// Places limits the number of clients that are served concurrently.
type Places struct {
	places  chan struct{} // contains a token for each occupied place
	waiting int           // maximum number of waiting clients
	served  sync.WaitGroup

	mu sync.Mutex // guards the fields below
	// +checklocks:mu
	users int
	// +checklocks:mu
	hosts map[netip.Addr]*host
}

type host struct {
	places chan struct{} // as in Places
	users  int           // clients that have a place or wait for one
}

// New returns Places with n places and a queue for waiting clients. One host gets at most three quarters of both.
func New(n, waiting int) *Places {
	return &Places{places: make(chan struct{}, n), waiting: waiting, hosts: map[netip.Addr]*host{}}
}

func share(n int) int { return n - n/4 }

// Go calls serve in a goroutine when a place is free for a client of host at, and frees the place when serve returns.
// If ctx ends first, or too many clients wait, it calls drop in that goroutine instead. The zero Addr is a valid host.
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

// take waits for a place, and returns false if ctx ends first or too many clients wait.
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

// TryTake occupies a place for a client of a host and reports whether one was free.
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

// Give frees a place of a host that TryTake has occupied.
func (p *Places) Give(at netip.Addr) {
	p.mu.Lock()
	h := p.hosts[at]
	p.mu.Unlock()
	<-p.places
	<-h.places
	p.leave(at)
}

// Taken returns the number of occupied places.
func (p *Places) Taken() int { return len(p.places) }

// enter counts a client of a host. It returns nil if the host has too many clients.
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
