// SPDX-License-Identifier: BSD-2-Clause

package stub

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/runtime"
)

// Special cases: functions that dereference or compute with their arguments, or deviate from the rules. arguments
// change the arguments and scripts of a call; absent sets the expected result for a missing slot; results compare
// results that no kind of conventions.txt covers; outcomes are results that must be observed: the calls made, or
// without any the errno.
var (
	arguments = map[string]func(*call){
		// bits within a word; otherwise C's behavior is undefined
		"_devx_set":            func(c *call) { c.args[2], c.args[3] = c.bits() },
		"_devx_get":            func(c *call) { c.args[1], c.args[2] = c.bits() },
		"_devx_set64":          func(c *call) { c.args[2] = 64 * c.b.random.Uint64N(BufferSize/8) },
		"_devx_get64":          func(c *call) { c.args[1] = 64 * c.b.random.Uint64N(BufferSize/8) },
		"mlx5dv_ts_to_ns":      func(c *call) { buffer[mlx5dv.ClockInfo](c, 0).Shift %= 64 },
		"mlx5dv_set_eth_seg":   func(c *call) { c.args[3] = c.b.random.Uint64N(512) },
		"ibv_is_qpt_supported": func(c *call) { c.args[1] %= 32 },

		// 64 bits in C; Go's enumeration has 32
		"mlx5dv_init_obj": func(c *call) { c.args[1] &= 0xffffffff },
		"mlx4dv_init_obj": func(c *call) { c.args[1] &= 0xffffffff },
		"manadv_init_obj": func(c *call) { c.args[1] &= 0xffffffff },

		// 32 bits in C; Go's enumeration has the 8 bits of ibv_ah_attr.static_rate
		"ibv_rate_to_mbps": func(c *call) { c.args[0] &= 0xff },
		"ibv_rate_to_mult": func(c *call) { c.args[0] &= 0xff },

		// addresses that are dereferenced
		"ibv_bind_mw": bindMW,
		"ibv_create_srq_ex": func(c *call) {
			buffer[ibv.SRQInitAttrEx](c, 1).CompMask = ibv.SRQInitAttrMask(c.pick(1, 2, 3, 3, 7, 0))
		},
		"ibv_create_qp_ex": func(c *call) {
			buffer[ibv.QPInitAttrEx](c,
				1).CompMask = ibv.QPInitAttrMask(c.pick(1, 1, 3, 0))
		},
		"ibv_query_device_ex": queryDeviceEx,
		"verbs_get_ctx":       func(c *call) { c.b.device.Context.ABICompat *= uintptr(c.pick(0, 1)) },
		"__ibv_reg_mr":        func(c *call) { c.args[3], c.args[4] = c.access(), 1 },
		"__ibv_reg_mr_iova":   func(c *call) { c.args[4], c.args[5] = c.access(), 1 },

		// librdmacm's: with or without a QP or SRQ, and with or without a region
		"rdma_post_recvv":    func(c *call) { c.args[3] = c.count(); c.receive() },
		"rdma_post_sendv":    func(c *call) { c.args[3] = c.count(); c.answers("ibv_context_ops.post_send") },
		"rdma_post_readv":    func(c *call) { c.args[3] = c.count(); c.answers("ibv_context_ops.post_send") },
		"rdma_post_writev":   func(c *call) { c.args[3] = c.count(); c.answers("ibv_context_ops.post_send") },
		"rdma_post_recv":     postRecv,
		"rdma_post_send":     func(c *call) { c.maybeNull(4); c.answers("ibv_context_ops.post_send") },
		"rdma_post_read":     func(c *call) { c.answers("ibv_context_ops.post_send") },
		"rdma_post_write":    func(c *call) { c.maybeNull(4); c.answers("ibv_context_ops.post_send") },
		"rdma_post_ud_send":  func(c *call) { c.maybeNull(4); c.answers("ibv_context_ops.post_send") },
		"rdma_dereg_mr":      func(c *call) { c.answers("ibv_dereg_mr") },
		"rdma_reg_msgs":      func(c *call) { c.registers() },
		"rdma_reg_read":      func(c *call) { c.registers() },
		"rdma_reg_write":     func(c *call) { c.registers() },
		"rdma_get_send_comp": completion,
		"rdma_get_recv_comp": completion,
	}

	absent = map[string]func(*call){
		// these check for NULL before C would crash
		"ibv_alloc_mw": func(c *call) { c.crash = false },
		"ibv_bind_mw":  func(c *call) { c.crash = bindMWCalls(c) },
	}

	outcomes = map[string][]string{
		"ibv_bind_mw":       {"ibv_context_ops.bind_mw", "22", "1"},
		"ibv_create_srq_ex": {"ibv_create_srq", "verbs_context.create_srq_ex"},
		"ibv_create_qp_ex":  {"ibv_create_qp", "verbs_context.create_qp_ex"},
		"ibv_query_device_ex": {"22", "verbs_context.query_device_ex",
			"verbs_context.query_device_ex ibv_query_device"},
		"__ibv_reg_mr":       {"ibv_reg_mr", "ibv_reg_mr_iova2"},
		"__ibv_reg_mr_iova":  {"ibv_reg_mr_iova", "ibv_reg_mr_iova2"},
		"rdma_post_recvv":    {"ibv_context_ops.post_recv", "ibv_context_ops.post_srq_recv"},
		"rdma_post_recv":     {"ibv_context_ops.post_recv", "ibv_context_ops.post_srq_recv"},
		"rdma_get_send_comp": waits,
		"rdma_get_recv_comp": waits,
	}
)

