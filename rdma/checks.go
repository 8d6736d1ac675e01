// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"cmp"
	"fmt"
	"math/bits"
	goruntime "runtime"
	"strings"
	"sync"
	"unsafe"
	"weak"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// sendChecks holds the rules of a send queue, computed once from the generated tables and the queue's capacities, so
// that checking a request takes a few comparisons. Requests that the tables leave undecided pass.
type sendChecks struct {
	rules     [2 * knownOpcodes]sendRule // by opcode, followed by those of inline requests
	states    uint32                     // bit set of ibv.QPState
	datagrams bool                       // each request has an address
	sendLimits
}

// sendLimits holds the properties of a send queue that its rules depend on.
type sendLimits struct {
	qpt             ibv.QPType
	sges, inline    uint32
	longest         uint32 // maximum message length, in bytes
	mostQPN         uint32 // maximum queue pair number in an address
	noIPChecksum    bool
	noReads         bool   // max_rd_atomic is 0
	notRequestedOps uint16 // ibv.QPCreateSendOpsFlags that the queue pair was created without
	dynamic         bool   // each request needs a DC target, which only programs can set
	iwarp           bool   // the kernel moves the queue pair to RTS, and the C object keeps its old state
}

func limitsOf(qpt ibv.QPType, o *QueueOptions) sendLimits {
	l := sendLimits{qpt, o.Cap.MaxSendSGE, o.Cap.MaxInlineData, cmp.Or(o.MaxMessage, largestMessage), 1<<24 - 1,
		o.NoIPChecksum, false, o.notRequestedOps, false, false}
	if o.narrow {
		l.mostQPN = 1<<16 - 1
	}
	return l
}

// notRequested reports whether the queue pair was created without the operation in SendOpsFlags.
func (l *sendLimits) notRequested(op ibv.WROpcode) bool {
	return l.notRequestedOps&uint16(ibv.WRBuilder(op).SendOps) != 0
}

// maxMessage returns the maximum length of an operation. IBV_WR_TSO sends many messages.
func (l *sendLimits) maxMessage(op ibv.WROpcode) uint32 {
	if op == ibv.WR_TSO {
		return largestMessage
	}
	return l.longest
}

// sendRule holds the limits of one opcode.
type sendRule struct {
	denied      ibv.SendFlags
	sges        uint16 // maximum number of entries + 1, or 0 if the opcode is not valid
	hasOperands bool   // the operands or the address have rules too
	maxBytes    uint32 // maximum message length
	maxSingle   uint32 // maximum length of a single entry + 1 if nothing else needs checking, otherwise 0
}

const (
	knownOpcodes   = 16      // greater than the highest opcode of the tables
	atomicSize     = 8       // bytes of an atomic operation and alignment of its remote address
	largestMessage = 1 << 31 // maximum message length of any transport, in bytes
)

// sendFlags lists all send flags in bit order.
var sendFlags = [...]ibv.SendFlags{ibv.SEND_FENCE, ibv.SEND_SIGNALED, ibv.SEND_SOLICITED, ibv.SEND_INLINE,
	ibv.SEND_IP_CSUM}

// unknownFlags are the bits without a flag.
const unknownFlags = ^(ibv.SEND_FENCE | ibv.SEND_SIGNALED | ibv.SEND_SOLICITED | ibv.SEND_INLINE | ibv.SEND_IP_CSUM)

// sharedChecks holds the checks in use. Queues with equal limits share one copy, which then stays in the cache.
var sharedChecks = struct {
	sync.Mutex
	all map[sendLimits]weak.Pointer[sendChecks]
}{all: map[sendLimits]weak.Pointer[sendChecks]{}}

func sendChecksOf(l sendLimits) *sendChecks {
	sharedChecks.Lock()
	defer sharedChecks.Unlock()
	if c := sharedChecks.all[l].Value(); c != nil {
		return c
	}
	c := newSendChecks(l)
	is := weak.Make(c)
	sharedChecks.all[l] = is
	goruntime.AddCleanup(c, func(l sendLimits) {
		sharedChecks.Lock()
		defer sharedChecks.Unlock()
		if sharedChecks.all[l] == is { // it may have been replaced
			delete(sharedChecks.all, l)
		}
	}, l)
	return c
}

