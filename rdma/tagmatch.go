package rdma

import (
	"errors"

	"github.com/goverbs/goverbs/rdma/internal/wq"
)

// PostTags posts a whole batch of operations on the tag list. posted is the number of operations that were posted: all
// of them, or with an error those before the one that failed. ENOMEM means that the list, or the room for operations,
// is full (max_num_tags and max_ops of the queue's tm_cap). It does not block. Any number of goroutines may post at
// once, each with its own batch. The memory of a tag's entries belongs to the device until a message has arrived or the
// tag is deleted.
//
// The error is a [*PostError], or that of the batch.
//
// C: ibv_post_srq_ops
//
// Man: ibv_post_srq_ops(3)
func (q *SRQ) PostTags(b *TagBatch) (posted int, err error) {
	const verb = "ibv_post_srq_ops"
	if err := b.Err(); err != nil || b.Len() == 0 {
		return 0, err
	}
	if err := q.use(verb); err != nil {
		return 0, err
	}
	defer q.done()
	posted, err = wq.PostTags(q.c, q.kind, q.name, b)
	if e := (*PostError)(nil); err != nil && !errors.As(err, &e) {
		err = wrap(verb, q.name, err)
	}
	return posted, err
}
