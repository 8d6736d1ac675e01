// SPDX-License-Identifier: BSD-2-Clause

package direct

import (
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/lock"
	"github.com/goverbs/goverbs/rdma/internal/datapath"
)

// Each queue of package native has one path, because a queue must have only one writer. Package native posts and polls
// through that path, and lends it to programs that bypass the package's slots. Package native still destroys the queues
// and counts their events.

var owned sync.Map // *ibv.Context to *Queues

// Own registers d as the path of a device that package native has opened, until Disown.
func (d *Queues) Own(c *ibv.Context) { owned.Store(c, d) }

// Disown undoes Own.
func (d *Queues) Disown(c *ibv.Context) { owned.CompareAndDelete(c, d) }

// Of returns the path of a device that package native has opened, or nil.
func Of(c *ibv.Context) *Queues {
	d, _ := owned.Load(c)
	q, _ := d.(*Queues)
	return q
}

// lent returns the path of a queue of package native, for lending.
func lent[C comparable, Q any](d *Queues, all map[C]*Q, c C, lend func(*Q) datapath.Queue) (datapath.Queue, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := all[c]; q != nil {
		return lend(q), nil
	}
	return nil, unable("mlx5dv_init_obj", "the queue has no data path in Go")
}

type (
	lentCQ  struct{ *completionQueue }
	lentSRQ struct{ *sharedQueue }
	lentQP  struct{ *queuePair }
)

func (lentCQ) Event()                          {}
func (lentCQ) Held(*lock.Lock)                 {} // package native polls, too, so it keeps its own lock
func (lentCQ) End(destroy func() error) error  { return destroy() }
func (lentSRQ) End(destroy func() error) error { return destroy() }
func (q lentSRQ) Inspect() string              { return q.Misused(false) }
func (q lentQP) Reset()                        { q.reset() }
func (lentQP) End(destroy func() error) error  { return destroy() }
