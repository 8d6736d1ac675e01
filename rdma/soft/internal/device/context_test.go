// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

// TestCloseWithObjects: a device with objects can be closed, as in libibverbs. Its objects still count, are listed as
// open and can be destroyed; destroying the last one frees the context.
func TestCloseWithObjects(t *testing.T) {
	r := newTestbed(t, Options{Trace: true})
	before := r.fabric.Resources()
	context, err := verbs.OpenDevice(r.context[0].Device.Deref())
	require.NoError(t, err)
	pd, err := verbs.AllocPD(context)
	require.NoError(t, err)
	cq, err := verbs.CreateCQ(context, 4, 0, nil, 0)
	require.NoError(t, err)
	qp, err := verbs.CreateQP(pd, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
		Cap: testCaps})
	require.NoError(t, err)
	require.NoError(t, verbs.CloseDevice(context))
	assert.ErrorIs(t, verbs.CloseDevice(context), syscall.EINVAL, "already closed")
	_, err = verbs.AllocPD(context)
	assert.ErrorIs(t, err, syscall.EINVAL)
	assert.Error(t, verbs.QueryDevice(context, new(ibv.DeviceAttr)))
	open := r.fabric.Resources()
	for _, kind := range []string{"ctx", "pd", "cq", "qp"} {
		assert.Equal(t, before[kind]+1, open[kind], kind)
	}
	for _, text := range r.fabric.Held() {
		assert.Contains(t, text, " made at ", "objects of the closed context are listed, too")
	}
	// The closed context receives no events of the device.
	require.True(t, r.fabric.SetLink("soft0", false))
	require.True(t, r.fabric.SetLink("soft0", true))
	wc := new(ibv.WC)
	n, err := verbs.PollCQ(cq, 1, wc)
	require.NoError(t, err)
	assert.Zero(t, n)
	require.NoError(t, verbs.DestroyQP(qp))
	require.NoError(t, verbs.DestroyCQ(cq))
	assert.Equal(t, before["ctx"]+1, r.fabric.Resources()["ctx"])
	require.NoError(t, verbs.DeallocPD(pd))
	assert.Equal(t, before, r.fabric.Resources())
}
