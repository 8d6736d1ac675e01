// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/csv"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestResults checks that the committed results have a row for each case and implementation, with a minimum not above
// the median.
func TestResults(t *testing.T) {
	f, err := os.Open("../results/mlx5.csv")
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	assert.Equal(t, []string{"case", "batch", "impl", "min_ns", "median_ns"}, rows[0])
	found := map[[3]string]bool{}
	for _, r := range rows[1:] {
		least, err := strconv.ParseFloat(r[3], 64)
		require.NoError(t, err)
		median, err := strconv.ParseFloat(r[4], 64)
		require.NoError(t, err)
		assert.Positive(t, least)
		assert.LessOrEqual(t, least, median, "%v", r)
		found[[3]string(r[:3])] = true
	}
	n := 0
	for _, c := range cases {
		for _, batch := range c.batches {
			for _, impl := range []string{"c", "go-default", "go-default-checked", "cgo", "purego",
				"go-native", "go-native-checked"} {
				row := [3]string{c.name, strconv.Itoa(batch), impl}
				assert.True(t, found[row], "%v", row)
				n++
			}
		}
	}
	assert.Len(t, rows, n+1)
}
