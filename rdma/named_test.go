// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Attributes refer to objects by address. If an object is closed between Ptr and the call, either the call fails or the
// new child keeps the object open. A child never refers to a closed object.
func TestAttributeObjectsClosedConcurrently(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	cq, err := d.CreateCQ(64, nil, 0)
	closeAtEnd(t, cq, err)
	type closer interface{ Close() error }
	caps := ibv.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
	for name, c := range map[string]struct {
		parent func() (closer, func() (closer, error))
	}{
		"CQ of a QP": {func() (closer, func() (closer, error)) {
			own := must(d.CreateCQ(4, nil, 0))
			attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: own.Ptr(), Cap: caps}
			return own, func() (closer, error) { return pd.CreateQP(attr, QueueOptions{}) }
		}},
		"SRQ of a QP": {func() (closer, func() (closer, error)) {
			srq := must(pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{}))
			attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), SRQ: srq.Ptr(), Cap: caps}
			return srq, func() (closer, error) { return pd.CreateQP(attr, QueueOptions{}) }
		}},
		"PD of an extended QP": {func() (closer, func() (closer, error)) {
			own := must(d.AllocPD())
			attr := &ibv.QPInitAttrEx{QPType: ibv.QPT_RC, SendCQ: cq.Ptr(), RecvCQ: cq.Ptr(), PD: own.Ptr(),
				CompMask: ibv.QP_INIT_ATTR_PD, Cap: caps}
			return own, func() (closer, error) { return d.CreateQPEx(attr, QueueOptions{}) }
		}},
		"channel of an extended CQ": {func() (closer, func() (closer, error)) {
			channel := must(d.CreateCompChannel())
			attr := &ibv.CQInitAttrEx{CQE: 4, Channel: channel.Ptr()}
			return channel, func() (closer, error) { return d.CreateCQEx(attr) }
		}},
		"PD of an extended SRQ": {func() (closer, func() (closer, error)) {
			own := must(d.AllocPD())
			attr := &ibv.SRQInitAttrEx{Attr: ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, PD: own.Ptr(),
				CompMask: ibv.SRQ_INIT_ATTR_PD}
			return own, func() (closer, error) { return d.CreateSRQEx(attr, QueueOptions{}) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			created := 0
			for range rounds(t, 1000) {
				parent, create := c.parent()
				var child closer
				var failed, refused error
				var wg sync.WaitGroup
				wg.Go(func() { child, failed = create() })
				wg.Go(func() { refused = parent.Close() })
				wg.Wait()
				if failed != nil {
					assert.ErrorIs(t, failed, syscall.EINVAL)
					require.NoError(t, refused)
					continue
				}
				created++
				require.ErrorIs(t, refused, ErrInUse, "rejected before the call to C")
				require.NoError(t, child.Close())
				require.NoError(t, parent.Close())
			}
			t.Logf("the child was created first %d times", created)
		})
	}
}

// If a newer object reuses the address of a closed one, attributes refer to the newer object, and the child keeps it
// open.
func TestReusedAddressesInAttributes(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	old, err := d.CreateCQ(4, nil, 0)
	require.NoError(t, err)
	attr := &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: old.Ptr(), RecvCQ: old.Ptr(),
		Cap: ibv.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}
	require.NoError(t, old.Close())
	_, err = pd.CreateQP(attr, QueueOptions{})
	assert.ErrorContains(t, err, "SendCQ is not an open object of soft0")
	var newer *CQ
	for range 1000 {
		newer, err = d.CreateCQ(4, nil, 0)
		require.NoError(t, err)
		if newer.Ptr() == attr.SendCQ {
			break
		}
		require.NoError(t, newer.Close())
	}
	qp, err := pd.CreateQP(attr, QueueOptions{})
	require.NoError(t, err)
	assert.Same(t, newer, qp.SendCQ())
	assert.ErrorIs(t, newer.Close(), ErrInUse)
	require.NoError(t, qp.Close())
	require.NoError(t, newer.Close())
	attr.SendCQ, attr.RecvCQ = old.Ptr(), old.Ptr()
	_, err = pd.CreateQP(attr, QueueOptions{})
	assert.ErrorIs(t, err, ErrClosed)
}
