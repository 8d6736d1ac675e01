// SPDX-License-Identifier: BSD-2-Clause

package objects

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma"
)

// TestRates compares the software device's rates with those of the C library, and converts every rate to numbers and
// back.
func TestRates(t *testing.T) {
	soft, err := rdma.Open("soft0")
	soft = keep(t, soft, err)
	local, remote := verbs.From{Backend: open(t).Info().Backend}, verbs.From{Backend: soft.Info().Backend}
	multiples := 0
	for rate := range ibv.Rate(40) {
		mbps, err := local.RateToMbps(rate)
		require.NoError(t, err)
		mult, err := local.RateToMult(rate)
		require.NoError(t, err)
		n, err := remote.RateToMbps(rate)
		require.NoError(t, err)
		assert.Equal(t, mbps, n, "%s", rate)
		n, err = remote.RateToMult(rate)
		require.NoError(t, err)
		assert.Equal(t, mult, n, "%s", rate)
		known := rate >= ibv.RATE_2_5_GBPS && rate <= ibv.RATE_1200_GBPS
		assert.Equal(t, known, mbps > 0, "%s", rate)
		if !known {
			assert.Equal(t, []int{-1, -1}, []int{mult, mbps}, "%s", rate)
			continue
		}
		for _, from := range []verbs.From{local, remote} {
			again, err := from.MbpsToRate(mbps)
			require.NoError(t, err)
			assert.Equal(t, rate, again)
			if mult > 0 {
				again, err = from.MultToRate(mult)
				require.NoError(t, err)
				assert.Equal(t, rate, again)
			}
		}
		if mult > 0 {
			multiples++
		}
	}
	assert.Equal(t, 15, multiples)
	for _, number := range []int{-1, 0, 3, 1 << 30} {
		for _, from := range []verbs.From{local, remote} {
			rate, err := from.MultToRate(number)
			require.NoError(t, err)
			assert.Equal(t, ibv.RATE_MAX, rate)
			rate, err = from.MbpsToRate(number)
			require.NoError(t, err)
			assert.Equal(t, ibv.RATE_MAX, rate)
		}
	}
}
