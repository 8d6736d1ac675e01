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

// sendChecks are the rules of a send queue, worked out once from the generated tables and the queue's capacities, so
// that a work request costs a few comparisons. Requests that the tables leave open pass.
type sendChecks struct {
	rules     [2 * knownOpcodes]sendRule // by opcode; those of inline messages come behind the others
	states    uint32                     // bit set of ibv.QPState
	datagrams bool                       // each has an address
	sendLimits
}

// sendLimits are the properties of a send queue that its rules depend on.
type sendLimits struct {
	qpt          ibv.QPType
	sges, inline uint32
	longest      uint32 // message, in bytes
	mostQPN      uint32 // in an address
	noIPChecksum bool
	noReads      bool   // max_rd_atomic is 0
	unasked      uint16 // ibv.QPCreateSendOpsFlags of the operations that the queue pair was created without
	dynamic      bool   // requests have targets, which only programs can name
	iwarp        bool   // the kernel's connection manager moves the queue pair to RTS; C does not record it
}

func limitsOf(qpt ibv.QPType, o *QueueOptions) sendLimits {
	l := sendLimits{qpt, o.Cap.MaxSendSGE, o.Cap.MaxInlineData, cmp.Or(o.MaxMessage, largestMessage), 1<<24 - 1,
		o.NoIPChecksum, false, o.unasked, false, false}
	if o.narrow {
		l.mostQPN = 1<<16 - 1
	}
	return l
}

// notAsked reports whether the queue pair was created without an operation.
func (l *sendLimits) notAsked(op ibv.WROpcode) bool {
	return l.unasked&uint16(ibv.WRBuilder(op).SendOps) != 0
}

// most is the longest message of an operation. IBV_WR_TSO sends many messages.
func (l *sendLimits) most(op ibv.WROpcode) uint32 {
	if op == ibv.WR_TSO {
		return largestMessage
	}
	return l.longest
}

// sendRule is what holds for one opcode.
type sendRule struct {
	denied ibv.SendFlags
	sges   uint16 // one more than the most entries; 0: the opcode itself is not valid
	look   bool   // the operands or the address have rules, too
	most   uint32 // bytes of a message
	alone  uint32 // one more than the most bytes of one entry, if that is all there is to check; otherwise 0
}

const (
	knownOpcodes   = 16      // more than the highest opcode of the tables
	atomicSize     = 8       // bytes of an atomic operation, and the alignment of its remote address
	largestMessage = 1 << 31 // bytes, of any transport
)

// sendFlags are all of them, in the order of their bits.
var sendFlags = [...]ibv.SendFlags{ibv.SEND_FENCE, ibv.SEND_SIGNALED, ibv.SEND_SOLICITED, ibv.SEND_INLINE,
	ibv.SEND_IP_CSUM}

// unknownFlags are the bits that no flag has.
const unknownFlags = ^(ibv.SEND_FENCE | ibv.SEND_SIGNALED | ibv.SEND_SOLICITED | ibv.SEND_INLINE | ibv.SEND_IP_CSUM)

// sameChecks has the checks that are in use. Queues that know the same have them in common: one copy of the rules stays
// in the cache, not one of each queue.
var sameChecks = struct {
	sync.Mutex
	all map[sendLimits]weak.Pointer[sendChecks]
}{all: map[sendLimits]weak.Pointer[sendChecks]{}}

func sendChecksOf(l sendLimits) *sendChecks {
	sameChecks.Lock()
	defer sameChecks.Unlock()
	if c := sameChecks.all[l].Value(); c != nil {
		return c
	}
	c := newSendChecks(l)
	is := weak.Make(c)
	sameChecks.all[l] = is
	goruntime.AddCleanup(c, func(l sendLimits) {
		sameChecks.Lock()
		defer sameChecks.Unlock()
		if sameChecks.all[l] == is { // others may be in use by now
			delete(sameChecks.all, l)
		}
	}, l)
	return c
}