const (
	polls, asks, waited = "ibv_context_ops.poll_cq", "ibv_context_ops.req_notify_cq", "ibv_get_cq_event"
	twice               = polls + " " + asks + " " + polls
)

// waits are the ways in which a wait for a completion can end: immediately, at a failure to arm, with a completion that
// arrived just before, at a failure to wait, or after waiting.
var waits = []string{polls, polls + " " + asks, twice, twice + " " + waited, twice + " " + waited +
	" ibv_ack_cq_events " + polls}

// buffer returns the buffer that an argument points to.
func buffer[T any](c *call, argument int) *T { return at[T](uintptr(c.args[argument])) }

func (c *call) pick(values ...uint64) uint64 { return values[c.b.random.IntN(len(values))] }

// bits returns the offset and size of a field inside a 32-bit word.
func (c *call) bits() (offset, size uint64) {
	size = 1 + c.b.random.Uint64N(32)
	return 32*c.b.random.Uint64N(BufferSize/4) + c.b.random.Uint64N(33-size), size
}

// access returns registration flags, in half of the cases with one that a library may ignore.
func (c *call) access() uint64 {
	return c.b.random.Uint64N(16) | c.pick(0, uint64(ibv.ACCESS_RELAXED_ORDERING))
}

// count returns a number of entries, possibly 0.
func (c *call) count() uint64 { return c.pick(0, 1, 2, 30, ^uint64(0)) }

func (c *call) maybeNull(argument int) {
	if c.b.random.IntN(2) == 0 {
		c.args[argument] = 0
	}
}

// answers scripts results of verbs: 0 or an errno.
func (c *call) answers(names ...string) {
	for _, name := range names {
		c.results[name] = []Result{{Value: c.pick(0, 0, 12, 22, 95)}}
	}
}

// registers scripts ibv_reg_mr.
func (c *call) registers() {
	c.results["ibv_reg_mr"] = []Result{{Value: 0, Errno: 12}}
	if c.b.random.IntN(2) == 0 {
		c.results["ibv_reg_mr"] = []Result{{Value: uint64(c.b.device.Address("ibv_mr"))}}
	}
}

// receive gives the identifier an SRQ or not.
func (c *call) receive() {
	if c.b.random.IntN(2) == 0 {
		c.b.device.CMID.SRQ = 0
	}
	c.answers("ibv_context_ops.post_recv", "ibv_context_ops.post_srq_recv")
}

// postRecv uses memory inside the region: otherwise C aborts.
func postRecv(c *call) {
	mr := c.b.device.MR
	mr.Addr, mr.Length = uintptr(c.args[2]), BufferSize
	offset := c.b.random.Uint64N(BufferSize)
	c.args[2] += offset
	c.args[3] = c.b.random.Uint64N(BufferSize - offset + 1)
	c.receive()
}

// bindMW uses a window of either type, and a region of the same or another protection domain, or none.
func bindMW(c *call) {
	d, bind := c.b.device, buffer[ibv.MWBind](c, 2)
	d.MW.Type = ibv.MWType(c.pick(1, 1, 1, 2))
	other := (*ibv.MR)(unsafe.Pointer(&d.Buffer(5)[0]))
	other.PD = ibv.Ptr[ibv.PD](c.b.random.Uint64())
	bind.BindInfo.MR = ibv.Ptr[ibv.MR](c.pick(0, uint64(d.Address("ibv_mr")), uint64(uintptr(unsafe.Pointer(other)))))
	bind.BindInfo.Addr, bind.BindInfo.Length = c.pick(0, 0, 7), c.pick(0, 0, 7)
}

// bindMWCalls reports whether a binding reaches the slot.
func bindMWCalls(c *call) bool {
	d, info := c.b.device, buffer[ibv.MWBind](c, 2).BindInfo
	mr := info.MR.Deref()
	return d.MW.Type == ibv.MW_TYPE_1 && (mr == nil && info.Addr == 0 && info.Length == 0 || mr != nil &&
		mr.PD == d.MW.PD)
}

