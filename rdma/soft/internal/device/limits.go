// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
)

// limits are the maximum numbers of objects of a device, as ibv_query_device reports them. Creating one more fails with
// ENOMEM.
type limits struct {
	pd, mr, mw, cq, qp, srq, ah int
}

// defaultLimits: every region and every window has a separate place in the 24 bits of a key, of which the first stays
// empty.
var defaultLimits = limits{pd: 1 << 16, mr: maxMRs, mw: maxMWs, cq: 1 << 16, qp: numbers.Most - maxSRQs,
	srq: maxSRQs, ah: 1 << 20}

const mostGroups = 1 << 13 // of multicast

const (
	keyPlaces = 1 << 24
	maxMRs    = keyPlaces / 2
	maxMWs    = keyPlaces - 1 - maxMRs
)

// of returns the count or limit for the record's kind of object, or nil if there is none.
func (l *limits) of(record any) *int {
	switch record.(type) {
	case *ibv.PD:
		return &l.pd
	case *ibv.MR:
		return &l.mr
	case *ibv.MW:
		return &l.mw
	case *cqRecord:
		return &l.cq
	case *qpRecord:
		return &l.qp
	case *srqRecord:
		return &l.srq
	case *ibv.AH:
		return &l.ah
	}
	return nil
}

// full reports whether a device has the maximum number of objects of the record's kind.
func (d *device) full(record any) bool {
	most := d.limits.of(record)
	if most == nil {
		return false
	}
	all.mu.RLock()
	defer all.mu.RUnlock()
	return *d.has.of(record) >= *most
}

// count keeps how many objects a device has, and where those of traced fabrics were made. The caller holds host.mu.
func count(record, object any, change int) {
	if change < 0 {
		delete(all.made, object)
	} else if _, of := kindOf(object); of != nil && of.traced {
		all.made[object] = made.Here()
	}
	if _, handle := object.(*openedQP); handle {
		return
	}
	if o, ok := object.(interface{ owned() *device }); ok {
		if n := o.owned().has.of(record); n != nil {
			*n += change
		}
	}
}

// owned returns the device that owns the context's objects.
func (c *context) owned() *device { return c.device }

// Resource is an object that programs hold, for Fabric.Resources. Without a fabric it does not count.
type Resource interface {
	Resource() (kind string, of *Engine)
}

func (c *context) Resource() (string, *Engine) {
	if c.kept.Load() {
		return "", nil
	}
	return "ctx", c.fabric()
}

func (c *closedContext) Resource() (string, *Engine) { return "ctx", c.fabric() }
func (s *stale) Resource() (string, *Engine)         { return s.kind, s.fabric() }
func (o *pd) Resource() (string, *Engine)            { return "pd", o.fabric() }
func (o *region) Resource() (string, *Engine)        { return "mr", o.fabric() }
func (o *importedMR) Resource() (string, *Engine)    { return "mr", o.fabric() }
func (o *mw) Resource() (string, *Engine)            { return "mw", o.fabric() }
func (o *cq) Resource() (string, *Engine)            { return "cq", o.fabric() }
func (o *qp) Resource() (string, *Engine)            { return "qp", o.fabric() }
func (o *openedQP) Resource() (string, *Engine)      { return "qp", o.fabric() }
func (o *srq) Resource() (string, *Engine)           { return "srq", o.fabric() }
func (o *ah) Resource() (string, *Engine)            { return "ah", o.fabric() }
func (o *dm) Resource() (string, *Engine)            { return "dm", o.fabric() }
func (o *buf) Resource() (string, *Engine)           { return "buf", o.fabric() }
func (o *xrcd) Resource() (string, *Engine)          { return "xrcd", o.fabric() }
func (o *td) Resource() (string, *Engine)            { return "td", o.fabric() }
func (o *dmah) Resource() (string, *Engine)          { return "dmah", o.fabric() }
func (o *channel) Resource() (string, *Engine)       { return "channel", o.fabric() }

func kindOf(object any) (kind string, of *Engine) {
	if r, ok := object.(Resource); ok {
		return r.Resource()
	}
	return "", nil
}
