// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"errors"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/made"
)

// shape describes the memory of a connection. Connections with the same shape may use it in succession.
type shape struct {
	there  int // bytes that the peer writes into
	staged int // bytes of staging for sends
	recvs  int
	sges   int             // entries of a receive
	access ibv.AccessFlags // of all regions: ACCESS_ON_DEMAND or none
}

func (s shape) bytes() int { return s.there + s.staged }

// memory is a connection's memory.
type memory struct {
	shape   shape
	there   *rdma.Buffer // the peer writes into it
	staged  *rdma.Buffer
	thereMR *rdma.MR // not reused by the next connection, because the peer knows its key
	mr      *rdma.MR // of staged; created for the first send that is not inline
	exposed *rdma.MR // of staged, for the peer to read, or nil
	sends   *rdma.SendBatch
	recvs   *rdma.RecvBatch

	mu    sync.Mutex // guards the fields below
	held  int        // number of Holds on there
	alone bool       // everything but there is closed
}

// Hold is memory that a program reads in place.
type Hold struct{ m *memory }

// Hold keeps the memory that the peer writes into mapped, even after Close.
func (l *Link) Hold() Hold {
	m := l.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held++
	return Hold{m}
}

// Release ends the hold.
func (h Hold) Release() {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held--; m.held == 0 && m.alone {
		_ = m.there.Close() // its region is already closed
	}
}

// leave closes everything but the memory that the peer writes into, which the last Release closes. It reports whether
// that memory is held; otherwise it does nothing.
func (m *memory) leave() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held == 0 {
		return false, nil
	}
	m.alone = true
	there := m.there
	m.there = nil
	err := m.close()
	m.there = there
	return true, err
}

// Pool keeps the memory of closed connections of one domain for later ones. Send memory stays registered. Memory that
// peers write into is registered again, because the former peer has the key, and is cleared, because otherwise the next
// peer could make the program read it.
type Pool struct {
	Most int // bytes that are kept

	mu    sync.Mutex // guards what follows
	kept  map[shape][]*memory
	bytes int
}

// get returns memory, of a closed connection if there is one with the same shape.
func (p *Pool) get(pd *rdma.PD, of shape) (*memory, error) {
	m := p.take(of)
	if m == nil {
		m = &memory{shape: of}
		if err := m.make(); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	var err error
	if m.thereMR, err = pd.RegBuffer(m.there,
		ibv.ACCESS_LOCAL_WRITE|ibv.ACCESS_REMOTE_WRITE|of.access); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (p *Pool) take(of shape) *memory {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.kept[of]
	if len(all) == 0 {
		return nil
	}
	m := all[len(all)-1]
	p.kept[of] = all[:len(all)-1]
	p.bytes -= of.bytes()
	return m
}

// put takes over the memory of a connection whose queue pair is gone.
func (p *Pool) put(m *memory) error {
	if err := m.thereMR.Close(); err != nil {
		return errors.Join(err, m.close())
	}
	m.thereMR = nil
	if m.exposed != nil {
		if err := m.exposed.Close(); err != nil {
			return errors.Join(err, m.close())
		}
		m.exposed = nil
	}
	if m.shape.bytes() > p.Most {
		return m.close()
	}
	clear(m.there.Bytes())
	m.sends.Reset()
	m.recvs.Reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes+m.shape.bytes() > p.Most {
		return m.close()
	}
	if p.kept == nil {
		p.kept = map[shape][]*memory{}
	}
	p.kept[m.shape] = append(p.kept[m.shape], m)
	p.bytes += m.shape.bytes()
	return nil
}

// Objects are the kept objects of the domain, which is closed together with them.
func (p *Pool) Objects() (all []rdma.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, some := range p.kept {
		for _, m := range some {
			if m.mr != nil {
				all = append(all, m.mr)
			}
		}
	}
	return all
}

// Close releases the kept memory.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	for _, some := range p.kept {
		for _, m := range some {
			err = errors.Join(err, m.close())
		}
	}
	p.kept, p.bytes = nil, 0
	return err
}

func (m *memory) make() (err error) {
	if m.there, err = rdma.NewBuffer(m.shape.there, rdma.MapOptions{}); err != nil {
		return err
	}
	if m.staged, err = rdma.NewBuffer(m.shape.staged, rdma.MapOptions{}); err != nil {
		return err
	}
	if m.sends, err = rdma.NewSendBatch(2, 1, MaxInline); err != nil {
		return err
	}
	m.recvs, err = rdma.NewRecvBatch(m.shape.recvs, m.shape.sges)
	return err
}

// region returns the registered memory of sends. Small messages need none.
func (m *memory) region(pd *rdma.PD) (rdma.Region, error) {
	if m.mr == nil {
		var err error
		// it may outlive the connection that creates it
		made.Shared(func() { m.mr, err = pd.RegBuffer(m.staged, ibv.ACCESS_LOCAL_WRITE|m.shape.access) })
		if err != nil {
			return rdma.Region{}, err
		}
	}
	return m.mr.Region(), nil
}

func (m *memory) close() error {
	var all []error
	for _, mr := range []*rdma.MR{m.thereMR, m.exposed, m.mr} {
		if mr != nil {
			all = append(all, mr.Close())
		}
	}
	for _, b := range []*rdma.Buffer{m.there, m.staged} {
		if b != nil {
			all = append(all, b.Close())
		}
	}
	if m.sends != nil {
		all = append(all, m.sends.Close())
	}
	if m.recvs != nil {
		all = append(all, m.recvs.Close())
	}
	return errors.Join(all...)
}
