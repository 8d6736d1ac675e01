// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

// Flow is a flow steering rule: it directs matching packets of a port to a queue pair.
//
// Man: ibv_create_flow(3)
type Flow struct {
	object
	c      *ibv.Flow
	device *Device
}

// CreateFlow creates a rule. Each spec is a union of the ibv.FlowSpec… structures; its Type selects the structure:
//
//	spec := new(ibv.FlowSpec)
//	*spec.TCPUDP() = ibv.FlowSpecTCPUDP{Type: ibv.FLOW_SPEC_UDP, Val: …, Mask: …}
//
// In Val and Mask, packet fields are in network byte order. Order the specs from the outermost header to the innermost,
// and put actions last. CreateFlow sets size and num_of_specs. Set a [FlowAction] and [Counters] with their Ptr
// methods. Close the rule before these, and before the queue pair.
//
// C: ibv_create_flow
//
// Man: ibv_create_flow(3)
func (q *QP) CreateFlow(attr *ibv.FlowAttr, specs ...*ibv.FlowSpec) (*Flow, error) {
	const verb = "ibv_create_flow"
	f := &Flow{device: q.device}
	var parents []*object
	for i, s := range specs {
		if s == nil {
			return nil, invalid(verb, q.name, "spec %d is nil", i)
		}
		switch s.Hdr().Type {
		case ibv.FLOW_SPEC_ACTION_HANDLE:
			a, err := lookup[FlowAction](q.device, verb, q.name, fmt.Sprintf("spec %d: action", i),
				uintptr(s.Handle().Action))
			if err != nil {
				return nil, err
			}
			if a != nil {
				parents = append(parents, &a.object)
			}
		case ibv.FLOW_SPEC_ACTION_COUNT:
			c, err := lookup[Counters](q.device, verb, q.name, fmt.Sprintf("spec %d: counters", i),
				uintptr(s.FlowCount().Counters))
			if err != nil {
				return nil, err
			}
			if c != nil {
				parents = append(parents, &c.object)
			}
		}
	}
	packed, reason := packFlow(attr, specs)
	if reason != "" {
		return nil, invalid(verb, q.name, "%s", reason)
	}
	err := createObject(q.device, &f.object, &f.c, f, verb,
		func() (*ibv.Flow, error) { return libibverbs.CreateFlow(q.c, packed) }, libibverbs.DestroyFlow,
		func(c *ibv.Flow) string { return fmt.Sprintf("flow %d of %s", c.Handle, q.name) },
		append(parents, &q.object)...)
	return made(f, err)
}

// packFlow copies the attributes and the specs to contiguous memory, as C expects.
func packFlow(attr *ibv.FlowAttr, specs []*ibv.FlowSpec) (packed *ibv.FlowAttr, reason string) {
	if attr == nil {
		return nil, "the attributes are nil"
	}
	size := int(unsafe.Sizeof(*attr))
	for i, s := range specs {
		n := specSize(s.Hdr().Type)
		if n == 0 {
			return nil, fmt.Sprintf("spec %d: unknown type %v", i, s.Hdr().Type)
		}
		size += n
	}
	const maxSpecs = 255 // num_of_specs has 8 bits
	if len(specs) > maxSpecs {
		return nil, fmt.Sprintf("%d specs exceed the maximum of %d", len(specs), maxSpecs)
	}
	memory := make([]uint64, (size+7)/8) // aligned for attributes
	packed = (*ibv.FlowAttr)(unsafe.Pointer(unsafe.SliceData(memory)))
	*packed = *attr
	packed.NumOfSpecs, packed.Size = uint8(len(specs)), uint16(size)
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(packed)), size)[unsafe.Sizeof(*attr):]
	for _, s := range specs {
		own := *s
		n := specSize(own.Hdr().Type)
		own.Hdr().Size = uint16(n)
		copy(bytes, unsafe.Slice((*byte)(unsafe.Pointer(&own)), n))
		bytes = bytes[n:]
	}
	return packed, ""
}