func newSendChecks(l sendLimits) *sendChecks {
	c, qpt := &sendChecks{sendLimits: l, states: statesFor(ibv.WorkQueueSend)}, l.qpt
	if l.iwarp {
		c.states |= 1<<ibv.QPS_INIT | 1<<ibv.QPS_RTR
	}
	// EFA's reliable datagrams are the only requests that queue pairs of a vendor's own type take in a list.
	c.datagrams = qpt == ibv.QPT_UD || qpt == ibv.QPT_DRIVER
	for op := range ibv.WROpcode(knownOpcodes) {
		if !known(op) || l.dynamic || refusal.Refused(ibv.PostSendValidity(qpt, op)) || l.noReads && reads(op) ||
			l.notAsked(op) {
			continue
		}
		rule := sendRule{denied: unknownFlags, sges: uint16(min(l.sges, 1<<16-2) + 1), most: l.most(op)}
		rule.look = isAtomic(op) || op == ibv.WR_BIND_MW || c.datagrams && op != ibv.WR_DRIVER1
		for _, flag := range sendFlags {
			if refusal.Refused(ibv.SendFlagValidity(qpt, op, flag)) || flag == ibv.SEND_IP_CSUM && l.noIPChecksum {
				rule.denied |= flag
			}
		}
		inline := rule
		inline.most = min(rule.most, l.inline)
		if rule.sges > 1 && !rule.look {
			rule.alone, inline.alone = max(rule.most, rule.most+1), inline.most+1
		}
		c.rules[op], c.rules[op+knownOpcodes] = rule, inline
	}
	return c
}

// reads reports whether an operation needs max_rd_atomic: its response carries data.
func reads(op ibv.WROpcode) bool { return op == ibv.WR_RDMA_READ || isAtomic(op) }

func isAtomic(op ibv.WROpcode) bool {
	return op == ibv.WR_ATOMIC_CMP_AND_SWP || op == ibv.WR_ATOMIC_FETCH_AND_ADD
}

// rule is that of a request with a known opcode.
func (c *sendChecks) rule(w *ibv.SendWR) *sendRule {
	const inline = uint32(knownOpcodes / ibv.SEND_INLINE)
	return &c.rules[uint32(w.Opcode)%knownOpcodes+uint32(w.SendFlags&ibv.SEND_INLINE)*inline]
}

// known reports whether the headers have an opcode.
func known(op ibv.WROpcode) bool { return strings.HasPrefix(op.String(), "IBV_WR_") }

// statesFor is the bit set of the states in which work may be posted.
func statesFor(queue ibv.WorkQueue) (states uint32) {
	for state := range ibv.QPState(32) {
		if !refusal.Refused(ibv.PostInState(state, queue).Validity) {
			states |= 1 << state
		}
	}
	return states
}

// inState reports whether the queue takes work now. The library keeps track of what ibv_modify_qp did; a queue pair
// that broke is found in its completions.
func (c *sendChecks) inState(qp *ibv.QP) bool { return c.states>>(qp.State&31)&1 != 0 }

// noRule is the rule of queues without checks.
var noRule = sendRule{most: 1<<32 - 1}

// takesAddresses reports whether requests have addresses, as far as the tables know.
func takesAddresses(qpt ibv.QPType) bool {
	send := ibv.WRPost(qpt, ibv.WR_SEND)
	known := send.Answer == ibv.AnswerYes || send.Answer == ibv.AnswerNeedsCapability
	return !known || send.Address&ibv.WRSetUDAddr != 0
}

// noReadsReason is why such an operation is refused. Soft-RoCE would never carry it out.
const noReadsReason = "%v with max_rd_atomic 0: the queue pair was connected without reads and atomic operations " +
	"(MaxRdAtomic of the attributes, InitiatorDepth of connection parameters)"

