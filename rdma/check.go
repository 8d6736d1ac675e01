// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"
	"math/bits"
	"strings"
	"unsafe"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// noReadsReason is why such an operation is refused. Soft-RoCE would never carry it out.
const noReadsReason = "%v with max_rd_atomic 0: the queue pair was connected without reads and atomic operations " +
	"(MaxRdAtomic of the attributes, InitiatorDepth of connection parameters)"

// pass checks at most 64 requests, copies their wr_ids to where id is, and returns a bit for each request that is
// signalled; or false if a request breaks a rule. Rules about the opcode, the flags and the number of entries are
// looked up once for neighbours that have these in common. Without checks every request passes.
func (c *sendChecks) pass(wrs []ibv.SendWR, id *uint64) (signalled uint64, ok bool) {
	ids := unsafe.Slice(id, len(wrs))
	shape, flags := ^uint64(0), ibv.SendFlags(0)
	var rule *sendRule
	for i := range wrs {
		w := &wrs[i]
		if *shapeOf(w) != shape || w.SendFlags != flags {
			if rule = c.allows(w); rule == nil {
				return 0, false
			}
			shape, flags = *shapeOf(w), w.SendFlags
		}
		if c != nil && total(w) > uint64(rule.most) || rule.look && c.look(w) != "" {
			return 0, false
		}
		ids[i] = w.WRID
		signalled |= uint64(flags>>signalledBit&1) << (i & 63)
	}
	return signalled, true
}

// allows returns the rule of a request, or nil if its opcode, its flags or the number of its entries break it.
func (c *sendChecks) allows(w *ibv.SendWR) *sendRule {
	if c == nil {
		return &noRule
	}
	rule := c.rule(w)
	if w.Opcode >= knownOpcodes || uint32(w.NumSGE) >= uint32(rule.sges) || w.SendFlags&rule.denied != 0 {
		return nil
	}
	return rule
}

// signalledBit is the number of the bit IBV_SEND_SIGNALED.
const signalledBit = 1

var _ = [1]byte{}[ibv.SEND_SIGNALED-1<<signalledBit]

// look returns what is wrong with the operands or the address of a request, or "".
func (c *sendChecks) look(w *ibv.SendWR) string {
	if reason := operandReason(w); reason != "" {
		return reason
	}
	return c.addressReason(w)
}

// operandReason says what no queue takes of the operands of an operation, or "".
func operandReason(w *ibv.SendWR) string {
	switch w.Opcode {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		return atomicReason(total(w), w.WR.Atomic().RemoteAddr)
	case ibv.WR_BIND_MW:
		if bind := w.BindMW(); bind.MW == 0 || bind.BindInfo.MR == 0 && bind.BindInfo.Length != 0 {
			return "binding needs a memory window and a memory region"
		}
	}
	return ""
}

// addressReason says what is wrong with the address of a datagram, or "".
func (c *sendChecks) addressReason(w *ibv.SendWR) string {
	switch to := w.WR.UD(); {
	case !c.datagrams || w.Opcode == ibv.WR_DRIVER1:
	case to.AH == 0:
		return "a datagram needs an address handle"
	case to.RemoteQPN > c.mostQPN:
		return c.qpnReason(to.RemoteQPN)
	}
	return ""
}

// qpnReason is for a number that a library would cut, so that a message goes to another queue pair.
func (c *sendChecks) qpnReason(number uint32) string {
	return fmt.Sprintf("the remote queue pair's number %#x has more than %d bits", number, bits.Len32(c.mostQPN))
}

// total is the bytes of a message.
func total(w *ibv.SendWR) (bytes uint64) {
	s := unsafe.Pointer(w.SGList.Deref())
	for n := w.NumSGE; n > 0; n-- {
		bytes += uint64((*ibv.SGE)(s).Length)
		s = unsafe.Add(s, sizeofSGE)
	}
	return bytes
}

// refuse returns the first work request of a list that breaks a rule, with the rule and what would be valid, or "".
func (c *sendChecks) refuse(qp *ibv.QP, wrs []ibv.SendWR) (index int, reason string) {
	if !c.inState(qp) {
		return 0, stateReason(qp.State, ibv.WorkQueueSend)
	}
	for i := range wrs {
		if reason := c.reason(&wrs[i]); reason != "" {
			return i, reason
		}
	}
	return 0, ""
}