// specSize returns the size of the structure of a spec type, or 0 for an unknown type.
func specSize(kind ibv.FlowSpecType) int {
	switch kind &^ ibv.FLOW_SPEC_INNER {
	case ibv.FLOW_SPEC_ETH:
		return int(unsafe.Sizeof(ibv.FlowSpecEth{}))
	case ibv.FLOW_SPEC_IPV4:
		return int(unsafe.Sizeof(ibv.FlowSpecIPv4{}))
	case ibv.FLOW_SPEC_IPV4_EXT:
		return int(unsafe.Sizeof(ibv.FlowSpecIPv4Ext{}))
	case ibv.FLOW_SPEC_IPV6:
		return int(unsafe.Sizeof(ibv.FlowSpecIPv6{}))
	case ibv.FLOW_SPEC_ESP:
		return int(unsafe.Sizeof(ibv.FlowSpecESP{}))
	case ibv.FLOW_SPEC_TCP, ibv.FLOW_SPEC_UDP:
		return int(unsafe.Sizeof(ibv.FlowSpecTCPUDP{}))
	case ibv.FLOW_SPEC_VXLAN_TUNNEL:
		return int(unsafe.Sizeof(ibv.FlowSpecTunnel{}))
	case ibv.FLOW_SPEC_GRE:
		return int(unsafe.Sizeof(ibv.FlowSpecGRE{}))
	case ibv.FLOW_SPEC_MPLS:
		return int(unsafe.Sizeof(ibv.FlowSpecMPLS{}))
	case ibv.FLOW_SPEC_ACTION_TAG:
		return int(unsafe.Sizeof(ibv.FlowSpecActionTag{}))
	case ibv.FLOW_SPEC_ACTION_DROP:
		return int(unsafe.Sizeof(ibv.FlowSpecActionDrop{}))
	case ibv.FLOW_SPEC_ACTION_HANDLE:
		return int(unsafe.Sizeof(ibv.FlowSpecActionHandle{}))
	case ibv.FLOW_SPEC_ACTION_COUNT:
		return int(unsafe.Sizeof(ibv.FlowSpecCounterAction{}))
	}
	return 0
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the Flow.
func (f *Flow) C() *ibv.Flow { return whileOpen(&f.object, f.c) }

// Close removes the rule.
//
// C: ibv_destroy_flow
//
// Man: ibv_create_flow(3)
func (f *Flow) Close() error { return f.end() }

// FlowAction is an action of a flow rule on packets: IPsec encryption or decryption by the device.
//
// Man: ibv_create_flow_action(3)
type FlowAction struct {
	object
	c *ibv.FlowAction
}

// ESP holds the attributes of a [FlowAction]. The call copies all of them.
//
// Man: ibv_create_flow_action(3)
type ESP struct {
	Attr   ibv.IBUverbsFlowActionESP
	Keymat *ibv.IBUverbsFlowActionESPKeymatAESGCM // the key and its parameters; nil leaves them unchanged
	Replay *ibv.IBUverbsFlowActionESPReplayBmp    // the anti-replay window, or nil
	Encap  *ibv.IBUverbsFlowActionESPEncap        // or nil
	ESN    *uint32                                // the high half of the extended sequence number, or nil
}

// with calls f with C's attributes.
func (e *ESP) with(f func(*ibv.FlowActionESPAttr) error) error {
	own := *e
	attr := &ibv.FlowActionESPAttr{ESPAttr: ibv.PtrTo(&own.Attr)}
	if own.Keymat != nil {
		attr.KeymatProto, attr.KeymatPtr, attr.KeymatLen = ibv.IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM,
			uintptr(ibv.PtrTo(own.Keymat)), uint16(unsafe.Sizeof(*own.Keymat))
	}
	if own.Replay != nil {
		attr.ReplayProto, attr.ReplayPtr, attr.ReplayLen = ibv.IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP,
			uintptr(ibv.PtrTo(own.Replay)), uint16(unsafe.Sizeof(*own.Replay))
	}
	if own.Encap != nil {
		attr.ESPEncap = ibv.PtrTo(own.Encap)
	}
	if own.ESN != nil {
		attr.CompMask, attr.ESN = ibv.FLOW_ACTION_ESP_MASK_ESN, *own.ESN
	}
	err := f(attr)
	goruntime.KeepAlive(&own)
	return err
}

// CreateFlowActionESP creates an action that encrypts or decrypts.
//
// C: ibv_create_flow_action_esp
//
// Man: ibv_create_flow_action(3)
func (d *Device) CreateFlowActionESP(esp *ESP) (*FlowAction, error) {
	const verb = "ibv_create_flow_action_esp"
	if esp == nil {
		return nil, noAttributes(verb, d.name)
	}
	a := &FlowAction{}
	create := func() (c *ibv.FlowAction, err error) {
		err = esp.with(func(attr *ibv.FlowActionESPAttr) error {
			c, err = libibverbs.CreateFlowActionESP(d.c, attr)
			return err
		})
		return c, err
	}
	err := createObject(d, &a.object, &a.c, a, verb, create, libibverbs.DestroyFlowAction,
		func(*ibv.FlowAction) string { return fmt.Sprintf("flow action on %s", d.name) })
	return made(a, err)
}

// ModifyESP changes the action, including in existing rules.
//
// C: ibv_modify_flow_action_esp
//
// Man: ibv_create_flow_action(3)
func (a *FlowAction) ModifyESP(esp *ESP) error {
	const verb = "ibv_modify_flow_action_esp"
	if err := a.use(verb); err != nil {
		return err
	}
	defer a.done()
	if esp == nil {
		return noAttributes(verb, a.name)
	}
	return wrap(verb, a.name,
		esp.with(func(attr *ibv.FlowActionESPAttr) error { return libibverbs.ModifyFlowActionESP(a.c, attr) }))
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the FlowAction.
func (a *FlowAction) C() *ibv.FlowAction { return whileOpen(&a.object, a.c) }

// Ptr returns the action for use in the specs of a rule.
func (a *FlowAction) Ptr() ibv.Ptr[ibv.FlowAction] { return ptrWhileOpen(&a.object, a.c) }

// Close frees the action. Close rules with it first.
//
// C: ibv_destroy_flow_action
//
// Man: ibv_create_flow_action(3)
func (a *FlowAction) Close() error { return a.end() }
