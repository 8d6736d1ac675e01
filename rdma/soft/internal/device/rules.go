// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
)

// transports are the types of queue pair that there are here.
var transports = [...]ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV}

// sendFlags are all of them.
var sendFlags = [...]ibv.SendFlags{ibv.SEND_FENCE, ibv.SEND_SIGNALED, ibv.SEND_SOLICITED, ibv.SEND_INLINE,
	ibv.SEND_IP_CSUM}

// opcodeRule is the generated tables' entry for an operation on a type of queue pair.
type opcodeRule struct {
	posts, builds bool          // by ibv_post_send; by ibv_wr_*
	flags         ibv.SendFlags // that ibv_post_send takes
	wrFlags       ibv.SendFlags // that ibv_wr_* takes
}

// rules are the generated tables of valid operations, by type of queue pair and opcode.
var rules = func() (all [ibv.QPT_XRC_RECV + 1][knownOpcodes]opcodeRule) {
	for _, kind := range transports {
		for op := range ibv.WROpcode(knownOpcodes) {
			// the device has neither
			if !strings.HasPrefix(op.String(), "IBV_") || op == ibv.WR_DRIVER1 || op == ibv.WR_TSO {
				continue
			}
			rule := &all[kind][op]
			rule.posts = !refused(ibv.PostSendValidity(kind, op))
			rule.builds = !refused(ibv.WRPost(kind, op).Validity)
			for _, flag := range sendFlags {
				if flag == ibv.SEND_IP_CSUM { // the device does not compute them
					continue
				}
				if !refused(ibv.SendFlagValidity(kind, op, flag)) {
					rule.flags |= flag
				}
				if !refused(ibv.WRFlagValidity(kind, op, flag)) {
					rule.wrFlags |= flag
				}
			}
			// A request with inline data may have the flag and need not: the provider of rxe requires it.
			rule.wrFlags |= rule.flags & ibv.SEND_INLINE
		}
	}
	return all
}()
