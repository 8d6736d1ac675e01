// SPDX-License-Identifier: BSD-2-Clause

package device

import "github.com/goverbs/goverbs/generated/ibv"

// knownOpcodes is more than the highest opcode of the tables.
const knownOpcodes = 16

// sendOpcodes and recvOpcodes are those of completions, by opcode.
var sendOpcodes, recvOpcodes = func() (send, recv [knownOpcodes]ibv.WCOpcode) {
	for op := range ibv.WROpcode(knownOpcodes) {
		send[op], recv[op] = ibv.SendCompletion(op).Opcode, ibv.RecvCompletion(op).Opcode
	}
	return send, recv
}()

// stateAfter is the state that a queue pair takes when a send ends, where it changes: from SQE, that of datagrams and
// unreliable connections, there is a way back.
func stateAfter(status ibv.WCStatus, kind ibv.QPType) (ibv.QPState, bool) {
	if status == ibv.WC_SUCCESS {
		return 0, false
	}
	rule := ibv.StateAfterCompletion(status, ibv.WorkQueueSend, kind)
	return rule.State, rule.Answer == ibv.AnswerYes
}
