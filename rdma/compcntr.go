// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"fmt"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/internal/refusal"
)

// CompCntr is a completion counter. It counts completed and failed operations of queue pairs, or their bytes, without
// regard to opcodes.
//
// Man: ibv_create_comp_cntr(3)
type CompCntr struct {
	object
	c *ibv.CompCntr
}

// CompCntrCaps returns the device's capabilities for completion counters.
//
// C: ibv_query_comp_cntr_caps
//
// Man: ibv_query_comp_cntr_caps(3)
func (d *Device) CompCntrCaps() (*ibv.CompCntrCaps, error) {
	caps := new(ibv.CompCntrCaps)
	return caps, d.query("ibv_query_comp_cntr_caps", func() error { return libibverbs.QueryCompCntrCaps(d.c, caps) })
}

// CreateCompCntr creates a completion counter.
//
// C: ibv_create_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (d *Device) CreateCompCntr(attr *ibv.CompCntrInitAttr) (*CompCntr, error) {
	if attr == nil {
		return nil, noAttributes("ibv_create_comp_cntr", d.name)
	}
	n := &CompCntr{}
	err := createObject(d, &n.object, &n.c, n, "ibv_create_comp_cntr",
		func() (*ibv.CompCntr, error) { return libibverbs.CreateCompCntr(d.c, attr) }, libibverbs.DestroyCompCntr,
		func(c *ibv.CompCntr) string { return fmt.Sprintf("completion counter %d on %s", c.Handle, d.name) })
	return made(n, err)
}

// AttachCompCntr makes n count the queue pair's operations that ops selects. Call it before the queue pair enters RTR.
// Counting ends when the queue pair is closed. Close the queue pair before the counter.
//
// C: ibv_qp_attach_comp_cntr
//
// Man: ibv_qp_attach_comp_cntr(3)
func (q *QP) AttachCompCntr(n *CompCntr, ops ibv.QPAttachCompCntrOp) error {
	const verb = "ibv_qp_attach_comp_cntr"
	if n == nil {
		return isNil(verb, q.name, "counter")
	}
	if err := useAll(verb, &q.object, &n.object); err != nil {
		return err
	}
	defer doneAll(&q.object, &n.object)
	q.changes.Lock()
	defer q.changes.Unlock()
	if state := q.state(); state != ibv.QPS_RESET && state != ibv.QPS_INIT {
		return invalid(verb, q.name, "the queue pair is in %s; attach counters in RESET or INIT",
			refusal.ShortState(state))
	}
	if err := libibverbs.QPAttachCompCntr(q.c, n.c, &ibv.QPAttachCompCntrAttr{OpMask: ops}); err != nil {
		return wrap(verb, q.name, err)
	}
	q.life.Join(&n.life)
	return nil
}

// C returns C's object, for calls to generated/libibverbs. It belongs to the CompCntr.
func (n *CompCntr) C() *ibv.CompCntr { return whileOpen(&n.object, n.c) }

func (n *CompCntr) call(verb string, f func() error) error {
	if err := n.use(verb); err != nil {
		return err
	}
	defer n.done()
	return wrap(verb, n.name, f())
}

// Set sets the number of completed operations or bytes.
//
// C: ibv_set_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (n *CompCntr) Set(value uint64) error {
	return n.call("ibv_set_comp_cntr", func() error { return libibverbs.SetCompCntr(n.c, value) })
}

// SetErr sets the number of failed operations or bytes.
//
// C: ibv_set_err_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (n *CompCntr) SetErr(value uint64) error {
	return n.call("ibv_set_err_comp_cntr", func() error { return libibverbs.SetErrCompCntr(n.c, value) })
}

// Inc adds to the number of completed operations or bytes.
//
// C: ibv_inc_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (n *CompCntr) Inc(amount uint64) error {
	return n.call("ibv_inc_comp_cntr", func() error { return libibverbs.IncCompCntr(n.c, amount) })
}

// IncErr adds to the number of failed operations or bytes.
//
// C: ibv_inc_err_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (n *CompCntr) IncErr(amount uint64) error {
	return n.call("ibv_inc_err_comp_cntr", func() error { return libibverbs.IncErrCompCntr(n.c, amount) })
}

// Read returns the number of completed operations or bytes.
//
// C: ibv_read_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (n *CompCntr) Read() (uint64, error) {
	value := new(uint64)
	err := n.call("ibv_read_comp_cntr", func() error { return libibverbs.ReadCompCntr(n.c, value) })
	return *value, err
}

// ReadErr returns the number of failed operations or bytes.
//
// C: ibv_read_err_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (n *CompCntr) ReadErr() (uint64, error) {
	value := new(uint64)
	err := n.call("ibv_read_err_comp_cntr", func() error { return libibverbs.ReadErrCompCntr(n.c, value) })
	return *value, err
}

// Close frees the counter. Close its queue pairs first.
//
// C: ibv_destroy_comp_cntr
//
// Man: ibv_create_comp_cntr(3)
func (n *CompCntr) Close() error { return n.end() }