// pass checks at most 64 requests, copies their wr_ids to where id is, and returns a bit for each request that is
// signalled; or false if a request breaks a rule. Rules about the opcode, the flags and the number of entries are
// looked up once for neighbours that have these in common. Without checks every request passes.
func (c *sendChecks) pass(wrs []ibv.SendWR, id *uint64) (signalled uint64, ok bool) {
	ids := unsafe.Slice(id, len(wrs))
	var rule *sendRule // of requests with this shape and these flags
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

// look returns the error in the operands or the address of a request, or "".
func (c *sendChecks) look(w *ibv.SendWR) string {
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

// operandReason returns the error in the operands of an operation on any queue, or "".
func operandReason(w *ibv.SendWR) string {
	switch w.Opcode {
	case ibv.WR_ATOMIC_CMP_AND_SWP, ibv.WR_ATOMIC_FETCH_AND_ADD:
		return atomicReason(total(w), w.WR.Atomic().RemoteAddr)
	case ibv.WR_BIND_MW:
		if bind := w.BindMW(); bind.MW == 0 || bind.BindInfo.MR == 0 && bind.BindInfo.Length != 0 {
			return bindReason
		}
	}
	return ""
}

const bindReason = "binding needs a memory window and a memory region"

// qpnReason is for a number that a library would cut, so that a message goes to another queue pair.
func (c *sendChecks) qpnReason(number uint32) string {
	return fmt.Sprintf("the remote queue pair's number %#x has more than %d bits", number, bits.Len32(c.mostQPN))
}

// total is the bytes of a message.
func total(w *ibv.SendWR) (bytes uint64) {
	s := unsafe.Pointer(w.SGList.Deref())
	for n := w.NumSGE; n > 0; s = unsafe.Add(s, sizeofSGE) {
		bytes += uint64((*ibv.SGE)(s).Length) // before any arithmetic: a bad address panics here
		if n--; n == 0 {
			break // a pointer past the last entry may be outside the entries' memory
		}
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
	op, on, rule := w.Opcode, refusal.ShortName(c.qpt), c.rule(w)
	valid, denied := !refusal.Refused(ibv.PostSendValidity(c.qpt, op)), w.SendFlags&rule.denied
	unknown, allowed := denied&unknownFlags, ^unknownFlags&^rule.denied
	switch {
	case op >= knownOpcodes || !known(op):
		return fmt.Sprintf("%v is no operation that is known (valid on %s: %s)", op, on, c.opcodes(0))
	case c.dynamic:
		return "a list cannot name the target of a dynamic connection; post a WRProgram with mlx5.DC"
	case valid && c.noReads && reads(op):
		return fmt.Sprintf(noReadsReason, op)
	case valid && c.notAsked(op):
		return fmt.Sprintf("%v was not asked for when the queue pair was made, and its library may have no room for "+
			"it: add %v to SendOpsFlags (asked for: %s)", op, ibv.WRBuilder(op).SendOps, c.opcodes(0))
	case rule.sges == 0:
		return opcodeReason(c.qpt, op)
	case unknown != 0:
		return fmt.Sprintf("%#x is no send flag that is known (valid flags: %v)", uint32(unknown), allowed)
	case denied == ibv.SEND_IP_CSUM && c.noIPChecksum:
		return fmt.Sprintf("the device has no IBV_SEND_IP_CSUM for %s", on)
	case denied != 0:
		return fmt.Sprintf("%v is not valid with %v on %s (valid flags: %v; operations that take it: %s)", denied,
			op, on, allowed, c.opcodes(denied))
	case uint32(w.NumSGE) >= uint32(rule.sges):
		return c.entriesReason(w)
	}
	return cmp.Or(c.sizeReason(w, w.SendFlags&ibv.SEND_INLINE != 0), c.look(w))
}

func (c *sendChecks) entriesReason(w *ibv.SendWR) string {
	return fmt.Sprintf("%d entries, and the queue pair takes %d at most", w.NumSGE, c.sges)
}

// sizeReason returns why a message is too long, or "".
func (c *sendChecks) sizeReason(w *ibv.SendWR, inline bool) string {
	bytes, most := total(w), c.most(w.Opcode)
	switch {
	case inline && bytes > uint64(min(c.inline, most)):
		return fmt.Sprintf("%d inline bytes, and the queue pair takes %d at most", bytes, min(c.inline, most))
	case bytes > uint64(most):
		return fmt.Sprintf("a message of %d bytes, and the most is %d", bytes, most)
	}
	return ""
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

// programReason returns the error in a request of a [WRProgram] for this queue, whose capacities the program does not
// have, or "".
func (c *sendChecks) programReason(w *ibv.SendWR, s *wrInfo) string {
	switch op, unknown := w.Opcode, w.SendFlags&unknownFlags; {
	case c.noReads && reads(op):
		return fmt.Sprintf(noReadsReason, op)
	case unknown != 0:
		return fmt.Sprintf("%#x is no send flag that is known", uint32(unknown))
	case s.toQPN > c.mostQPN:
		return c.qpnReason(s.toQPN)
	case !s.inline && w.NumSGE > int32(c.sges):
		return c.entriesReason(w)
	case op == ibv.WR_ATOMIC_WRITE: // of 8 bytes always
		return atomicReason(atomicSize, w.WR.RDMA().RemoteAddr)
	case isAtomic(op):
		return cmp.Or(c.sizeReason(w, s.inline), operandReason(w))
	case w.NumSGE > 0:
		return c.sizeReason(w, s.inline)
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

// opcodeReason returns the types of queue pairs on which an operation is valid that is not valid on qpt.
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

// stateReason returns the states in which a queue takes work.
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