func newSendChecks(l sendLimits) *sendChecks {
	c, qpt := &sendChecks{sendLimits: l, states: statesFor(ibv.WorkQueueSend)}, l.qpt
	if l.iwarp {
		c.states |= 1<<ibv.QPS_INIT | 1<<ibv.QPS_RTR
	}
	// EFA's SRD is the only vendor-specific type whose queue pairs accept ibv_post_send.
	c.datagrams = qpt == ibv.QPT_UD || qpt == ibv.QPT_DRIVER
	for op := range ibv.WROpcode(knownOpcodes) {
		if !known(op) || l.dynamic || refusal.Refused(ibv.PostSendValidity(qpt, op)) || l.noReads && needsReadResources(op) ||
			l.notRequested(op) {
			continue
		}
		rule := sendRule{denied: unknownFlags, sges: uint16(min(l.sges, 1<<16-2) + 1), maxBytes: l.maxMessage(op)}
		rule.hasOperands = isAtomic(op) || op == ibv.WR_BIND_MW || c.datagrams && op != ibv.WR_DRIVER1
		for _, flag := range sendFlags {
			if refusal.Refused(ibv.SendFlagValidity(qpt, op, flag)) || flag == ibv.SEND_IP_CSUM && l.noIPChecksum {
				rule.denied |= flag
			}
		}
		inline := rule
		inline.maxBytes = min(rule.maxBytes, l.inline)
		if rule.sges > 1 && !rule.hasOperands {
			rule.maxSingle, inline.maxSingle = max(rule.maxBytes, rule.maxBytes+1), inline.maxBytes+1
		}
		c.rules[op], c.rules[op+knownOpcodes] = rule, inline
	}
	return c
}

// needsReadResources reports whether max_rd_atomic limits an operation, because its response carries data.
func needsReadResources(op ibv.WROpcode) bool { return op == ibv.WR_RDMA_READ || isAtomic(op) }

func isAtomic(op ibv.WROpcode) bool {
	return op == ibv.WR_ATOMIC_CMP_AND_SWP || op == ibv.WR_ATOMIC_FETCH_AND_ADD
}

// rule returns the rule of a request with a known opcode.
func (c *sendChecks) rule(w *ibv.SendWR) *sendRule {
	const inline = uint32(knownOpcodes / ibv.SEND_INLINE)
	return &c.rules[uint32(w.Opcode)%knownOpcodes+uint32(w.SendFlags&ibv.SEND_INLINE)*inline]
}

// known reports whether the headers define an opcode.
func known(op ibv.WROpcode) bool { return strings.HasPrefix(op.String(), "IBV_WR_") }

// statesFor returns the bit set of states in which requests may be posted to a queue.
func statesFor(queue ibv.WorkQueue) (states uint32) {
	for state := range ibv.QPState(32) {
		if !refusal.Refused(ibv.PostInState(state, queue).Validity) {
			states |= 1 << state
		}
	}
	return states
}

// inState reports whether the queue pair's state permits sends. The library records the state that ibv_modify_qp set.
// It does not record transitions to SQE or ERR by the device; those appear in completions.
func (c *sendChecks) inState(qp *ibv.QP) bool { return c.states>>(qp.State&31)&1 != 0 }

// noRule accepts every request.
var noRule = sendRule{maxBytes: 1<<32 - 1}

// takesAddresses reports whether requests carry addresses. It returns true for types that the tables do not know.
func takesAddresses(qpt ibv.QPType) bool {
	send := ibv.WRPost(qpt, ibv.WR_SEND)
	known := send.Answer == ibv.AnswerYes || send.Answer == ibv.AnswerNeedsCapability
	return !known || send.Address&ibv.WRSetUDAddr != 0
}

// noReadsReason is the reason for rejecting reads and atomic operations, which Soft-RoCE would never execute.
const noReadsReason = "%v with max_rd_atomic 0: the queue pair was connected without reads and atomic operations " +
	"(MaxRdAtomic of the attributes, InitiatorDepth of connection parameters)"