func queryDeviceEx(c *call) {
	if c.b.random.IntN(3) == 0 {
		c.args[1] = 0
	} else {
		buffer[ibv.QueryDeviceExInput](c, 1).CompMask = uint32(c.pick(0, 0, 1))
	}
}

// completion scripts a wait that ends in one of the ways.
func completion(c *call) {
	d := c.b.device
	notification := binary.NativeEndian.AppendUint64(nil, uint64(d.Address("ibv_cq")))
	context := binary.NativeEndian.AppendUint64(nil, uint64(d.Address("rdma_cm_id")))
	event := Result{Pokes: []Poke{{Arg: 1, Bytes: notification}, {Arg: 2, Bytes: context}}}
	wc := make([]byte, unsafe.Sizeof(ibv.WC{}))
	c.b.scatter(wc)
	one := Result{Value: 1, Pokes: []Poke{{Arg: 2, Bytes: wc}}}
	c.results = map[string][]Result{polls: {{}, {}, one}, asks: {{}}, waited: {event}}
	switch c.b.random.IntN(6) {
	case 0:
		c.results[polls] = []Result{one}
	case 1:
		c.results[polls] = []Result{{}, one}
	case 2:
		c.results[asks] = []Result{{Value: 12}}
	case 3:
		c.results[waited] = []Result{{Value: ^uint64(0), Errno: 4}}
	case 4:
		c.results[polls] = []Result{{Value: ^uint64(21)}} // -22
	}
}

// newer are functions whose inline code has changed between releases: Go has that of the primary one.
var newer = map[string]string{
	"verbs_get_ctx":     "the structure starts elsewhere: it grows in front",
	"___ibv_query_port": "the output structure is shorter",
	"ibv_bind_mw":       "less is checked before the call",
}

// outcomeOf describes the observed calls.
func outcomeOf(c *call) string {
	var created []string
	for _, r := range c.log {
		created = append(created, r.Name)
	}
	switch {
	case len(created) > 0:
		return strings.Join(created, " ")
	case c.inC.errno != 0:
		return fmt.Sprint(uint64(c.inC.errno))
	}
	return fmt.Sprint(int32(c.inC.result))
}

// results are for the functions that conventions.txt declares special, with reasons.
var results = map[string]func(c *call, inC answer, got []reflect.Value) error{
	"ibv_start_poll": stepped,
	"ibv_next_poll":  stepped,
	"ibv_poll_cq": func(c *call, inC answer, got []reflect.Value) error {
		switch n, asked := int32(inC.result), int32(c.args[1]); {
		case n < 0:
			return failedWith(0, false, got[1])
		case n > asked:
			return failedWith(runtime.Errno(n), true, got[1])
		default:
			return inC.check(c.f, "value", false, got)
		}
	},
	"ibv_rereg_mr": func(c *call, inC answer, got []reflect.Value) error {
		if int32(inC.result) == 0 {
			return inC.check(c.f, "value", false, got)
		}
		return errors.Join(inC.value("value", got[0]), failedWith(inC.errno, true, got[1]))
	},
	"rdma_getaddrinfo": func(c *call, inC answer, got []reflect.Value) error {
		if code := int32(inC.result); code == 0 {
			return inC.check(c.f, "value", false, got)
		}
		return errors.Join(inC.value("value", got[0]), failedWith(0, false, got[1]))
	},
	"rdma_get_send_comp": completed,
	"rdma_get_recv_comp": completed,
	"repoll_wait": func(c *call, inC answer, got []reflect.Value) error {
		if n := int32(inC.result); n != -1 && n > int32(c.args[2]) {
			return failedWith(runtime.Errno(n), true, got[1])
		}
		return inC.check(c.f, "minus-one", false, got)
	},
}

// completed: the inline code sets errno to the result of ibv_poll_cq, which is negative and not an errno.
func completed(c *call, inC answer, got []reflect.Value) error {
	if int32(inC.errno) < 0 {
		return failedWith(0, true, got[1])
	}
	return inC.check(c.f, "minus-one", false, got)
}

// stepped: 0, a positive errno, or a failure without an errno.
func stepped(c *call, inC answer, got []reflect.Value) error {
	n := int32(inC.result)
	if n == 0 {
		return inC.check(c.f, "void", false, got)
	}
	return failedWith(runtime.Errno(max(n, 0)), true, got[0])
}

// failedWith checks for a *runtime.CallError, with this errno if it is certain.
func failedWith(errno runtime.Errno, certain bool, got reflect.Value) error {
	err, _ := got.Interface().(error)
	var call *runtime.CallError
	if !errors.As(err, &call) || certain && call.Errno != errno {
		return fmt.Errorf("C failed with %d (%v), but the error is %v", errno, errno, err)
	}
	return nil
}
