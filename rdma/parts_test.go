// SPDX-License-Identifier: BSD-2-Clause

package rdma

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestNewQP: each type of queue pair works with the objects created for it. Closing it closes these objects and no
// others.
func TestNewQP(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	keep(t, fabric, err)
	d, err := OpenOn(fabric, "soft0")
	d = keep(t, d, err)
	before := fabric.Resources()
	for kind, create := range map[ibv.QPType]func(QPParts) (*QP, error){
		ibv.QPT_RC: d.NewRC, ibv.QPT_UC: d.NewUC, ibv.QPT_UD: d.NewUD,
	} {
		t.Run(kind.String(), func(t *testing.T) {
			qp, err := create(QPParts{})
			require.NoError(t, err)
			assert.Equal(t, kind, qp.Type())
			if kind == ibv.QPT_UD {
				assert.Equal(t, ibv.QPS_RTS, qp.State())
			} else {
				connectToSelf(t, qp)
			}
			mr, err := qp.RegMR(make([]byte, 256), ibv.ACCESS_LOCAL_WRITE)
			require.NoError(t, err)
			copy(mr.Bytes(), "hello")
			recv := recvBatch(t, 64, 1)
			for i := range 64 {
				recv.Recv(uint64(i)).Add(mr.SGE(100, 156))
			}
			_, err = qp.PostRecv(recv)
			require.NoError(t, err)
			send := sendBatch(t, 1, 1, 0)
			request := send.Send(1000).Add(mr.SGEOf(mr.Bytes()[:5])).Signaled()
			at := 100
			var ah *AH
			if kind == ibv.QPT_UD {
				local, err := qp.Endpoint()
				require.NoError(t, err)
				path, err := qp.Path(local)
				require.NoError(t, err)
				ah, err = qp.PD().CreateAH(&path)
				require.NoError(t, err)
				request.UD(ah.Ptr(), local.QPNum, local.QKey)
				at += GRHBytes
			}
			_, err = qp.PostSend(send)
			require.NoError(t, err)
			seen := map[uint64]bool{}
			for wc, err := range qp.SendCQ().All(t.Context()) {
				require.NoError(t, err)
				require.NoError(t, CompletionErr(&wc))
				if seen[wc.WRID] = true; len(seen) == 2 {
					break
				}
			}
			assert.Equal(t, map[uint64]bool{0: true, 1000: true}, seen)
			assert.Equal(t, "hello", string(mr.Bytes()[at:at+5]))

			other, err := qp.PD().RegMR(make([]byte, 8), 0)
			require.NoError(t, err)
			err = qp.Close()
			assert.ErrorIs(t, err, ErrInUse, "the caller's region uses the PD")
			assert.ErrorContains(t, err, other.name)
			assert.NotEqual(t, ibv.QPS_UNKNOWN, qp.State(), "the queue pair is not closed")
			require.NoError(t, other.Close())
			if ah != nil {
				require.NoError(t, ah.Close())
			}
			require.NoError(t, qp.Close())
			assert.Equal(t, before, fabric.Resources())
		})
	}
}

// TestNewQPCloses: after Close, or after a creation that fails at any step, only the caller's objects are open.
func TestNewQPCloses(t *testing.T) {
	fabric, err := soft.New(soft.Options{})
	keep(t, fabric, err)
	d, err := OpenOn(fabric, "soft0")
	d = keep(t, d, err)
	before := fabric.Resources()
	for range 2 {
		qp, err := d.NewRC(QPParts{})
		require.NoError(t, err)
		mr, err := qp.RegMR(make([]byte, 8), 0)
		require.NoError(t, err)
		second, err := qp.RegMR(make([]byte, 8), 0)
		require.NoError(t, err)
		require.NoError(t, second.Close())
		connectToSelf(t, qp)
		recv := recvBatch(t, 1, 1)
		recv.Recv(1).Add(mr.SGE(0, 0))
		_, err = qp.PostRecv(recv)
		require.NoError(t, err)
		require.NoError(t, qp.Close())
		require.NoError(t, qp.Close())
		assert.Equal(t, before, fabric.Resources())
		_, err = qp.RegMR(make([]byte, 8), 0)
		assert.ErrorIs(t, err, ErrClosed)
	}
	failed := 0
	for n := 1; n < 6; n++ {
		require.NoError(t, fabric.SetFaults(soft.Faults{FailAllocation: n}))
		qp, err := d.NewUD(QPParts{})
		if err == nil {
			require.NoError(t, qp.Close())
		} else {
			failed++
		}
		assert.Equal(t, before, fabric.Resources(), n)
	}
	assert.Equal(t, 4, failed, "PD, channel, CQ and QP")
	require.NoError(t, fabric.SetFaults(soft.Faults{}))

	pd, err := d.AllocPD()
	pd = keep(t, pd, err)
	cq, err := d.CreateCQ(64, nil, 0)
	cq = keep(t, cq, err)
	srq, err := pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1}, QueueOptions{})
	srq = keep(t, srq, err)
	given := fabric.Resources()
	for _, p := range []QPParts{{PD: pd}, {CQ: cq, Cap: smallCap}, {PD: pd, CQ: cq, Cap: smallCap}, {SRQ: srq}} {
		qp, err := d.NewRC(p)
		require.NoError(t, err)
		assert.Equal(t, p.SRQ, qp.SRQ())
		if p.CQ != nil {
			assert.Same(t, cq, qp.RecvCQ())
		}
		assert.NotNil(t, qp.PD())
		require.NoError(t, CloseAll(nil, qp), "like Close")
		assert.Equal(t, given, fabric.Resources())
	}
	_, err = new(Device).NewRC(QPParts{})
	assert.Error(t, err)
}