func (c *sendChecks) reason(w *ibv.SendWR) string {
	op, on := w.Opcode, refusal.ShortName(c.qpt)
	if op >= knownOpcodes || !known(op) {
		return fmt.Sprintf("%v is no operation that is known (valid on %s: %s)", op, on, c.opcodes(0))
	}
	rule := c.rule(w)
	if c.options.noReads && reads(op) && !refusal.Refused(ibv.PostSendValidity(c.qpt, op)) {
		return fmt.Sprintf(noReadsReason, op)
	}
	if c.options.notAsked(op) && !refusal.Refused(ibv.PostSendValidity(c.qpt, op)) {
		return fmt.Sprintf("%v was not asked for when the queue pair was made, and its library may have no room for "+
			"it: add %v to SendOpsFlags (asked for: %s)", op, ibv.WRBuilder(op).SendOps, c.opcodes(0))
	}
	if rule.sges == 0 {
		return opcodeReason(c.qpt, op)
	}
	if denied := w.SendFlags & rule.denied; denied != 0 {
		var allowed ibv.SendFlags
		for _, flag := range sendFlags {
			allowed |= flag &^ rule.denied
		}
		if unknown := denied & unknownFlags; unknown != 0 {
			return fmt.Sprintf("%#x is no send flag that is known (valid flags: %v)", uint32(unknown), allowed)
		}
		if denied == ibv.SEND_IP_CSUM && c.options.NoIPChecksum {
			return fmt.Sprintf("the device has no IBV_SEND_IP_CSUM for %s", on)
		}
		return fmt.Sprintf("%v is not valid with %v on %s (valid flags: %v; operations that take it: %s)", denied,
			op, on, allowed, c.opcodes(denied))
	}
	if uint32(w.NumSGE) >= uint32(rule.sges) {
		return fmt.Sprintf("%d entries, and the queue pair takes %d at most", w.NumSGE, c.options.Cap.MaxSendSGE)
	}
	bytes := total(w)
	if w.SendFlags&ibv.SEND_INLINE != 0 && bytes > uint64(rule.most) {
		return fmt.Sprintf("%d inline bytes, and the queue pair takes %d at most", bytes, rule.most)
	}
	if bytes > uint64(rule.most) {
		return fmt.Sprintf("a message of %d bytes, and the most is %d", bytes, rule.most)
	}
	return c.look(w)
}

func atomicReason(bytes, remote uint64) string {
	switch {
	case bytes != atomicSize:
		return fmt.Sprintf("an atomic operation of %d bytes, and it has to be %d", bytes, atomicSize)
	case remote%atomicSize != 0:
		return fmt.Sprintf("an atomic operation at the remote address %#x, and it has to be a multiple of %d",
			remote, atomicSize)
	}
	return ""
}

// sizeReason says what is wrong with a request of a [WRProgram] for this queue, which alone knows its capacities.
func (c *sendChecks) sizeReason(op ibv.WROpcode, flags ibv.SendFlags, s wrSize) string {
	most := uint64(largestMessage)
	if c.options.MaxMessage != 0 && op != ibv.WR_TSO {
		most = uint64(c.options.MaxMessage)
	}
	switch o := &c.options.Cap; {
	case c.options.noReads && reads(op):
		return fmt.Sprintf(noReadsReason, op)
	case flags&unknownFlags != 0:
		return fmt.Sprintf("%#x is no send flag that is known", uint32(flags&unknownFlags))
	case s.toQPN > c.mostQPN:
		return c.qpnReason(s.toQPN)
	case s.sges > int(o.MaxSendSGE):
		return fmt.Sprintf("%d entries, and the queue pair takes %d at most", s.sges, o.MaxSendSGE)
	case s.inline && s.bytes > uint64(o.MaxInlineData):
		return fmt.Sprintf("%d inline bytes, and the queue pair takes %d at most", s.bytes, o.MaxInlineData)
	case s.bytes > most:
		return fmt.Sprintf("a message of %d bytes, and the most is %d", s.bytes, most)
	case isAtomic(op):
		return atomicReason(s.bytes, s.remote)
	case op == ibv.WR_ATOMIC_WRITE: // of 8 bytes always
		return atomicReason(atomicSize, s.remote)
	}
	return ""
}

// opcodes are the names of the operations that are valid on the queue pair, with flags.
func (c *sendChecks) opcodes(flags ibv.SendFlags) string {
	var names []string
	for op := range knownOpcodes {
		if rule := &c.rules[op]; rule.sges != 0 && rule.denied&flags == 0 {
			names = append(names, ibv.WROpcode(op).String())
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

// opcodeReason says where an operation is valid that is not on a type of queue pair.
func opcodeReason(qpt ibv.QPType, op ibv.WROpcode) string {
	if v := ibv.PostSendValidity(qpt, op); v.Answer == ibv.AnswerNotInVerb || qpt == ibv.QPT_XRC_RECV {
		return fmt.Sprintf("%v: %s", op, v.Reason)
	}
	var on []string
	for _, t := range ibv.PostSendQPTypes(op) {
		on = append(on, refusal.ShortName(t))
	}
	return fmt.Sprintf("%v is not valid on %s (valid on: %s)", op, refusal.ShortName(qpt), strings.Join(on, ", "))
}

// stateReason says in which states a queue takes work.
func stateReason(state ibv.QPState, queue ibv.WorkQueue) string {
	var in []string
	for s := ibv.QPS_RESET; s <= ibv.QPS_ERR; s++ {
		if !refusal.Refused(ibv.PostInState(s, queue).Validity) {
			in = append(in, strings.TrimPrefix(s.String(), "IBV_QPS_"))
		}
	}
	return fmt.Sprintf("the %v takes no work in %s (valid in: %s)", queue, strings.TrimPrefix(state.String(),
		"IBV_QPS_"), strings.Join(in, ", "))
}
