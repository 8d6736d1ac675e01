// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// The error of a post to a queue pair that is being drained or is closed names the queue pair and the reason.
func TestRefusedWork(t *testing.T) {
	e := selfConnected(t, ibv.QPT_RC)
	refused := func(is error, why string) {
		t.Helper()
		emptyWrites(e.send, 1, 1)
		e.recv.Reset()
		e.recv.Recv(1)
		_, send := e.qp.PostSend(e.send)
		_, recv := e.qp.PostRecv(e.recv)
		for verb, err := range map[string]error{"ibv_post_send": send, "ibv_post_recv": recv} {
			assert.EqualError(t, err, verb+": "+e.qp.name+": "+why)
			assert.ErrorIs(t, err, is)
		}
	}
	// another queue pair's drain of the same queue
	unlock, err := e.qp.lockDrains(drainContext{Context: context.Background()})
	require.NoError(t, err)
	drained := make(chan error, 1)
	go func() { drained <- e.qp.Drain(timeout(t)) }()
	require.Eventually(t, func() bool { return e.qp.recv.refused() != nil }, 20*time.Second, time.Millisecond)
	refused(syscall.EBUSY, "the queue pair is being drained and rejects work requests until the drain ends: "+
		"device or resource busy")
	unlock()
	require.NoError(t, requireEnd(t, drained))

	require.NoError(t, e.qp.Close())
	refused(ErrClosed, "closed")
	require.NoError(t, e.send.Close())
	assert.ErrorIs(t, e.send.Err(), ErrClosed)
}

// If a software device has no memory left, the creation of any object fails and leaks nothing.
func TestOutOfMemory(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	require.NoError(t, err)
	d, err := OpenOn(fabric, "soft0")
	closeAtEnd(t, d, err)
	pd, err := d.AllocPD()
	closeAtEnd(t, pd, err)
	e := newTestQP(t, pd, ibv.QPT_RC, nil, QueueOptions{})
	ready := connectToSelf(t, e.qp)
	path, err := ready.Path(must(ready.Endpoint()))
	require.NoError(t, err)
	before, free := fabric.Resources(), e.cq.Free()
	type closer interface{ Close() error }
	for name, create := range map[string]func() (closer, error){
		"pd":      func() (closer, error) { return d.AllocPD() },
		"channel": func() (closer, error) { return d.CreateCompChannel() },
		"cq":      func() (closer, error) { return d.CreateCQ(4, nil, 0) },
		"cq ex":   func() (closer, error) { return d.CreateCQEx(&ibv.CQInitAttrEx{CQE: 4}) },
		"mr":      func() (closer, error) { return pd.RegMR(make([]byte, 64), 0) },
		"mw":      func() (closer, error) { return pd.AllocMW(ibv.MW_TYPE_1) },
		"ah":      func() (closer, error) { return pd.CreateAH(&path) },
		"srq":     func() (closer, error) { return pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{}) },
		"qp": func() (closer, error) {
			return pd.CreateQP(&ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: e.cq.Ptr(), RecvCQ: e.cq.Ptr(),
				Cap: smallCap}, QueueOptions{})
		},
		"dm": func() (closer, error) { return d.AllocDM(&ibv.AllocDMAttr{Length: 64}) },
		"td": func() (closer, error) { return d.AllocTD(new(ibv.TDInitAttr)) },
	} {
		fabric.SetFaults(soft.Faults{FailAllocation: 1})
		_, err := create()
		assert.ErrorIs(t, err, syscall.ENOMEM, name)
		assert.NotContains(t, err.Error(), "the device's", name)
		assert.ErrorContains(t, err, "Faults.FailAllocation of the software device", "%s: the error names the injection", name)
		assert.Equal(t, before, fabric.Resources(), name)
		assert.Equal(t, free, e.cq.Free(), name)
		o, err := create()
		require.NoError(t, err, "%s: the next creation succeeds", name)
		require.NoError(t, o.Close())
	}
}
