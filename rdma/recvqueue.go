package rdma

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/runtime"
)

// RecvQueue posts to the receive queue of a queue pair. Any number of goroutines may use it at once, each with its own batch.
//
// Man: ibv_post_recv(3)
type RecvQueue struct{ slot }

// SharedRecvQueue posts to a shared receive queue. Any number of goroutines may use it at once, each with its own batch.
//
// Man: ibv_post_srq_recv(3)
type SharedRecvQueue struct{ slot }

func NewRecvQueue(qp *ibv.QP, o QueueOptions) (*RecvQueue, error) { return nil, nil }

func NewSharedRecvQueue(srq *ibv.SRQ, o QueueOptions) (*SharedRecvQueue, error) { return nil, nil }

func (q *RecvQueue) Post(b *RecvBatch) (posted int, err error)                    { return 0, nil }
func (q *RecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) { return 0, nil }
func (q *RecvQueue) Way() runtime.Way                                             { return q.shared() }
func (q *RecvQueue) Provider() string                                             { return q.provider }
func (q *RecvQueue) Exclusive() (*ExclusiveRecvQueue, error)                      { return nil, nil }

func (q *SharedRecvQueue) Post(b *RecvBatch) (posted int, err error) { return 0, nil }
func (q *SharedRecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) {
	return 0, nil
}
func (q *SharedRecvQueue) Way() runtime.Way                              { return q.shared() }
func (q *SharedRecvQueue) Provider() string                              { return q.provider }
func (q *SharedRecvQueue) Exclusive() (*ExclusiveSharedRecvQueue, error) { return nil, nil }

// ExclusiveRecvQueue is a [RecvQueue] for one goroutine.
type ExclusiveRecvQueue struct{}

func (x *ExclusiveRecvQueue) Post(b *RecvBatch) (posted int, err error) { return 0, nil }
func (x *ExclusiveRecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) {
	return 0, nil
}
func (x *ExclusiveRecvQueue) Release()     {}
func (x *ExclusiveRecvQueue) Close() error { return nil }

// ExclusiveSharedRecvQueue is a [SharedRecvQueue] for one goroutine.
type ExclusiveSharedRecvQueue struct{}

func (x *ExclusiveSharedRecvQueue) Post(b *RecvBatch) (posted int, err error) { return 0, nil }
func (x *ExclusiveSharedRecvQueue) PostRange(b *RecvBatch, from, to int) (posted int, err error) {
	return 0, nil
}
func (x *ExclusiveSharedRecvQueue) Release()     {}
func (x *ExclusiveSharedRecvQueue) Close() error { return nil }
