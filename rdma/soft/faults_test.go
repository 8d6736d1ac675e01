// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/rdmatest"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Percentages instead of probabilities would lose every message.
func TestInvalidFaults(t *testing.T) {
	f, err := soft.New(soft.Options{Faults: soft.Faults{Drop: 1, Duplicate: 1, Delay: 1, Late: 1}})
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.SetFaults(soft.Faults{}))
	for want, faults := range map[string]soft.Faults{
		"soft: Faults.Drop is 5; use a probability from 0 to 1":             {Drop: 5},
		"soft: Faults.Duplicate is -0.1; use a probability from 0 to 1":     {Duplicate: -0.1},
		"soft: Faults.Delay is NaN; use a probability from 0 to 1":          {Delay: math.NaN()},
		"soft: Faults.Late is -1ns; it cannot be negative":                  {Delay: 1, Late: -1},
		"soft: Faults.Delay is 1 without Late; set Late to the delay":       {Delay: 1},
		"soft: Faults.FailAllocation is -1; allocations are counted from 1": {FailAllocation: -1},
	} {
		err := f.SetFaults(faults)
		assert.ErrorContains(t, err, want)
		assert.ErrorIs(t, err, syscall.EINVAL)
		_, err = soft.New(soft.Options{Faults: faults})
		assert.ErrorContains(t, err, want)
	}
}

// TestNoReceive: on transports without acknowledgements, a message to a queue pair without a receive is dropped.
// Neither side gets an error, but the fabric counts it.
func TestNoReceive(t *testing.T) {
	for _, kind := range []ibv.QPType{ibv.QPT_UC, ibv.QPT_UD} {
		fabric := rdmatest.NewFabric(t, soft.Options{Virtual: true})
		local, remote := rdmatest.Pair(t, fabric, kind)
		sends, err := rdma.NewSendBatch(1, 1, 0)
		require.NoError(t, err)
		defer sends.Close()
		request := sends.Send(1).Add(local.MR.SGE(0, 8)).Signaled()
		if kind == ibv.QPT_UD {
			request.UD(local.AH.Ptr(), local.Peer.QPNum, local.Peer.QKey)
		}
		for n := range uint64(3) {
			assert.Equal(t, soft.Counters{NoReceive: n}, fabric.Counters(), "%v", kind)
			_, err = local.QP.PostSend(sends)
			require.NoError(t, err)
			wcs := make([]ibv.WC, 1)
			_, err = local.CQ.WaitBusy(t.Context(), wcs)
			require.NoError(t, err)
			assert.NoError(t, rdma.CompletionErr(&wcs[0]))
		}
		n, err := remote.CQ.Poll(make([]ibv.WC, 1))
		require.NoError(t, err)
		assert.Zero(t, n)
	}
}
