// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"errors"
	"io"
	"sync"

	"github.com/goverbs/goverbs/rdma"
)

// engine has the objects that all transfers of one side share: a protection domain, a completion queue and a pool of
// memory.
type engine struct {
	device *rdma.Device
	pd     *rdma.PD
	notify *rdma.CompChannel
	cq     *rdma.CQ
	calls  *rdma.Calls
	pool   pool

	destroy func(io.Closer) error // closes queue pairs and memory regions; tests make it fail

	mu       sync.Mutex
	stranded []*link // links that could not be closed
}

// perLink is the number of completions per link: one send and one receive, which devices may round up.
const perLink = 4

// newEngine creates the objects for a number of concurrent links. keep is the maximum size of idle memory.
func newEngine(device *rdma.Device, links int, keep int64) (*engine, error) {
	if device == nil {
		return nil, errors.New("s3rdma: Options.Device is nil; open one with rdma.Open")
	}
	e := &engine{device: device, pool: pool{keep: keep, blocked: map[*rdma.Buffer]bool{}}, destroy: io.Closer.Close}
	if err := e.open(links * perLink); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

func (e *engine) open(completions int) (err error) {
	if e.pd, err = e.device.AllocPD(); err != nil {
		return err
	}
	if e.notify, err = e.device.CreateCompChannel(); err != nil {
		return err
	}
	if e.cq, err = e.device.CreateCQ(completions, e.notify, 0); err != nil {
		return err
	}
	e.calls, err = rdma.NewCalls(e.cq, completions, nil)
	return err
}

// strand keeps a link that could not be closed, and its memory, until the engine is closed.
func (e *engine) strand(l *link) {
	if l.memory != nil {
		e.pool.block(l.memory)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stranded = append(e.stranded, l)
}

// discarded returns the number of transfers whose memory cannot be reused because its key could not be revoked.
func (e *engine) discarded() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.stranded)
}

// close closes everything. It fails if there are open links, or stranded links that still cannot be closed.
func (e *engine) close() error {
	var errs []error
	e.mu.Lock()
	for _, l := range e.stranded {
		if err := l.release(); err != nil {
			errs = append(errs, err)
		} else {
			e.pool.unblock(l.memory)
		}
	}
	e.mu.Unlock()
	errs = append(errs, e.pool.close())
	if e.calls != nil {
		errs = append(errs, e.calls.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.notify != nil {
		errs = append(errs, e.notify.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	return errors.Join(errs...)
}
