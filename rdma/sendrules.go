// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	goruntime "runtime"
	"strings"
	"sync"
	"weak"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// sendChecks are the rules of a send queue, worked out once from the generated tables and the queue's capacities, so
// that a work request costs a few comparisons. What the tables leave open passes.
type sendChecks struct {
	rules     [2 * knownOpcodes]sendRule // by opcode; those of inline messages come behind the others
	states    uint32                     // bit set of ibv.QPState
	datagrams bool                       // each has an address
	mostQPN   uint32                     // in it
	options   QueueOptions
	qpt       ibv.QPType
}

// sendRule is what holds for one opcode.
type sendRule struct {
	denied ibv.SendFlags
	sges   uint16 // one more than the most entries; 0: the opcode itself is not valid
	look   bool   // the operands or the address have rules, too
	most   uint32 // bytes of a message
	alone  uint32 // one more than the most bytes of one entry, if that is all there is to check; otherwise 0
}

// knownOpcodes is more than the highest opcode of the tables.
const knownOpcodes = 16

// atomicSize is how many bytes an atomic operation reads and writes, and a multiple of what its remote address is.
const atomicSize = 8

// largestMessage is the most that any transport carries: 2³¹ bytes.
const largestMessage = 1 << 31

// sendFlags are all of them, in the order of their bits.
var sendFlags = [...]ibv.SendFlags{ibv.SEND_FENCE, ibv.SEND_SIGNALED, ibv.SEND_SOLICITED, ibv.SEND_INLINE,
	ibv.SEND_IP_CSUM}

// unknownFlags are the bits that no flag has.
const unknownFlags = ^(ibv.SEND_FENCE | ibv.SEND_SIGNALED | ibv.SEND_SOLICITED | ibv.SEND_INLINE | ibv.SEND_IP_CSUM)

// sameChecks has the checks that are in use. Queues that know the same have them in common: one copy of the rules stays
// in the cache, not one of each queue.
var sameChecks = struct {
	sync.Mutex
	all map[checksFor]weak.Pointer[sendChecks]
}{all: map[checksFor]weak.Pointer[sendChecks]{}}

// checksFor is what the rules of a send queue depend on.
type checksFor struct {
	qpt                ibv.QPType
	sges, inline, most uint32
	noIPChecksum       bool
	noReads            bool
	unasked            uint16
	narrow             bool
}

func sendChecksOf(qpt ibv.QPType, o *QueueOptions) *sendChecks {
	key := checksFor{qpt, o.Cap.MaxSendSGE, o.Cap.MaxInlineData, o.MaxMessage, o.NoIPChecksum, o.noReads, o.unasked,
		o.narrow}
	sameChecks.Lock()
	defer sameChecks.Unlock()
	if c := sameChecks.all[key].Value(); c != nil {
		return c
	}
	c := newSendChecks(qpt, &QueueOptions{
		Cap:        ibv.QPCap{MaxSendSGE: key.sges, MaxInlineData: key.inline},
		MaxMessage: key.most, NoIPChecksum: key.noIPChecksum, noReads: key.noReads, unasked: key.unasked,
		narrow: key.narrow,
	})
	is := weak.Make(c)
	sameChecks.all[key] = is
	goruntime.AddCleanup(c, func(key checksFor) {
		sameChecks.Lock()
		defer sameChecks.Unlock()
		if sameChecks.all[key] == is { // others may be in use by now
			delete(sameChecks.all, key)
		}
	}, key)
	return c
}

func newSendChecks(qpt ibv.QPType, o *QueueOptions) *sendChecks {
	c := &sendChecks{options: *o, qpt: qpt, states: statesFor(ibv.WorkQueueSend),
		mostQPN: o.mostQPN()}
	// EFA's reliable datagrams are the only requests that queue pairs of a vendor's own type take in a list.
	c.datagrams = qpt == ibv.QPT_UD || qpt == ibv.QPT_DRIVER
	for op := range ibv.WROpcode(knownOpcodes) {
		if !known(op) || refusal.Refused(ibv.PostSendValidity(qpt, op)) || o.noReads && reads(op) ||
			o.notAsked(op) {
			continue
		}
		rule := sendRule{denied: unknownFlags, sges: uint16(min(o.Cap.MaxSendSGE, 1<<16-2) + 1), most: largestMessage}
		rule.look = isAtomic(op) || op == ibv.WR_BIND_MW || c.datagrams && op != ibv.WR_DRIVER1
		if o.MaxMessage != 0 && op != ibv.WR_TSO { // which sends many messages
			rule.most = o.MaxMessage
		}
		for _, flag := range sendFlags {
			if refusal.Refused(ibv.SendFlagValidity(qpt, op, flag)) || flag == ibv.SEND_IP_CSUM && o.NoIPChecksum {
				rule.denied |= flag
			}
		}
		inline := rule
		inline.most = min(rule.most, o.Cap.MaxInlineData)
		if rule.sges > 1 && !rule.look {
			rule.alone, inline.alone = max(rule.most, rule.most+1), inline.most+1
		}
		c.rules[op], c.rules[op+knownOpcodes] = rule, inline
	}
	return c
}

// reads says whether an operation needs max_rd_atomic: its answer brings data.
func reads(op ibv.WROpcode) bool { return op == ibv.WR_RDMA_READ || isAtomic(op) }

func isAtomic(op ibv.WROpcode) bool {
	return op == ibv.WR_ATOMIC_CMP_AND_SWP || op == ibv.WR_ATOMIC_FETCH_AND_ADD
}

// rule is that of a work request with a known opcode.
func (c *sendChecks) rule(w *ibv.SendWR) *sendRule {
	const inline = uint32(knownOpcodes / ibv.SEND_INLINE)
	return &c.rules[uint32(w.Opcode)%knownOpcodes+uint32(w.SendFlags&ibv.SEND_INLINE)*inline]
}

// known says whether the headers have an opcode.
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

// inState says whether the queue takes work now. The library keeps track of what ibv_modify_qp did; a queue pair that
// broke is found in its completions.
func (c *sendChecks) inState(qp *ibv.QP) bool { return c.states>>(qp.State&31)&1 != 0 }

// noRule is the rule of queues without checks.
var noRule = sendRule{most: 1<<32 - 1}

// takesAddresses says whether requests have addresses, as far as the tables know.
func takesAddresses(qpt ibv.QPType) bool {
	send := ibv.WRPost(qpt, ibv.WR_SEND)
	known := send.Answer == ibv.AnswerYes || send.Answer == ibv.AnswerNeedsCapability
	return !known || send.Address&ibv.WRSetUDAddr != 0
}
