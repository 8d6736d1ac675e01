// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/rdma/soft"
)

// Percentages in place of probabilities would lose every message.
func TestFaultsThatMeanNothing(t *testing.T) {
	f, err := soft.New(soft.Options{Faults: soft.Faults{Drop: 1, Duplicate: 1, Delay: 1}})
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.SetFaults(soft.Faults{}))
	for want, faults := range map[string]soft.Faults{
		"soft: Faults.Drop is 5; a probability is from 0 to 1":              {Drop: 5},
		"soft: Faults.Duplicate is -0.1; a probability is from 0 to 1":      {Duplicate: -0.1},
		"soft: Faults.Delay is NaN; a probability is from 0 to 1":           {Delay: math.NaN()},
		"soft: Faults.Late is -1ns; it cannot be negative":                  {Delay: 1, Late: -1},
		"soft: Faults.FailAllocation is -1; allocations are counted from 1": {FailAllocation: -1},
	} {
		err := f.SetFaults(faults)
		assert.ErrorContains(t, err, want)
		assert.ErrorIs(t, err, syscall.EINVAL)
		_, err = soft.New(soft.Options{Faults: faults})
		assert.ErrorContains(t, err, want)
	}
}
