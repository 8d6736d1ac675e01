// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
)

// QueueOptions holds properties of a queue that C's attributes do not have.
type QueueOptions struct {
	// CreateQP and the other methods that create objects set Cap, SQSigAll and MaxMessage and ignore the caller's
	// values.

	// Cap is the capacity of the queue pair as ibv_create_qp returned it. For a shared receive queue, set MaxRecvWR and
	// MaxRecvSGE. Checked queues require it.
	Cap ibv.QPCap
	// SQSigAll signals every send request: sq_sig_all of ibv_qp_init_attr.
	SQSigAll        bool
	narrow          bool   // the provider is libefa: see restrict
	notRequestedOps uint16 // ibv.QPCreateSendOpsFlags that were not set in send_ops_flags
	// MaxMessage is the largest message in bytes: max_msg_sz of ibv_port_attr, or the path's MTU for datagrams. If it
	// is 0, the limit is 2 GiB.
	MaxMessage uint32
	// NoIPChecksum means that the device does not support IBV_SEND_IP_CSUM for this queue pair.
	NoIPChecksum bool
	// Overcommit allows completion queues without room for all work requests of the queue pair. The caller must then
	// prevent an overrun. It applies only to methods that create objects.
	Overcommit bool
	// Unchecked turns off checks and slot accounting. If such a queue pair uses a checked shared receive queue, each of
	// its failed sends wrongly releases a slot of that queue, because a failed completion does not identify its queue.
	Unchecked bool
	// Way selects how the queue is called: "blocking" or "system". If it is "", GOVERBS_CALL selects it, or else the
	// provider.
	Way string
	// Path replaces the provider's functions, for example with a data path in Go. If it is nil, the queue uses the path
	// that Device.UsePath set, or else the provider's functions.
	Path Path
	// Providers take precedence over the built-in ones.
	Providers []Provider
}

// restrict adds the restrictions of a provider. libefa truncates remote queue pair numbers to 16 bits, so a message
// would reach another queue pair. It accepts a receive without entries, but does not pass it to the device.
func (o *QueueOptions) restrict(driver string) { o.narrow = o.narrow || driver == "efa" }

// defaultDepth is the default capacity of a send or receive queue.
const defaultDepth = 64

// DefaultCap returns the default capacities of a queue pair. Those of the receive queue are 0 with a shared receive
// queue.
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
