// SPDX-License-Identifier: BSD-2-Clause

package explain

import (
	"encoding"
	"fmt"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/generated/rpma"
)

// enum is a generated enumeration.
type enum[T any] interface {
	*T
	encoding.TextUnmarshaler
}

// parse parses a name in any case, with or without its prefix, or a number.
func parse[T any, P enum[T]](word string, prefixes ...string) (v T, ok bool) {
	for _, prefix := range append([]string{""}, prefixes...) {
		if P(&v).UnmarshalText([]byte(prefix+strings.ToUpper(word))) == nil {
			return v, true
		}
	}
	return v, false
}

// isNumber reports whether a word begins like a number, which can only be a status.
func isNumber(word string) bool { return word != "" && word[0] >= '0' && word[0] <= '9' }

func status(words []string) *Explanation {
	if len(words) != 1 {
		return nil
	}
	s, ok := parse[ibv.WCStatus](words[0], "IBV_WC_")
	rule := ibv.WCStatusMeaning(s)
	if !ok || rule.Meaning == "" {
		return nil
	}
	e := &Explanation{Kind: fmt.Sprintf("completion status %d", uint32(s)), Name: s.String()}
	e.fact("meaning", rule.Meaning)
	e.fact("look for", rule.Causes)
	e.fact("detected by", rule.Detector.String())
	after := ibv.StateAfterCompletion(s, ibv.WorkQueueSend, ibv.QPT_RC)
	if s != ibv.WC_SUCCESS && after.Answer == ibv.AnswerYes {
		e.fact("afterwards", fmt.Sprintf("after a failed send, an RC queue pair is in %v", after.State))
	}
	e.validity(rule.Validity)
	return e
}

// functionCalled returns the function of libibverbs, librdmacm or librpma with a name, or nil.
func functionCalled(name string) *ibv.Function {
	for _, all := range [][]ibv.Function{ibv.Functions, rdmacm.Functions, rpma.Functions} {
		for i := range all {
			if all[i].Name == name {
				return &all[i]
			}
		}
	}
	return nil
}

func function(words []string) *Explanation {
	if len(words) != 1 {
		return nil
	}
	f := functionCalled(strings.ToLower(words[0]))
	if f == nil {
		return nil
	}
	e := &Explanation{Kind: "function of " + f.Header, Name: f.Name}
	e.fact("C", f.Prototype)
	e.fact("page", f.Man)
	e.fact("since", f.Since)
	return e
}

func event(words []string) *Explanation {
	if len(words) != 1 || isNumber(words[0]) {
		return nil
	}
	v, ok := parse[ibv.EventType](words[0], "IBV_EVENT_")
	rule := ibv.AsyncEventMeaning(v)
	if !ok || rule.Meaning == "" {
		return nil
	}
	e := &Explanation{Kind: "asynchronous event", Name: v.String()}
	e.fact("meaning", rule.Meaning)
	e.fact("fix", rule.Action)
	e.fact("about", rule.Element.String())
	e.fact("severity", rule.Severity.String())
	e.fact("waits", rule.Waits)
	e.validity(rule.Validity)
	return e
}

// connection explains an event of the connection manager.
func connection(words []string) *Explanation {
	if len(words) != 1 || isNumber(words[0]) {
		return nil
	}
	v, ok := parse[rdmacm.CMEventType](words[0], "RDMA_CM_EVENT_")
	rule := rdmacm.EventMeaning(v)
	if !ok || rule.Answer == rdmacm.AnswerUnspecified {
		return nil
	}
	e := &Explanation{Kind: fmt.Sprintf("event %d of the connection manager", uint32(v)), Name: v.String()}
	e.fact("delivered", rule.Answer.String())
	if rule.Answer == rdmacm.AnswerYes {
		e.fact("side", rule.Side.String())
		e.fact("in state", states(rule.Before))
		e.fact("afterwards", states(rule.After))
		e.fact("param", rule.Param.String())
		e.fact("status", rule.Status)
		e.fact("next", rule.Next)
	}
	e.validity(ibv.Validity(rule.Validity))
	return e
}

func states(all []rdmacm.IDState) string {
	var names []string
	for _, s := range all {
		names = append(names, s.String())
	}
	return strings.Join(names, ", ")
}

