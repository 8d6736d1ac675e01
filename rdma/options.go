// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
)

// QueueOptions holds the properties of a queue that C's structures lack.
type QueueOptions struct {
	// The constructors of objects set Cap, SQSigAll and MaxMessage themselves; they ignore the caller's values.

	// Cap is the capacity of the queue pair as ibv_create_qp returned it; for a shared receive queue, set MaxRecvWR and
	// MaxRecvSGE. A checked queue needs it.
	Cap ibv.QPCap
	// SQSigAll signals every send request: sq_sig_all of ibv_qp_init_attr.
	SQSigAll bool
	narrow   bool   // the device's library is libefa: see restrict
	unasked  uint16 // ibv.QPCreateSendOpsFlags that were not set in send_ops_flags
	// MaxMessage is the largest message in bytes: max_msg_sz of ibv_port_attr, or the path's MTU for datagrams. 0 means
	// unknown; then 2 GiB is the limit.
	MaxMessage uint32
	// NoIPChecksum is set if the device lacks IBV_SEND_IP_CSUM for this queue pair.
	NoIPChecksum bool
	// Overcommit allows completion queues without room for all work requests of the queue pair. The caller must then
	// prevent an overrun. Only the constructors of objects use it.
	Overcommit bool
	// Unchecked turns off checks and accounting. If such a queue pair uses a checked shared receive queue, each of its
	// failed sends gives back a slot of that queue, because a failed completion does not identify its queue.
	Unchecked bool
	// Way forces how the queue is called: "blocking" or "system". If it is "", GOVERBS_CALL decides, and if that is not
	// set, the provider.
	Way string
	// Path replaces the provider's functions, for example with a data path in Go. If it is nil, the queue uses the path
	// set with Device.UsePath, or else the provider's functions.
	Path Path
	// Providers are looked up before the built-in ones.
	Providers []Provider
}

// restrict adds the restrictions of a provider's library. libefa truncates numbers of remote queue pairs to 16 bits, so
// that a message would reach another queue pair. It counts a receive without entries, but does not hand it to the
// device.
func (o *QueueOptions) restrict(driver string) { o.narrow = o.narrow || driver == "efa" }

// leastRecvSGE returns the minimum number of entries of a receive.
func (o *QueueOptions) leastRecvSGE() uint32 {
	if o.narrow && o.Cap.MaxRecvSGE > 0 {
		return 1
	}
	return 0
}

// defaultDepth is the capacity of each queue of a queue pair by default.
const defaultDepth = 64

// DefaultCap returns the capacities of a queue pair whose creator does not set them. A queue pair with a shared
// receive queue has no private receive queue.
func DefaultCap(kind ibv.QPType, sharedRecv bool) ibv.QPCap {
	c := ibv.QPCap{MaxSendWR: defaultDepth, MaxSendSGE: 1, MaxRecvWR: defaultDepth, MaxRecvSGE: 1}
	if kind == ibv.QPT_XRC_RECV {
		c.MaxSendWR, c.MaxSendSGE = 0, 0
	}
	if sharedRecv || kind == ibv.QPT_XRC_RECV || kind == ibv.QPT_XRC_SEND {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	return c
}

// onlyOperations makes the queue's checks reject operations that are not in the send_ops_flags of the queue pair,
// because libraries size their rings for those flags (ibv_wr_post(3)).
func (o *QueueOptions) onlyOperations(operations ibv.QPCreateSendOpsFlags) {
	o.unasked = ^uint16(operations)
}
