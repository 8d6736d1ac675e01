// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// Counters count the packets and bytes that match flow rules.
//
// Man: ibv_create_counters(3)
type Counters struct {
	object
	c *ibv.Counters
}

// CreateCounters creates counters. They count nothing until Attach is called.
//
// C: ibv_create_counters
//
// Man: ibv_create_counters(3)
func (d *Device) CreateCounters(attr *ibv.CountersInitAttr) (*Counters, error) {
	n := &Counters{}
	if attr == nil {
		attr = new(ibv.CountersInitAttr)
	}
	err := createObject(d, &n.object, &n.c, n, "ibv_create_counters",
		func() (*ibv.Counters, error) { return libibverbs.CreateCounters(d.c, attr) }, libibverbs.DestroyCounters,
		func(*ibv.Counters) string { return fmt.Sprintf("counters on %s", d.name) })
	return made(n, err)
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the Counters.
func (n *Counters) C() *ibv.Counters { return whileOpen(&n.object, n.c) }

// Ptr returns the counters for use in the specs of a rule.
func (n *Counters) Ptr() ibv.Ptr[ibv.Counters] { return ptrWhileOpen(&n.object, n.c) }

// Attach makes the counters count a value (packets or bytes) and assigns it an index in Read. It applies to flow or, if
// flow is nil, to each rule that is created with the counters. Values with the same index are added. Close the rule
// before the counters.
//
// C: ibv_attach_counters_point_flow
//
// Man: ibv_attach_counters_point_flow(3)
func (n *Counters) Attach(attr *ibv.CounterAttachAttr, flow *Flow) error {
	const verb = "ibv_attach_counters_point_flow"
	if attr == nil {
		return noAttributes(verb, n.name)
	}
	holds := []*object{&n.object}
	var c *ibv.Flow
	if flow != nil {
		holds, c = append(holds, &flow.object), flow.c
	}
	if err := useAll(verb, holds...); err != nil {
		return err
	}
	defer doneAll(holds...)
	if err := libibverbs.AttachCountersPointFlow(n.c, attr, c); err != nil {
		return wrap(verb, n.name, err)
	}
	if flow != nil {
		flow.life.Join(&n.life)
	}
	return nil
}

// Read stores the values in the caller's slice, by index. Unless flags contains READ_COUNTERS_ATTR_PREFER_CACHED, it
// queries the device.
//
// C: ibv_read_counters
//
// Man: ibv_read_counters(3)
func (n *Counters) Read(values []uint64, flags ibv.ReadCountersFlags) error {
	const verb = "ibv_read_counters"
	if len(values) == 0 {
		return invalid(verb, n.name, "the slice for values is empty")
	}
	if err := n.use(verb); err != nil {
		return err
	}
	defer n.done()
	return wrap(verb, n.name, libibverbs.ReadCounters(n.c, &values[0], uint32(len(values)), flags))
}

// Close frees the counters. Close the rules that use them first.
//
// C: ibv_destroy_counters
//
// Man: ibv_create_counters(3)
func (n *Counters) Close() error { return n.end() }
