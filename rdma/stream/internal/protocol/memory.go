// SPDX-License-Identifier: BSD-2-Clause

package protocol

import (
	"errors"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/internal/made"
)

// shape is the layout of a connection's memory. Memory is reused by connections with the same shape.
type shape struct {
	inbound int // bytes that the peer writes into
	staged  int // bytes of staging
	recvs   int
	sges    int             // scatter/gather entries per receive
	access  ibv.AccessFlags // of all regions: ACCESS_ON_DEMAND or 0
}

func (s shape) bytes() int { return s.inbound + s.staged }

// memory is a connection's memory.
type memory struct {
	shape     shape
	inbound   *rdma.Buffer // written by the peer
	staged    *rdma.Buffer
	inboundMR *rdma.MR // not reused, because the peer knows its key
	mr        *rdma.MR // of staged; created for the first send that is not inline
	exposed   *rdma.MR // of staged, for reads by the peer; or nil
	sends     *rdma.SendBatch
	recvs     *rdma.RecvBatch

	mu          sync.Mutex // guards the fields below
	held        int        // number of Holds on inbound
	onlyInbound bool       // everything except inbound is closed
}

// Hold keeps memory valid that a program reads in place.
type Hold struct{ m *memory }

// Hold keeps the memory that the peer writes into mapped, even after Close, until Release.
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
	if m.held--; m.held == 0 && m.onlyInbound {
		_ = m.inbound.Close() // its region is already closed
	}
}

// leave closes everything except inbound, which the last Release closes. It reports whether inbound is held; if
// not, it does nothing.
func (m *memory) leave() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held == 0 {
		return false, nil
	}
	m.onlyInbound = true
	inbound := m.inbound
	m.inbound = nil
	err := m.close()
	m.inbound = inbound
	return true, err
}

// Pool keeps the memory of closed connections in one protection domain for later ones. Staging stays registered. Memory
// that peers write into is registered again, because the former peer knows the key, and cleared, because otherwise the
// next peer could make the program read the old data.
type Pool struct {
	Most int // maximum bytes kept

	mu    sync.Mutex // guards the fields below
	kept  map[shape][]*memory
	bytes int
}

// get returns memory of a shape: that of a closed connection, or new memory.
func (p *Pool) get(pd *rdma.PD, of shape) (*memory, error) {
	m := p.take(of)
	if m == nil {
		m = &memory{shape: of}
		if err := m.make(); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	var err error
	if m.inboundMR, err = pd.RegBuffer(m.inbound,
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

// put adds the memory of a connection whose queue pair is gone.
func (p *Pool) put(m *memory) error {
	if err := m.inboundMR.Close(); err != nil {
		return errors.Join(err, m.close())
	}
	m.inboundMR = nil
	if m.exposed != nil {
		if err := m.exposed.Close(); err != nil {
			return errors.Join(err, m.close())
		}
		m.exposed = nil
	}
	if m.shape.bytes() > p.Most {
		return m.close()
	}
	clear(m.inbound.Bytes())
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

// Objects returns the kept objects, which must be closed together with the domain.
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
	if m.inbound, err = rdma.NewBuffer(m.shape.inbound, rdma.MapOptions{}); err != nil {
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

// region returns the registered region for sends. The first call registers it, because connections with only inline
// sends do not need it.
func (m *memory) region(pd *rdma.PD) (rdma.Region, error) {
	if m.mr == nil {
		var err error
		// the region may outlive this connection
		made.Shared(func() { m.mr, err = pd.RegBuffer(m.staged, ibv.ACCESS_LOCAL_WRITE|m.shape.access) })
		if err != nil {
			return rdma.Region{}, err
		}
	}
	return m.mr.Region(), nil
}

func (m *memory) close() error {
	var all []error
	for _, mr := range []*rdma.MR{m.inboundMR, m.exposed, m.mr} {
		if mr != nil {
			all = append(all, mr.Close())
		}
	}
	for _, b := range []*rdma.Buffer{m.inbound, m.staged} {
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
