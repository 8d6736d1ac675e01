// SPDX-License-Identifier: BSD-2-Clause

package device

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/soft/internal/mem"
	impl "github.com/goverbs/goverbs/rdma/soft/internal/verbs"
)

// moderated is a testPair whose receive completion queue has a channel.
type moderated struct {
	*testPair
	channel  *ibv.CompChannel
	cq       *ibv.CQ
	from, to *ibv.QP
}

func newModerated(t *testing.T, o Options) *moderated {
	m := &moderated{testPair: newTestPair(t, ibv.QPT_RC, o)}
	var err error
	m.channel, err = verbs.CreateCompChannel(m.context[1])
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCompChannel(m.channel)) })
	m.cq, err = verbs.CreateCQ(m.context[1], 64, 0, m.channel, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, verbs.DestroyCQ(m.cq)) })
	m.from, m.to = m.qp(0, ibv.QPT_RC, testCaps, m.p.aSend, m.p.aRecv), m.qp(1, ibv.QPT_RC, testCaps, m.p.bSend, m.cq)
	m.connect(m.from, 1, m.to.QPNum)
	m.connect(m.to, 0, m.from.QPNum)
	return m
}

func (m *moderated) modify(count, period uint16) {
	require.NoError(m.t, verbs.ModifyCQ(m.cq, &ibv.ModifyCQAttr{AttrMask: ibv.CQ_ATTR_MODERATE,
		Moderate: ibv.ModerateCQ{CQCount: count, CQPeriod: period}}))
}

func (m *moderated) send(n int) {
	for range n {
		m.recv(m.to, 1)
		require.NoError(m.t, m.post(m.from, m.testPair.send(1, ibv.WR_SEND)))
		m.poll(m.p.aSend)
		m.poll(m.cq)
	}
}

// events returns the number of pending events, without polling, which would advance the virtual clock.
func (m *moderated) events() int {
	c := impl.Find[impl.Channel](mem.AddressOf(m.channel))
	c.Fabric().Mu.Lock()
	defer c.Fabric().Mu.Unlock()
	return len(c.Events.Queue)
}

func (m *moderated) take() {
	m.t.Helper()
	m.cqEvent(m.channel)
	verbs.AckCQEvents(m.cq, 1)
}

// TestModeration: an event is raised after cq_count completions or after cq_period.
func TestModeration(t *testing.T) {
	m := newModerated(t, Options{})
	attr := new(ibv.DeviceAttrEx)
	require.NoError(t, verbs.QueryDeviceEx(m.context[1], nil, attr))
	assert.Equal(t, ibv.CQModerationCaps{MaxCQCount: 65535, MaxCQPeriod: 65535}, attr.CQModCaps)

	m.modify(3, 50)
	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
	m.send(2)
	assert.Zero(t, m.events(), "two of three")
	m.send(1)
	assert.Equal(t, 1, m.events())
	m.take()
	m.fabric.Advance(time.Millisecond)
	assert.Zero(t, m.events(), "the count was reached before the period ended")

	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
	start := m.fabric.Now()
	m.send(1)
	m.fabric.Advance(49 * time.Microsecond)
	m.send(1)
	assert.Zero(t, m.events())
	m.fabric.Advance(time.Microsecond)
	assert.Equal(t, 1, m.events(), "50 µs after the first completion")
	m.take()
	assert.Equal(t, 50*time.Microsecond, m.fabric.Now()-start)

	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
	m.send(1)
	m.take()
	assert.Equal(t, 100*time.Microsecond, m.fabric.Now()-start, "waiting for the event advances the clock")

	m.send(2)
	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
	m.send(2)
	assert.Zero(t, m.events(), "completions before arming do not count")
	m.modify(2, 50)
	assert.Equal(t, 1, m.events(), "the count is reached")
	m.take()
	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
	m.send(1)
	m.modify(9, 10)
	m.fabric.Advance(10 * time.Microsecond)
	assert.Equal(t, 1, m.events(), "the new period")
	m.take()
	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
	m.send(1)
	for _, off := range [][2]uint16{{0, 0}, {5, 0}, {0, 5}, {1, 5}} {
		m.modify(off[0], off[1])
		assert.Equal(t, 1, m.events(), "%v delays no event", off)
		m.take()
		require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
		m.send(1)
	}
	m.take()

	m.modify(9, 10)
	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 1))
	m.send(1)
	m.fabric.Advance(time.Millisecond)
	assert.Zero(t, m.events(), "no completion was solicited")
	require.NoError(t, verbs.ReqNotifyCQ(m.cq, 0))
	m.send(1) // the event is never raised, because the queue is destroyed
}

func TestModerationWithRealClock(t *testing.T) {
	r := newTestbed(t, Options{})
	ch, err := verbs.CreateCompChannel(r.context[0])
	require.NoError(t, err)
	cq, err := verbs.CreateCQ(r.context[0], 4, 0, ch, 0)
	require.NoError(t, err)
	require.NoError(t, verbs.ModifyCQ(cq, &ibv.ModifyCQAttr{AttrMask: ibv.CQ_ATTR_MODERATE,
		Moderate: ibv.ModerateCQ{CQCount: 100, CQPeriod: 20_000}}))
	require.NoError(t, verbs.ReqNotifyCQ(cq, 0))
	start := time.Now()
	r.postLoopback(cq, nil, r.send(1, ibv.WR_RDMA_WRITE))
	r.cqEvent(ch)
	assert.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	verbs.AckCQEvents(cq, 1)
	require.NoError(t, verbs.DestroyCQ(cq))
	require.NoError(t, verbs.DestroyCompChannel(ch))
}

func TestInvalidModeration(t *testing.T) {
	r := newTestbed(t, Options{})
	cq := r.cq(0, 4)
	assert.ErrorIs(t, verbs.ModifyCQ(cq, nil), syscall.EINVAL)
	assert.ErrorIs(t, verbs.ModifyCQ(cq, &ibv.ModifyCQAttr{AttrMask: ibv.CQ_ATTR_RESERVED}), syscall.EINVAL)
	assert.NoError(t, verbs.ModifyCQ(cq, &ibv.ModifyCQAttr{}), "empty mask")
}
