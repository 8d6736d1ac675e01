// SPDX-License-Identifier: BSD-2-Clause

package rpma

import (
	"time"
)

// ConnConfig configures one side of a connection. The zero value means the defaults. It is read when a request is
// created.
//
// C: rpma_conn_cfg_new, rpma_conn_cfg_delete
type ConnConfig struct {
	// Timeout limits each of the two steps of finding the peer: resolving its address and its route. 0 means 1 s. It
	// applies only to the side that requests the connection.
	//
	// C: rpma_conn_cfg_set_timeout, rpma_conn_cfg_get_timeout
	Timeout time.Duration
	// SQSize and RQSize are the maximum numbers of outstanding operations and receives. 0 means 10. If the queue is
	// full, operations fail with ENOMEM.
	//
	// C: rpma_conn_cfg_set_sq_size, rpma_conn_cfg_get_sq_size, rpma_conn_cfg_set_rq_size, rpma_conn_cfg_get_rq_size
	SQSize, RQSize int
	// CQSize is the size of the completion queue. 0 means 10. It is raised to the number of operations that can
	// complete there, so that the queue cannot overflow.
	//
	// C: rpma_conn_cfg_set_cq_size, rpma_conn_cfg_get_cq_size
	CQSize int
	// RecvCQSize is the size of a separate completion queue for receives, raised like CQSize. 0 means that receives
	// complete in the same queue as other operations. If the SRQ has its own completion queue, receives complete there.
	//
	// C: rpma_conn_cfg_set_rcq_size, rpma_conn_cfg_get_rcq_size
	RecvCQSize int
	// SharedChannel lets [Conn.Wait] wait for both completion queues. [CQ.Wait] then fails.
	//
	// C: rpma_conn_cfg_set_compl_channel, rpma_conn_cfg_get_compl_channel
	SharedChannel bool
	// SRQ is the shared receive queue that the connection receives from, or nil.
	//
	// C: rpma_conn_cfg_set_srq, rpma_conn_cfg_get_srq
	SRQ *SRQ
}

// complete returns the configuration with defaults. c may be nil.
func (c *ConnConfig) complete(op string) (full ConnConfig, err error) {
	if c != nil {
		full = *c
	}
	if full.Timeout < 0 || full.SQSize < 0 || full.RQSize < 0 || full.CQSize < 0 || full.RecvCQSize < 0 {
		return full, invalid(op, "negative number in ConnConfig: %+v", full)
	}
	if full.SRQ != nil && !full.SRQ.created() {
		return full, invalid(op, "ConnConfig.SRQ is a zero SRQ; create it with Peer.NewSRQ")
	}
	if full.SharedChannel && full.SRQ != nil && full.SRQ.cq != nil {
		return full, invalid(op, "SharedChannel and an SRQ with its own completion queue exclude each other")
	}
	if full.Timeout == 0 {
		full.Timeout = defaultTimeout
	}
	for _, size := range []*int{&full.SQSize, &full.RQSize, &full.CQSize} {
		if *size == 0 {
			*size = defaultQueueSize
		}
	}
	received := full.RQSize
	if full.SRQ != nil {
		received = int(full.SRQ.srq.Cap().MaxWR)
		if full.RQSize = 0; full.SRQ.cq != nil {
			full.RecvCQSize, received = 0, 0
		}
	}
	if full.RecvCQSize > 0 {
		full.RecvCQSize = max(full.RecvCQSize, received)
		received = 0
	}
	full.CQSize = max(full.CQSize, full.SQSize+received)
	return full, nil
}