// check checks at most 64 requests, copies their wr_ids to id, and returns a bit for each signalled request, or false
// if a request breaks a rule. The rule is looked up once per run of requests with equal opcode, flags and number of
// entries. A nil receiver accepts every request.
func (c *sendChecks) check(wrs []ibv.SendWR, id *uint64) (signalled uint64, ok bool) {
	ids := unsafe.Slice(id, len(wrs))
	var rule *sendRule // for shape and flags
	var shape uint64
	var flags ibv.SendFlags
	for i := range wrs {
		w := &wrs[i]
		if rule == nil || *shapeOf(w) != shape || w.SendFlags != flags {
			if rule = c.allows(w); rule == nil {
				return 0, false
			}
			shape, flags = *shapeOf(w), w.SendFlags
		}
		if c != nil && messageBytes(w) > uint64(rule.maxBytes) || rule.hasOperands && c.operandsReason(w) != "" {
			return 0, false
		}
		ids[i] = w.WRID
		signalled |= uint64(flags>>signalledBit&1) << (i & 63)
	}
	return signalled, true
}

// allows returns the rule of a request, or nil if its opcode, flags or number of entries are not valid.
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

// operandsReason returns the error in the operands or the address of a request, or "".
func (c *sendChecks) operandsReason(w *ibv.SendWR) string {
	if reason := operandReason(w); reason != "" {
		return reason
	}
	switch to := w.WR.UD(); {
	case !c.datagrams || w.Opcode == ibv.WR_DRIVER1:
	case to.AH == 0:
		return "a datagram needs an address handle"
	case to.RemoteQPN > c.mostQPN:
		return c.qpnReason(to.RemoteQPN)
	}
	return ""
}

// operandReason returns the error in the operands of an operation, or "".
func operandReason(w *ibv.SendWR) string {
	switch w.Opcode {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		return atomicReason(messageBytes(w), w.WR.Atomic().RemoteAddr)
	case ibv.WR_BIND_MW:
		if bind := w.BindMW(); bind.MW == 0 || bind.BindInfo.MR == 0 && bind.BindInfo.Length != 0 {
			return bindReason
		}
	}
	return ""
}

const bindReason = "binding needs a memory window and a memory region"

// qpnReason returns the error for a number that the library would truncate, which addresses another queue pair.
func (c *sendChecks) qpnReason(number uint32) string {
	return fmt.Sprintf("the remote queue pair's number %#x has more than %d bits", number, bits.Len32(c.mostQPN))
}

// messageBytes returns the length of a message, in bytes.
func messageBytes(w *ibv.SendWR) (bytes uint64) {
	s := unsafe.Pointer(w.SGList.Deref())
	for n := w.NumSGE; n > 0; s = unsafe.Add(s, sizeofSGE) {
		bytes += uint64((*ibv.SGE)(s).Length) // a bad address panics here, before any pointer arithmetic
		if n--; n == 0 {
			break // a pointer past the last entry could point outside its memory
		}
	}
	return bytes
}