// transition explains TYPE FROM TO. The default type is RC.
func transition(words []string) *Explanation {
	t := ibv.QPT_RC
	if len(words) == 3 {
		var ok bool
		if t, ok = queuePairType(words[0]); !ok {
			return nil
		}
		words = words[1:]
	}
	if len(words) != 2 || isNumber(words[0]) || isNumber(words[1]) {
		return nil
	}
	from, ok := parse[ibv.QPState](words[0], "IBV_QPS_")
	to, also := parse[ibv.QPState](words[1], "IBV_QPS_")
	if !ok || !also {
		return nil
	}
	rule := ibv.ModifyQP(t, from, to)
	e := &Explanation{Kind: "transition of a queue pair of type " + shortType(t),
		Name: fmt.Sprintf("%v → %v", from, to)}
	e.fact("allowed", rule.Answer.String())
	if rule.Answer == ibv.AnswerYes || rule.Answer == ibv.AnswerNeedsCapability {
		e.fact("required", rule.Required.String())
		if rule.Optional != 0 {
			e.fact("optional", rule.Optional.String())
		}
	}
	e.validity(rule.Validity)
	return e
}

// operation explains an opcode, for one queue pair type or all.
func operation(words []string) *Explanation {
	if len(words) == 0 || len(words) > 2 || isNumber(words[0]) {
		return nil
	}
	op, ok := parse[ibv.WROpcode](words[0], "IBV_WR_", "IBV_WR_RDMA_")
	if !ok {
		return nil
	}
	if len(words) == 1 {
		e := &Explanation{Kind: "operation of a work request", Name: op.String()}
		e.fact("ibv_post_send", types(func(t ibv.QPType) ibv.Answer { return ibv.PostSendValidity(t, op).Answer }))
		e.fact("ibv_wr builders", types(func(t ibv.QPType) ibv.Answer { return ibv.WRPost(t, op).Answer }))
		return e
	}
	t, ok := queuePairType(words[1])
	if !ok {
		return nil
	}
	v, how := ibv.PostSendValidity(t, op), "ibv_post_send"
	if v.Answer == ibv.AnswerNotInVerb {
		v, how = ibv.WRPost(t, op).Validity, "ibv_wr builders"
	}
	e := &Explanation{Kind: "operation on a queue pair of type " + shortType(t), Name: op.String()}
	e.fact("allowed", fmt.Sprintf("%v (%s)", v.Answer, how))
	e.validity(v)
	return e
}

// queuePair explains a queue pair type: the operations that can be posted.
func queuePair(words []string) *Explanation {
	if len(words) != 1 {
		return nil
	}
	t, ok := queuePairType(words[0])
	if !ok {
		return nil
	}
	e := &Explanation{Kind: "type of queue pair", Name: t.String()}
	e.fact("ibv_post_send", operations(func(op ibv.WROpcode) ibv.Answer { return ibv.PostSendValidity(t, op).Answer }))
	e.fact("ibv_wr builders", operations(func(op ibv.WROpcode) ibv.Answer { return ibv.WRPost(t, op).Answer }))
	return e
}

func (e *Explanation) validity(v ibv.Validity) {
	e.fact("if", v.Condition)
	e.fact("reason", v.Reason)
	e.fact("note", v.Note)
	e.fact("source", v.Source)
}

func queuePairType(word string) (ibv.QPType, bool) {
	if isNumber(word) {
		return 0, false
	}
	return parse[ibv.QPType](word, "IBV_QPT_")
}

func shortType(t ibv.QPType) string { return strings.TrimPrefix(t.String(), "IBV_QPT_") }

// types lists the queue pair types that allow an operation, always or with a capability.
func types(answer func(ibv.QPType) ibv.Answer) string {
	return allowed(ibv.QPT_RC, ibv.QPT_DRIVER, shortType, answer)
}

// operations lists the allowed operations, always or with a capability.
func operations(answer func(ibv.WROpcode) ibv.Answer) string {
	short := func(op ibv.WROpcode) string { return strings.TrimPrefix(op.String(), "IBV_WR_") }
	return allowed(ibv.WR_RDMA_WRITE, ibv.WR_ATOMIC_WRITE, short, answer)
}

func allowed[T ~uint32](first, last T, name func(T) string, answer func(T) ibv.Answer) string {
	var names []string
	for v := first; v <= last; v++ {
		if a := answer(v); a == ibv.AnswerYes || a == ibv.AnswerNeedsCapability {
			names = append(names, name(v))
		}
	}
	return strings.Join(names, ", ")
}
