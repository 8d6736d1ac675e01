// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft/internal/engine"
)

// transports are the supported types of queue pairs.
var transports = [...]ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV}

// sendFlags are all send flags.
var sendFlags = [...]ibv.SendFlags{ibv.SEND_FENCE, ibv.SEND_SIGNALED, ibv.SEND_SOLICITED, ibv.SEND_INLINE,
	ibv.SEND_IP_CSUM}

// bindable has the generated table's answers for binds by requests, by type of window and of queue pair.
var bindable = func() (all [ibv.MW_TYPE_2 + 1][ibv.QPT_XRC_RECV + 1]bool) {
	for _, kind := range transports {
		for mw := ibv.MW_TYPE_1; mw <= ibv.MW_TYPE_2; mw++ {
			all[mw][kind] = !engine.Refused(ibv.BindMWValidity(mw, ibv.BindMWPostSend, kind))
		}
	}
	return all
}()

// opcodeRule is the generated tables' entry for an operation on a type of queue pair.
type opcodeRule struct {
	posts, Builds bool          // by ibv_post_send; by ibv_wr_*
	flags         ibv.SendFlags // that ibv_post_send takes
	wrFlags       ibv.SendFlags // that ibv_wr_* takes
}

// Rules are the generated tables of valid operations, by type of queue pair and opcode.
var Rules = func() (all [ibv.QPT_XRC_RECV + 1][engine.KnownOpcodes]opcodeRule) {
	for _, kind := range transports {
		for op := range ibv.WROpcode(engine.KnownOpcodes) {
			// the device has neither
			if !strings.HasPrefix(op.String(), "IBV_") || op == ibv.WR_DRIVER1 || op == ibv.WR_TSO {
				continue
			}
			rule := &all[kind][op]
			rule.posts = !engine.Refused(ibv.PostSendValidity(kind, op))
			rule.Builds = !engine.Refused(ibv.WRPost(kind, op).Validity)
			for _, flag := range sendFlags {
				if flag == ibv.SEND_IP_CSUM { // the device does not compute them
					continue
				}
				if !engine.Refused(ibv.SendFlagValidity(kind, op, flag)) {
					rule.flags |= flag
				}
				if !engine.Refused(ibv.WRFlagValidity(kind, op, flag)) {
					rule.wrFlags |= flag
				}
			}
			// The flag is optional for a request with inline data; rxe's provider requires it.
			rule.wrFlags |= rule.flags & ibv.SEND_INLINE
		}
	}
	return all
}()
