package wq

import "github.com/goverbs/goverbs/generated/ibv"

// QueueOptions are what a queue has to know that the structures of C do not say.
type QueueOptions struct {
	// Cap, SQSigAll and MaxMessage are known to the constructors of objects, which need not be told.

	// Cap is what the queue pair can hold, as ibv_create_qp gave it back; for a shared receive queue, MaxRecvWR and MaxRecvSGE. A checked
	// queue needs it.
	Cap ibv.QPCap
	// SQSigAll says that every send request completes: sq_sig_all of ibv_qp_init_attr.
	SQSigAll bool
	// MaxMessage is the most bytes of a message: max_msg_sz of ibv_port_attr, or for datagrams the path's MTU. 0 means not known: 2 GiB.
	MaxMessage uint32
	// NoIPChecksum says that the device is known not to have IBV_SEND_IP_CSUM for this queue pair.
	NoIPChecksum bool
	// Overcommit lets the queue pair complete in completion queues that have no room for all that may be outstanding: the user sees to it
	// that they do not overrun. Of use with objects alone.
	Overcommit bool
	// Unchecked leaves checks and accounting out. Where such a queue pair has a shared receive queue that counts, each of its sends that fails
	// gives one of that one's slots back: a failed completion does not tell that it is a send's.
	Unchecked bool
	// Way forces how the queue is called: "blocking", "system" or "exclusive", the last one meaning a private stack for Exclusive and
	// the system stack otherwise. "" leaves it to GOVERBS_CALL, and that to what is known of the provider.
	Way string
	// Providers are looked up before the built-in ones.
	Providers []Provider
}
