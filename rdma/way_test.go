// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/internal/provider"
	"github.com/goverbs/goverbs/runtime"
)

func TestWay(t *testing.T) {
	d := newDevice(t, ibv.QPT_RC)
	q := sendQueue(t, d, options(1, 1, 0))
	assert.Equal(t, provider.Software, q.Provider())
	assert.Equal(t, runtime.Blocking, q.Way())

	o := options(1, 1, 0)
	o.Providers = []Provider{{Name: provider.Software, Pure: PostSend}}
	q = sendQueue(t, d, o)
	assert.Equal(t, runtime.System, q.Way())
	cq, err := NewCompletionQueue(&d.cq, o)
	require.NoError(t, err)
	assert.Equal(t, runtime.Blocking, cq.Way(), "polls of this provider may sleep")

	brief := options(1, 1, 0)
	brief.Providers = []Provider{{Name: provider.Software, Brief: PostSend}}
	q = sendQueue(t, d, brief)
	assert.Equal(t, runtime.System, q.Way())

	t.Setenv(provider.EnvCall, "blocking")
	assert.Equal(t, runtime.Blocking, sendQueue(t, d, o).Way())
	o.Way = "system"
	q = sendQueue(t, d, o)
	assert.Equal(t, runtime.System, q.Way(), "the option takes precedence")
	_, err = q.Post(writes(sendBatch(t, 1, 1, 0), 1, 1))
	require.NoError(t, err)

	t.Setenv(provider.EnvCall, "fast")
	_, err = NewSendQueue(&d.qp, options(1, 1, 0))
	assert.EqualError(t, err,
		`rdma: GOVERBS_CALL: unknown way to call C: "fast"; use one of blocking, system`)
	o.Way = "quick"
	_, err = NewSendQueue(&d.qp, o)
	assert.EqualError(t, err,
		`rdma: QueueOptions.Way: unknown way to call C: "quick"; use one of blocking, system`)
}