// firstError returns the first request of a list that breaks a rule, and the reason with the valid alternatives, or "".
func (c *sendChecks) firstError(qp *ibv.QP, wrs []ibv.SendWR) (index int, reason string) {
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
	op, on, rule := w.Opcode, refusal.ShortName(c.qpt), c.rule(w)
	valid, denied := !refusal.Refused(ibv.PostSendValidity(c.qpt, op)), w.SendFlags&rule.denied
	unknown, allowed := denied&unknownFlags, ^unknownFlags&^rule.denied
	switch {
	case op >= knownOpcodes || !known(op):
		return fmt.Sprintf("unknown opcode %v (valid on %s: %s)", op, on, c.opcodes(0))
	case c.dynamic:
		return "ibv_post_send cannot set the target of a dynamic connection: post a WRProgram with mlx5.DC"
	case valid && c.noReads && needsReadResources(op):
		return fmt.Sprintf(noReadsReason, op)
	case valid && c.notRequested(op):
		return fmt.Sprintf("the queue pair was created without %v: add %v to SendOpsFlags (it has: %s)", op,
			ibv.WRBuilder(op).SendOps, c.opcodes(0))
	case rule.sges == 0:
		return opcodeReason(c.qpt, op)
	case unknown != 0:
		return fmt.Sprintf("unknown send flag %#x (valid flags: %v)", uint32(unknown), allowed)
	case denied == ibv.SEND_IP_CSUM && c.noIPChecksum:
		return fmt.Sprintf("the device does not support IBV_SEND_IP_CSUM on %s", on)
	case denied != 0:
		return fmt.Sprintf("%v is not valid with %v on %s (valid flags: %v; valid operations: %s)", denied, op, on,
			allowed, c.opcodes(denied))
	case uint32(w.NumSGE) >= uint32(rule.sges):
		return c.entriesReason(w)
	}
	return cmp.Or(c.sizeReason(w, w.SendFlags&ibv.SEND_INLINE != 0), c.operandsReason(w))
}

func (c *sendChecks) entriesReason(w *ibv.SendWR) string {
	return fmt.Sprintf("%d entries exceed the queue pair's limit of %d", w.NumSGE, c.sges)
}

// sizeReason returns the limit that a message exceeds, or "".
func (c *sendChecks) sizeReason(w *ibv.SendWR, inline bool) string {
	bytes, most := messageBytes(w), c.maxMessage(w.Opcode)
	switch {
	case inline && bytes > uint64(min(c.inline, most)):
		return fmt.Sprintf("%d inline bytes exceed the queue pair's limit of %d", bytes, min(c.inline, most))
	case bytes > uint64(most):
		return fmt.Sprintf("a message of %d bytes exceeds the limit of %d", bytes, most)
	}
	return ""
}

func atomicReason(bytes, remote uint64) string {
	switch {
	case bytes != atomicSize:
		return fmt.Sprintf("an atomic operation of %d bytes; it must have %d", bytes, atomicSize)
	case remote%atomicSize != 0:
		return fmt.Sprintf("an atomic operation at remote address %#x, which is not a multiple of %d", remote,
			atomicSize)
	}
	return ""
}

// programReason returns the limit of this queue that a request of a [WRProgram] exceeds, or "". Building the program
// checked everything else.
func (c *sendChecks) programReason(w *ibv.SendWR, s *wrInfo) string {
	switch op, unknown := w.Opcode, w.SendFlags&unknownFlags; {
	case c.noReads && needsReadResources(op):
		return fmt.Sprintf(noReadsReason, op)
	case unknown != 0:
		return fmt.Sprintf("unknown send flag %#x", uint32(unknown))
	case s.toQPN > c.mostQPN:
		return c.qpnReason(s.toQPN)
	case !s.inline && w.NumSGE > int32(c.sges):
		return c.entriesReason(w)
	case op == ibv.WR_ATOMIC_WRITE: // always 8 bytes
		return atomicReason(atomicSize, w.WR.RDMA().RemoteAddr)
	case isAtomic(op):
		return cmp.Or(c.sizeReason(w, s.inline), operandReason(w))
	case w.NumSGE > 0:
		return c.sizeReason(w, s.inline)
	}
	return ""
}

// opcodes returns the names of the operations that are valid on the queue pair with flags.
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

// opcodeReason returns the error for an operation that is not valid on qpt, with the types on which it is.
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

// stateReason returns the error for a post in a state that does not permit it, with the states that do.
func stateReason(state ibv.QPState, queue ibv.WorkQueue) string {
	var in []string
	for s := ibv.QPS_RESET; s <= ibv.QPS_ERR; s++ {
		if !refusal.Refused(ibv.PostInState(s, queue).Validity) {
			in = append(in, strings.TrimPrefix(s.String(), "IBV_QPS_"))
		}
	}
	return fmt.Sprintf("the %v accepts no requests in %s (valid in: %s)", queue,
		strings.TrimPrefix(state.String(), "IBV_QPS_"), strings.Join(in, ", "))
}
