// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/made"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
	"github.com/goverbs/goverbs/rdma/soft/internal/numbers"
)

// Limits are the maximum numbers of objects of a device, as ibv_query_device reports them. Creating one more fails with
// ENOMEM.
type Limits struct {
	PD, MR, MW, CQ, QP, SRQ, AH int
}

// defaultLimits: every region and every window has a separate place in the 24 bits of a key, of which the first stays
// empty.
var defaultLimits = Limits{PD: 1 << 16, MR: maxMRs, MW: maxMWs, CQ: 1 << 16, QP: numbers.Most - maxSRQs,
	SRQ: maxSRQs, AH: 1 << 20}

const mostGroups = 1 << 13 // of multicast

const (
	keyPlaces = 1 << 24
	maxMRs    = keyPlaces / 2
	maxMWs    = keyPlaces - 1 - maxMRs
)

// of returns the count or limit for the record's kind of object, or nil if there is none.
func (l *Limits) of(record any) *int {
	switch record.(type) {
	case *ibv.PD:
		return &l.PD
	case *ibv.MR:
		return &l.MR
	case *ibv.MW:
		return &l.MW
	case *cqRecord:
		return &l.CQ
	case *qpRecord:
		return &l.QP
	case *srqRecord:
		return &l.SRQ
	case *ibv.AH:
		return &l.AH
	}
	return nil
}

// full reports whether a device has the maximum number of objects of the record's kind.
func (d *Device) full(record any) bool {
	most := d.Limits.of(record)
	if most == nil {
		return false
	}
	all.mu.RLock()
	defer all.mu.RUnlock()
	return *d.Has.of(record) >= *most
}

// count updates the number of objects of a device, and the places where those of traced fabrics were created. The
// caller holds host.mu.
func count(record, object any, change int) {
	if change < 0 {
		delete(all.made, object)
	} else if _, of := kindOf(object); of != nil && of.Traced {
		all.made[object] = made.Here()
	}
	if _, handle := object.(*openedQP); handle {
		return
	}
	if o, ok := object.(interface{ owned() *Device }); ok {
		if n := o.owned().Has.of(record); n != nil {
			*n += change
		}
	}
}

// owned returns the device that owns the context's objects.
func (c *Context) owned() *Device { return c.Device }

// Resource is an object of a program, for Fabric.Resources, which skips objects without a fabric.
type Resource interface {
	Resource() (kind string, of *engine.Engine)
}

func (c *Context) Resource() (string, *engine.Engine) {
	if c.kept.Load() {
		return "", nil
	}
	return "ctx", c.Fabric()
}

func (c *closedContext) Resource() (string, *engine.Engine) { return "ctx", c.Fabric() }
func (s *stale) Resource() (string, *engine.Engine)         { return s.handle.Resource() }
func (o *PD) Resource() (string, *engine.Engine)            { return "pd", o.Fabric() }
func (o *Region) Resource() (string, *engine.Engine)        { return "mr", o.Fabric() }
func (o *mw) Resource() (string, *engine.Engine)            { return "mw", o.Fabric() }
func (o *cq) Resource() (string, *engine.Engine)            { return "cq", o.Fabric() }
func (o *QP) Resource() (string, *engine.Engine)            { return "qp", o.Fabric() }
func (o *openedQP) Resource() (string, *engine.Engine)      { return "qp", o.Fabric() }
func (o *SRQ) Resource() (string, *engine.Engine)           { return "srq", o.Fabric() }
func (o *ah) Resource() (string, *engine.Engine)            { return "ah", o.Fabric() }
func (o *dm) Resource() (string, *engine.Engine)            { return "dm", o.Fabric() }
func (o *Buf) Resource() (string, *engine.Engine)           { return "buf", o.Fabric() }
func (o *XRCD) Resource() (string, *engine.Engine)          { return "xrcd", o.Fabric() }
func (o *td) Resource() (string, *engine.Engine)            { return "td", o.Fabric() }
func (o *dmah) Resource() (string, *engine.Engine)          { return "dmah", o.Fabric() }
func (o *Channel) Resource() (string, *engine.Engine)       { return "channel", o.Fabric() }

func kindOf(object any) (kind string, of *engine.Engine) {
	if r, ok := object.(Resource); ok {
		return r.Resource()
	}
	return "", nil
}

// Resources counts the objects of a fabric that programs hold: "ctx" (open devices), "pd", "mr", "mw", "cq", "qp",
// "srq", "ah", "dm", "buf", "xrcd", "td", "dmah", "channel", "cm_id", "event channel" and "address info". Counts of 0
// are omitted.
func Resources(f *engine.Engine) map[string]int {
	counts := map[string]int{}
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, object := range all.objects {
		if kind, of := kindOf(object); of == f {
			counts[kind]++
		}
	}
	return counts
}

// Held describes the objects that programs hold, sorted: one text per place of creation if the fabric is traced,
// otherwise one per kind.
func Held(f *engine.Engine) []string {
	at := map[string]map[string]int{} // kinds, by place
	all.mu.RLock()
	defer all.mu.RUnlock()
	for _, object := range all.objects {
		kind, of := kindOf(object)
		if of != f {
			continue
		}
		where := kind // without a place
		if place, ok := all.made[object]; ok {
			where = " " + place.Made()
		}
		if at[where] == nil {
			at[where] = map[string]int{}
		}
		at[where][kind]++
	}
	var texts []string
	for where, kinds := range at {
		var counted []string
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			if n := kinds[kind]; n > 1 {
				kind = fmt.Sprintf("%d %s", n, kind)
			}
			counted = append(counted, kind)
		}
		if kinds[where] > 0 {
			where = ""
		}
		texts = append(texts, strings.Join(counted, ", ")+where)
	}
	slices.Sort(texts)
	return texts
}
