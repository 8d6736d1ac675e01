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

func kindOf(object any) (kind string, of *Engine) {
	switch o := object.(type) {
	case *context:
		if o.kept.Load() {
			return "", nil
		}
		return "ctx", o.fabric()
	case *closedContext:
		return "ctx", o.fabric()
	case *pd:
		return "pd", o.fabric()
	case *region:
		return "mr", o.fabric()
	case *importedMR:
		return "mr", o.fabric()
	case *stale:
		return o.kind, o.fabric()
	case *mw:
		return "mw", o.fabric()
	case *cq:
		return "cq", o.fabric()
	case *qp:
		return "qp", o.fabric()
	case *openedQP:
		return "qp", o.fabric()
	case *srq:
		return "srq", o.fabric()
	case *ah:
		return "ah", o.fabric()
	case *dm:
		return "dm", o.fabric()
	case *buf:
		return "buf", o.fabric()
	case *xrcd:
		return "xrcd", o.fabric()
	case *td:
		return "td", o.fabric()
	case *dmah:
		return "dmah", o.fabric()
	case *channel:
		return "channel", o.fabric()
	case Managed:
		return o.Resource()
	}
	return "", nil
}
