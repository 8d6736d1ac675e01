package rdma

import (
	"errors"
	goruntime "runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
)

// Objects that need one another are closed together, those that are closed already being passed over; or none of them, when another needs one, or
// when who closes them cannot after all. Then they work on.
func TestCloseAll(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	e := newEnd(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	loop(t, e.qp)
	mr, err := pd.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	all := []Object{e.qp, e.cq, e.channel, pd, d}
	works := func(id uint64) {
		t.Helper()
		e.write(id, 1)
		n, err := e.cq.Wait(soon(t), e.wcs)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, id, e.wcs[0].WRID)
	}

	failed := errors.New("not now")
	never := func() error { t.Error("it is not ready"); return failed }
	for _, err := range []error{Needed(all...), CloseAll(never, all...)} {
		assert.ErrorIs(t, err, ErrInUse)
		assert.ErrorContains(t, err, "it is needed by "+mr.name+", which")
	}
	works(1)
	require.NoError(t, mr.Close())
	handle, err := e.qp.SendQueue().Exclusive()
	require.NoError(t, err)
	assert.ErrorContains(t, Needed(all...), "an exclusive handle")
	require.NoError(t, handle.Close())
	require.NoError(t, Needed(all...))
	works(2)

	assert.Equal(t, failed, CloseAll(func() error { return failed }, all...))
	works(3)
	assert.ErrorIs(t, Needed(e.channel, pd), ErrInUse, "its completion queue is not among them")

	e.write(4, 3) // outstanding
	require.NoError(t, CloseAll(nil, all...))
	for _, gone := range []any{e.qp.C(), e.cq.C(), e.channel.C(), pd.C(), d.C()} {
		assert.Nil(t, gone)
	}
	require.NoError(t, CloseAll(nil, mr), "again")
	require.NoError(t, Needed(all...))
}

// Objects that two goroutines close in different orders, or one goroutine closes twice at once, are closed all the same.
func TestCloseAllInAnyOrder(t *testing.T) {
	d := openSoft(t)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	for range 2 {
		a, err := pd.RegMR(make([]byte, 64), 0)
		require.NoError(t, err)
		b, err := pd.RegMR(make([]byte, 64), 0)
		require.NoError(t, err)
		for _, busy := range []*MR{a, b} {
			require.NoError(t, busy.use("a call")) // that is under way
		}
		ended := make(chan error, 2)
		closed := func(all ...Object) { ended <- CloseAll(nil, all...) }
		go closed(a, b, a)
		for !a.isClosed() && !b.isClosed() {
			goruntime.Gosched()
		}
		go closed(b, a)
		for range 100 {
			goruntime.Gosched()
		}
		a.done()
		b.done()
		assert.NoError(t, requireEnd(t, ended))
		assert.NoError(t, requireEnd(t, ended))
		assert.Nil(t, a.C())
		assert.Nil(t, b.C())
	}
}
