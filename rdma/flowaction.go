// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	goruntime "runtime"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
)

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
	Keymat *ibv.IBUverbsFlowActionESPKeymatAESGCM // the key and its use; nil leaves it unchanged
	Replay *ibv.IBUverbsFlowActionESPReplayBmp    // the window against replays, or nil
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
	err := birth(d, &a.object, &a.c, a, verb, create, libibverbs.DestroyFlowAction,
		func(*ibv.FlowAction) string { return fmt.Sprintf("flow action on %s", d.name) })
	return made(a, err)
}

// ModifyESP changes the action, also in existing rules.
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

// C returns C's object, for calls of generated/libibverbs. It belongs to the FlowAction.
func (a *FlowAction) C() *ibv.FlowAction { return whileOpen(&a.object, a.c) }

// Ptr returns the action for use in the specs of a rule.
func (a *FlowAction) Ptr() ibv.Ptr[ibv.FlowAction] { return ptrWhileOpen(&a.object, a.c) }

// Close frees the action. Close rules with it first.
//
// C: ibv_destroy_flow_action
//
// Man: ibv_create_flow_action(3)
func (a *FlowAction) Close() error { return a.end() }
