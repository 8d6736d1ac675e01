// SPDX-License-Identifier: BSD-2-Clause

// Package places shares the places of a server among the hosts of its clients, so that one host cannot take them all.
package places

import (
	"context"
	"errors"
	"net/netip"
	"sync"
)

// mostWaiting limits the clients that wait for a place, of all hosts together. One host gets three quarters.
const mostWaiting = 2048

// ErrFull is the error of Take if too many clients wait already.
var ErrFull = errors.New("too many clients wait for a place")

// Places limits how many clients are served at once.
type Places struct {
	places chan struct{} // a token for each place that is taken
	share  int           // places of one host

	mu    sync.Mutex // guards what follows
	users int
	hosts map[netip.Addr]*host
}

type host struct {
	places chan struct{} // tokens, as in Places
	users  int           // clients that have a place, or wait for one
}

// New returns n places. One host gets at most three quarters of them.
func New(n int) *Places {
	return &Places{places: make(chan struct{}, n), share: share(n), hosts: map[netip.Addr]*host{}}
}

func share(n int) int { return n - n/4 }

// Take takes a place for a client of a host, and waits for one until ctx ends. The error is that of ctx, or ErrFull.
// The zero Addr is a host as well.
func (p *Places) Take(ctx context.Context, at netip.Addr) error {
	h := p.enter(at)
	if h == nil {
		return ErrFull
	}
	select {
	case h.places <- struct{}{}:
		select {
		case p.places <- struct{}{}:
			return nil
		case <-ctx.Done():
			<-h.places
		}
	case <-ctx.Done():
	}
	p.leave(at)
	return ctx.Err()
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

// Give gives a place back that Take took for a client of the host.
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
		h = &host{places: make(chan struct{}, p.share)}
	}
	if p.users == cap(p.places)+mostWaiting || h.users == p.share+share(mostWaiting) {
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
